// What both kernels of attention in prefill share: fields, how the cache stores keys and values,
// which keys a tile of rows needs.
#pragma once
#include "ptx.cuh"
#include "tiles.cuh"

namespace corral {

struct Attention {
  const char* q;
  const char* state;
  char* out;  // F32 rows; or BF16, in tiles or in rows
  const int64_t* count;
  const int* positions;
  const int* sequences;
  const char* tables;
  int64_t q_stride;
  int64_t out_stride;  // bytes of a row; tiles of a row
  int64_t tables_stride;
  int64_t kv_heads;
  Float scale;
  int64_t window;
  Float softcap;
};

enum { kStoredF16 = 0, kStoredBf16 = 1, kStoredF32 = 2, kStoredQ80 = 3 };

constexpr int kBlockTokens = 32;
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kHalfMax = 65504.0f;

template <int Stored>
constexpr int bytes_of(int elements) {
  return Stored == kStoredF32   ? 4 * elements
         : Stored == kStoredQ80 ? elements / 32 * 34
                                : 2 * elements;
}

__device__ __forceinline__ float least() { return __uint_as_float(0xFF800000u); }  // −∞

__device__ __forceinline__ float within_half(float x) {
  return fminf(fmaxf(x, -kHalfMax), kHalfMax);
}

__device__ __forceinline__ uint4 halves_of_bf16(uint4 raw) {
  const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
  float v[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; i++)
    v[i] = within_half(__uint_as_float(i % 2 ? words[i / 2] & 0xFFFF0000u : words[i / 2] << 16));
  return chunk_of<__half>(v);
}

// Two signed bytes as F16, exactly: 1024 + byte + 128 is the byte with its sign turned, below the
// exponent of 1024.
__device__ __forceinline__ __half2 halves_of_bytes(unsigned two) {
  const unsigned bits = __byte_perm(two ^ 0x8080u, 0x64646464u, 0x4140);
  return __hsub2(*reinterpret_cast<const __half2*>(&bits), __half2half2(__ushort_as_half(0x6480)));
}

// Eight codes times their scale.
__device__ __forceinline__ uint4 halves_of_codes(unsigned short scale_bits,
                                                 const unsigned short* codes) {
  const __half2 scale = __half2half2(__ushort_as_half(scale_bits));
  const __half2 most = __half2half2(__ushort_as_half(0x7BFF)),
                fewest = __half2half2(__ushort_as_half(0xFBFF));
  unsigned out[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const __half2 product = __hmul2(halves_of_bytes(codes[i]), scale);
    const __half2 finite = __hmax2(__hmin2(product, most), fewest);
    out[i] = *reinterpret_cast<const unsigned*>(&finite);
  }
  return make_uint4(out[0], out[1], out[2], out[3]);
}

// Eight elements of a stored row, in any memory, as F16.
template <int Stored>
__device__ __forceinline__ uint4 halves_of(const char* row, int chunk) {
  float v[kChunk];
  if (Stored == kStoredBf16) {
    return halves_of_bf16(*reinterpret_cast<const uint4*>(row + chunk * 16));
  } else if (Stored == kStoredF32) {
    const float4 low = reinterpret_cast<const float4*>(row)[2 * chunk],
                 high = reinterpret_cast<const float4*>(row)[2 * chunk + 1];
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
#pragma unroll
    for (int i = 0; i < kChunk; i++) v[i] = within_half(v[i]);
  } else {  // blocks of an F16 scale and 32 codes, at even addresses
    const unsigned short* block = reinterpret_cast<const unsigned short*>(row + chunk / 4 * 34);
    return halves_of_codes(block[0], block + 1 + chunk % 4 * kChunk / 2);
  }
  return chunk_of<__half>(v);
}

// Eight columns of a query as F16.
template <int HeadDim>
__device__ __forceinline__ uint4 query_chunk(const Attention& f, int64_t row, int64_t head,
                                             int chunk) {
  const float* from =
      reinterpret_cast<const float*>(f.q + row * f.q_stride) + head * HeadDim + chunk * kChunk;
  float v[kChunk];
  if (reinterpret_cast<uint64_t>(from) % 16 == 0) {
    const float4 low = reinterpret_cast<const float4*>(from)[0],
                 high = reinterpret_cast<const float4*>(from)[1];
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
  } else {
#pragma unroll
    for (int i = 0; i < kChunk; i++) v[i] = from[i];
  }
#pragma unroll
  for (int i = 0; i < kChunk; i++) v[i] = within_half(v[i]);
  return chunk_of<__half>(v);
}

// The rows of one sequence among those of a tile, and the keys that they see together.
struct Span {
  int sequence;           // −1: no more
  int nearest, farthest;  // positions of its rows
  int low, high;          // positions of keys
  bool is_alone;          // all rows of the tile belong to it
};

__device__ __forceinline__ int least_of_warp(int value) {
#pragma unroll
  for (int step = 16; step; step /= 2) {
    const int other = __shfl_xor_sync(0xFFFFFFFFu, value, step);
    value = other < value ? other : value;
  }
  return value;
}

// The sequence with the next greater number. Whole warps call it.
__device__ __forceinline__ Span span_after(int previous, const int* positions, const int* sequences,
                                           int tokens, int window) {
  constexpr int kNone = 0x7FFFFFFF;
  const int lane = threadIdx.x % 32;
  int sequence = kNone;
  for (int i = lane; i < tokens; i += 32)
    if (sequences[i] > previous && sequences[i] < sequence) sequence = sequences[i];
  sequence = least_of_warp(sequence);
  if (sequence == kNone) return {-1, 0, 0, 0, 0, false};
  int nearest = kNone, farthest = 0, others = 0;
  for (int i = lane; i < tokens; i += 32) {
    if (sequences[i] != sequence) {
      others = -1;
    } else {
      nearest = positions[i] < nearest ? positions[i] : nearest;
      farthest = positions[i] > farthest ? positions[i] : farthest;
    }
  }
  nearest = least_of_warp(nearest);
  farthest = -least_of_warp(-farthest);
  const int low = window && nearest >= window ? nearest - window + 1 : 0;
  return {sequence, nearest, farthest, low, farthest, least_of_warp(others) == 0};
}

// Softmax of two rows of a fragment, l / 4 and l / 4 + 8.
struct Softmax {
  float greatest[2];
  float total[2];

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      greatest[half] = least();
      total[half] = 0.0f;
    }
  }

  // Turns scores of Blocks × 8 keys into weights and returns what to keep of earlier sums.
  // `position` is that of the row if it belongs to the sequence, else −1. Without a limit, scores
  // are scaled inside of the exponent.
  template <int Blocks, bool Windowed, bool Capped>
  __device__ __forceinline__ float fold(float (&scores)[4 * Blocks], int half, float scale,
                                        float limit, bool sees_all, int position, int first_key,
                                        int window) {
    float most = greatest[half];
    if (Capped) {  // limit · tanh(score · scale / limit), in units of log2
#pragma unroll
      for (int block = 0; block < Blocks; block++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
          float& score = scores[4 * block + 2 * half + j];
          score = limit * (1.0f - 2.0f / (1.0f + exp2_approx(2.0f * kLog2E * scale * score)));
        }
    }
    if (!sees_all) {
#pragma unroll
      for (int block = 0; block < Blocks; block++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
          const int distance = position - (first_key + 8 * block + threadIdx.x % 4 * 2 + j);
          if (distance < 0 || (Windowed && distance >= window))
            scores[4 * block + 2 * half + j] = least();
        }
    }
#pragma unroll
    for (int block = 0; block < Blocks; block++)
      most = fmaxf(most, fmaxf(scores[4 * block + 2 * half], scores[4 * block + 2 * half + 1]));
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
    const float factor = Capped ? 1.0f : scale;
    const float base = most == least() ? 0.0f : most * factor;
    // exactly 1 where nothing changes, or results would depend on tiles that the row does not see
    const float keep =
        most == greatest[half] ? 1.0f : exp2_approx(fmaf(greatest[half], factor, -base));
    greatest[half] = most;
    float sum = 0.0f;
#pragma unroll
    for (int block = 0; block < Blocks; block++) {
      float& one = scores[4 * block + 2 * half];
      float& two = scores[4 * block + 2 * half + 1];
      one = exp2_approx(fmaf(one, factor, -base));
      two = exp2_approx(fmaf(two, factor, -base));
      sum += one + two;
    }
    total[half] = fmaf(total[half], keep, sum);
    return keep;
  }

  // The reciprocal of the whole sum of weights.
  __device__ __forceinline__ float inverse(int half) const {
    float sum = total[half];
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    return 1.0f / sum;
  }
};

// Weights as the left factor of 16 keys after the other: what mma gives is what it takes.
template <int Blocks>
__device__ __forceinline__ void pack_weights(unsigned (&weights)[2 * Blocks],
                                             const float (&scores)[4 * Blocks]) {
#pragma unroll
  for (int i = 0; i < 2 * Blocks; i++)
    weights[i] = pair_of(scores[2 * i], scores[2 * i + 1], __half());
}

// What the result is: F32 rows, or the left factor of the next product.
enum { kToFloats = 0, kToTiles = 1, kToRows = 2 };

// Stores two neighbouring columns of a row of the result.
template <int To>
__device__ __forceinline__ void store_mixed(const Attention& f, int64_t row, int64_t column,
                                            float one, float two) {
  if (To == kToFloats) {
    *reinterpret_cast<float2*>(reinterpret_cast<float*>(f.out + row * f.out_stride) + column) =
        make_float2(one, two);
    return;
  }
  const Target target{f.out, f.out_stride};
  unsigned* chunk = reinterpret_cast<unsigned*>(target.chunk<To == kToTiles>(row, column / kChunk));
  chunk[column % kChunk / 2] = pair_of(one, two, __nv_bfloat16());
}

}  // namespace corral
