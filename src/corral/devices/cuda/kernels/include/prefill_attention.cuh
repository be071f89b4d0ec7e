// What both kernels of attention in prefill share: fields, how the cache stores keys and values, which keys a tile of rows
// needs.
#pragma once
#include "ptx.cuh"
#include "tiles.cuh"

namespace corral {

struct Attention {
  const char* q;
  const char* state;
  char* out;               // F32 rows; or BF16, in tiles or in rows
  const int64_t* count;
  const int* positions;
  const int* sequences;
  const char* tables;
  int64_t q_stride;
  int64_t out_stride;      // bytes of a row; tiles of a row
  int64_t tables_stride;
  int64_t kv_heads;
  Float scale;
  int64_t window;
  Float softcap;
};

enum Stored { STORED_F16 = 0, STORED_BF16 = 1, STORED_F32 = 2, STORED_Q8_0 = 3 };

constexpr int BLOCK_TOKENS = 32;
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float HALF_MAX = 65504.0f;

template <int STORED>
constexpr int bytes_of(int elements) {
  return STORED == STORED_F32 ? 4 * elements : STORED == STORED_Q8_0 ? elements / 32 * 34 : 2 * elements;
}

inline __device__ float least() { return __uint_as_float(0xFF800000u); }  // −∞

inline __device__ float within_half(float x) { return fminf(fmaxf(x, -HALF_MAX), HALF_MAX); }

inline __device__ uint4 halves_of_bf16(uint4 raw) {
  const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
  float v[CHUNK];
#pragma unroll
  for (int i = 0; i < CHUNK; i++) v[i] = within_half(__uint_as_float(i % 2 ? words[i / 2] & 0xFFFF0000u : words[i / 2] << 16));
  return chunk_of<__half>(v);
}

// Eight elements of a stored row, in any memory, as F16.
template <int STORED>
inline __device__ uint4 halves_of(const char* row, int chunk) {
  float v[CHUNK];
  if (STORED == STORED_BF16) {
    return halves_of_bf16(*reinterpret_cast<const uint4*>(row + chunk * 16));
  } else if (STORED == STORED_F32) {
    const float4 low = reinterpret_cast<const float4*>(row)[2 * chunk], high = reinterpret_cast<const float4*>(row)[2 * chunk + 1];
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
#pragma unroll
    for (int i = 0; i < CHUNK; i++) v[i] = within_half(v[i]);
  } else {  // blocks of an F16 scale and 32 codes, at even addresses
    const unsigned short* block = reinterpret_cast<const unsigned short*>(row + chunk / 4 * 34);
    const float scale = __half2float(__ushort_as_half(block[0]));
#pragma unroll
    for (int i = 0; i < CHUNK; i += 2) {
      const unsigned pair = block[1 + (chunk % 4 * CHUNK + i) / 2];
      v[i] = within_half(scale * static_cast<signed char>(pair & 0xFF));
      v[i + 1] = within_half(scale * static_cast<signed char>(pair >> 8));
    }
  }
  return chunk_of<__half>(v);
}

// Eight columns of a query as F16.
template <int HEAD_DIM>
inline __device__ uint4 query_chunk(const Attention& f, int64_t row, int64_t head, int chunk) {
  const float* from = reinterpret_cast<const float*>(f.q + row * f.q_stride) + head * HEAD_DIM + chunk * CHUNK;
  float v[CHUNK];
  if (reinterpret_cast<uint64_t>(from) % 16 == 0) {
    const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
  } else {
#pragma unroll
    for (int i = 0; i < CHUNK; i++) v[i] = from[i];
  }
#pragma unroll
  for (int i = 0; i < CHUNK; i++) v[i] = within_half(v[i]);
  return chunk_of<__half>(v);
}

// The rows of one sequence among those of a tile, and the keys that they see together.
struct Span {
  int sequence;           // −1: no more
  int nearest, farthest;  // positions of its rows
  int low, high;          // positions of keys
  bool is_alone;          // all rows of the tile belong to it
};

inline __device__ int least_of_warp(int value) {
#pragma unroll
  for (int step = 16; step; step /= 2) {
    const int other = __shfl_xor_sync(0xFFFFFFFFu, value, step);
    value = other < value ? other : value;
  }
  return value;
}

// The sequence with the next greater number. Whole warps call it.
inline __device__ Span span_after(int previous, const int* positions, const int* sequences, int tokens, int window) {
  constexpr int NONE = 0x7FFFFFFF;
  const int lane = threadIdx.x % 32;
  int sequence = NONE;
  for (int i = lane; i < tokens; i += 32)
    if (sequences[i] > previous && sequences[i] < sequence) sequence = sequences[i];
  sequence = least_of_warp(sequence);
  if (sequence == NONE) return {-1, 0, 0, 0, 0, false};
  int nearest = NONE, farthest = 0, others = 0;
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

  inline __device__ void reset() {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      greatest[half] = least();
      total[half] = 0.0f;
    }
  }

  // Turns scores of BLOCKS × 8 keys into weights and returns what to keep of earlier sums. `position` is that of the row
  // if it belongs to the sequence, else −1. Without a limit, scores are scaled inside of the exponent.
  template <int BLOCKS, bool WINDOWED, bool CAPPED>
  inline __device__ float fold(float (&scores)[4 * BLOCKS], int half, float scale, float limit, bool sees_all, int position,
                               int first_key, int window) {
    float most = greatest[half];
    if (CAPPED) {  // limit · tanh(score · scale / limit), in units of log2
#pragma unroll
      for (int block = 0; block < BLOCKS; block++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
          float& score = scores[4 * block + 2 * half + j];
          score = limit * (1.0f - 2.0f / (1.0f + exp2_approx(2.0f * LOG2_E * scale * score)));
        }
    }
    if (!sees_all) {
#pragma unroll
      for (int block = 0; block < BLOCKS; block++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
          const int distance = position - (first_key + 8 * block + threadIdx.x % 4 * 2 + j);
          if (distance < 0 || (WINDOWED && distance >= window)) scores[4 * block + 2 * half + j] = least();
        }
    }
#pragma unroll
    for (int block = 0; block < BLOCKS; block++)
      most = fmaxf(most, fmaxf(scores[4 * block + 2 * half], scores[4 * block + 2 * half + 1]));
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
    const float factor = CAPPED ? 1.0f : scale;
    const float base = most == least() ? 0.0f : most * factor;
    // exactly 1 where nothing changes, or results would depend on tiles that the row does not see
    const float keep = most == greatest[half] ? 1.0f : exp2_approx(fmaf(greatest[half], factor, -base));
    greatest[half] = most;
    float sum = 0.0f;
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
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
  inline __device__ float inverse(int half) const {
    float sum = total[half];
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    return 1.0f / sum;
  }
};

// Weights as the left factor of 16 keys after the other: what mma gives is what it takes.
template <int BLOCKS>
inline __device__ void pack_weights(unsigned (&weights)[2 * BLOCKS], const float (&scores)[4 * BLOCKS]) {
#pragma unroll
  for (int i = 0; i < 2 * BLOCKS; i++) weights[i] = pair_of(scores[2 * i], scores[2 * i + 1], __half());
}

// What the result is: F32 rows, or the left factor of the next product.
enum To { TO_FLOATS = 0, TO_TILES = 1, TO_ROWS = 2 };

// Stores two neighbouring columns of a row of the result.
template <int TO>
inline __device__ void store_mixed(const Attention& f, int64_t row, int64_t column, float one, float two) {
  if (TO == TO_FLOATS) {
    *reinterpret_cast<float2*>(reinterpret_cast<float*>(f.out + row * f.out_stride) + column) = make_float2(one, two);
    return;
  }
  const Target target{f.out, f.out_stride};
  unsigned* chunk = reinterpret_cast<unsigned*>(target.chunk<TO == TO_TILES>(row, column / CHUNK));
  chunk[column % CHUNK / 2] = pair_of(one, two, __nv_bfloat16());
}

}  // namespace corral
