// What the tuned matrix kernels are given, and how their results are written.
#pragma once

#include "ptx.cuh"

namespace corral {

constexpr int kMaxParts = 3;
constexpr int kBlockRows = 16;

// One matrix of a launch. Strides are bytes; residual and bias may be null.
struct MatmulPart {
  const uint8_t* weights;
  uint8_t* out;
  const uint8_t* residual;
  const float* bias;
  int64_t rows;
  int64_t out_stride;
  int64_t residual_stride;
};

struct MatmulFields {
  const int64_t* count;  // rows of the batch
  const uint8_t* x;
  int64_t x_stride;
  int64_t capacity;  // rows that x has memory for
  MatmulPart parts[kMaxParts];
};

// What becomes of the products: F32 rows, or activation(gate) · up as F32 or as A8.
enum class Result { plain, gated, gated_codes };
enum class Gating { none, silu, gelu };

// Which row block of which part the j-th of a unit is; plain parts may be some of a launch.
template <int RowBlocks, Result Kind, int First = 0, int Last = kMaxParts>
struct Units {
  static int blocks(const MatmulPart& part) { return (static_cast<int>(part.rows) + kBlockRows - 1) / kBlockRows; }
  static int of(const MatmulPart& part) {
    constexpr int kOfPart = Kind == Result::plain ? RowBlocks : RowBlocks / 2;
    return (blocks(part) + kOfPart - 1) / kOfPart;
  }
  static int count(const MatmulFields& f) {
    int units = of(f.parts[First]);
    if constexpr (Kind == Result::plain) {
      for (int p = First + 1; p < Last; p++) units += of(f.parts[p]);
    }
    return units;
  }
  static void locate(const MatmulFields& f, int unit, int j, int& part, int& block) {
    if constexpr (Kind == Result::plain) {
      part = First;
      while (part + 1 < Last && unit >= of(f.parts[part])) unit -= of(f.parts[part++]);
      block = unit * RowBlocks + j;
    } else {
      part = j / (RowBlocks / 2);
      block = unit * (RowBlocks / 2) + j % (RowBlocks / 2);
    }
  }
};

template <Gating Kind>
inline float gated_value(float gate, float up) {
  if constexpr (Kind == Gating::silu) {
    return gate / (1.0f + expf(-gate)) * up;
  } else {
    const float inner = 0.7978845608028654f * (gate + 0.044715f * gate * gate * gate);
    return 0.5f * gate * (1.0f + tanhf(inner)) * up;
  }
}

inline float* row_at(uint8_t* base, int64_t stride, int row) {
  return reinterpret_cast<float*>(base + stride * row);
}

// What is added to a product: bias and residual, where there are any.
inline float added(const MatmulPart& part, int row, int n) {
  float value = part.bias ? part.bias[row] : 0.0f;
  if (part.residual) {
    value += reinterpret_cast<const float*>(part.residual + part.residual_stride * n)[row];
  }
  return value;
}

// A warp writes 32 columns of a row as A8: lane i has column 32 · group + i of `columns`.
inline void store_codes(uint8_t* row, int64_t columns, int64_t group, float value) {
  float greatest = fabsf(value);
#pragma unroll
  for (int step = 16; step; step >>= 1) {
    greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, step));
  }
  const float scale = greatest / 127.0f;
  float inverse = 1.0f / scale;
  if (inverse > 3.402823466e38f) inverse = 0.0f;  // too small a group to have codes
  const int code = __float2int_rn(value * inverse);
  int sum = code;
#pragma unroll
  for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
  const int lane = threadIdx.x & 31;
  row[32 * group + lane] = static_cast<uint8_t>(code);
  if (lane == 0) {
    float* scales = reinterpret_cast<float*>(row + columns);
    scales[group] = scale;
    scales[columns / 32 + group] = scale * static_cast<float>(sum);
  }
}

}  // namespace corral
