// What the kernels of a prefill product share: its fields, and what becomes of its sums.
#pragma once
#include "ptx.cuh"
#include "tiles.cuh"

namespace corral {

// y = x · weightsᵀ; x and weights in tiles. The columns of y may go to three places: q, k and v are one product.
struct Product {
  const char* x;
  const char* weights;
  const int64_t* count;  // rows of x
  int64_t tiles;         // of a row of x
  int64_t columns;       // of y, one a row of the weights
  int64_t columns_1;     // where the second place begins; `columns` if there is none
  int64_t columns_2;
  char* out;             // F32 rows; tiles of BF16 if gated
  char* out_1;
  char* out_2;
  int64_t out_stride;    // bytes of a row; tiles of a row if gated
  int64_t out_stride_1;
  int64_t out_stride_2;
  const float* bias;     // or 0
  const char* residual;  // F32 rows, may be `out`; or 0
  int64_t residual_stride;
  const float* scales;   // of rows of x, where these are F16; else 0
};

enum Finish { PLAIN = 0, SILU = 1, GELU = 2 };

inline __device__ float activated(float x, int finish) {
  // x · sigmoid(2 · inner) is x/2 · (1 + tanh(inner))
  const float inner = finish == SILU ? 0.5f * x : 0.7978845608f * (x + 0.044715f * x * x * x);
  return x / (1.0f + exp2_approx(-2.885390082f * inner));
}

// Stores sums of two neighbouring columns (an even one and the next) of a row.
inline __device__ void store_sums(const Product& f, int64_t row, int64_t column, float a, float b) {
  if (column >= f.columns) return;
  const bool both = column + 1 < f.columns;
  if (f.scales) {
    const float scale = f.scales[row];
    a *= scale;
    b *= scale;
  }
  if (f.bias) {
    a += f.bias[column];
    if (both) b += f.bias[column + 1];
  }
  char* out = f.out;
  int64_t stride = f.out_stride, first = 0;
  if (column >= f.columns_2) {
    out = f.out_2, stride = f.out_stride_2, first = f.columns_2;
  } else if (column >= f.columns_1) {
    out = f.out_1, stride = f.out_stride_1, first = f.columns_1;
  }
  float* to = reinterpret_cast<float*>(out + row * stride) + (column - first);
  const float* from = reinterpret_cast<const float*>(f.residual + row * f.residual_stride) + column;
  if (both && reinterpret_cast<uint64_t>(to) % 8 == 0) {
    if (f.residual) {
      const float2 add = *reinterpret_cast<const float2*>(from);
      a += add.x;
      b += add.y;
    }
    *reinterpret_cast<float2*>(to) = make_float2(a, b);
    return;
  }
  to[0] = f.residual ? a + from[0] : a;
  if (both) to[1] = f.residual ? b + from[1] : b;
}

// The rows of the weights alternate between 8 of gate and 8 of up; `column` counts those of the result. Writes BF16.
template <int FINISH>
inline __device__ void store_gated(const Product& f, int64_t row, int64_t column, const float (&gate)[2],
                                   const float (&up)[2]) {
  if (2 * column >= f.columns) return;
  const Target target{f.out, f.out_stride};
  const unsigned both = pair_of(activated(gate[0], FINISH) * up[0], activated(gate[1], FINISH) * up[1], __nv_bfloat16());
  reinterpret_cast<unsigned*>(target.chunk<true>(row, column / CHUNK))[column % CHUNK / 2] = both;
}

// Stores what a warp's 16 rows × 8 · BLOCKS columns came to: the fragment that mma and wgmma give.
template <int FINISH, int BLOCKS>
inline __device__ void store_fragment(const Product& f, int64_t count, int64_t first_row, int64_t first_column,
                                      const float* sums) {
  const int lane = threadIdx.x % 32;
  const int64_t row = first_row + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    if (row + 8 * half >= count) continue;
    const float* at = sums + 2 * half;
    if (FINISH == PLAIN) {
#pragma unroll
      for (int block = 0; block < BLOCKS; block++)
        store_sums(f, row + 8 * half, first_column + 8 * block + lane % 4 * 2, at[4 * block], at[4 * block + 1]);
    } else {
#pragma unroll
      for (int block = 0; block < BLOCKS; block += 2) {
        const float gate[2] = {at[4 * block], at[4 * block + 1]}, up[2] = {at[4 * block + 4], at[4 * block + 5]};
        store_gated<FINISH>(f, row + 8 * half, first_column / 2 + 4 * block + lane % 4 * 2, gate, up);
      }
    }
  }
}

}  // namespace corral
