// How the KV cache stores elements: (blocks, K|V, kv heads, 32 tokens, dims).
#pragma once

#include "codes.cuh"

namespace corral {

constexpr int kBlockTokens = 32;

// Eight elements as they come from memory, and as floats.
struct CacheF32 {
  static constexpr int kElementBytes = 4;
  static constexpr int row_bytes(int dims) { return 4 * dims; }
  struct Eight {
    float4 low, high;
  };
  static __device__ __forceinline__ Eight load(const unsigned char* row, int dim) {
    const float4* p = reinterpret_cast<const float4*>(row + 4 * dim);
    return {p[0], p[1]};
  }
  static __device__ __forceinline__ void floats(const Eight& e, float (&out)[8]) {
    out[0] = e.low.x, out[1] = e.low.y, out[2] = e.low.z, out[3] = e.low.w;
    out[4] = e.high.x, out[5] = e.high.y, out[6] = e.high.z, out[7] = e.high.w;
  }
  static __device__ __forceinline__ void store(unsigned char* row, int dim, float v) {
    reinterpret_cast<float*>(row)[dim] = v;
  }
};

struct CacheF16 {
  static constexpr int kElementBytes = 2;
  static constexpr int row_bytes(int dims) { return 2 * dims; }
  using Eight = uint4;
  static __device__ __forceinline__ Eight load(const unsigned char* row, int dim) {
    return *reinterpret_cast<const uint4*>(row + 2 * dim);
  }
  static __device__ __forceinline__ void floats(const Eight& e, float (&out)[8]) {
    const __half2* pairs = reinterpret_cast<const __half2*>(&e);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float2 v = __half22float2(pairs[i]);
      out[2 * i] = v.x, out[2 * i + 1] = v.y;
    }
  }
  static __device__ __forceinline__ void store(unsigned char* row, int dim, float v) {
    reinterpret_cast<__half*>(row)[dim] = __float2half_rn(v);
  }
};

struct CacheBF16 {
  static constexpr int kElementBytes = 2;
  static constexpr int row_bytes(int dims) { return 2 * dims; }
  using Eight = uint4;
  static __device__ __forceinline__ Eight load(const unsigned char* row, int dim) {
    return *reinterpret_cast<const uint4*>(row + 2 * dim);
  }
  static __device__ __forceinline__ void floats(const Eight& e, float (&out)[8]) {
    const uint32_t words[4] = {e.x, e.y, e.z, e.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      out[2 * i] = __uint_as_float(words[i] << 16);
      out[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
    }
  }
  static __device__ __forceinline__ void store(unsigned char* row, int dim, float v) {
    reinterpret_cast<__nv_bfloat16*>(row)[dim] = __float2bfloat16_rn(v);
  }
};

// Blocks of 34 bytes: an F16 scale, then 32 codes. Rows are 2-byte aligned.
struct CacheQ8_0 {
  static constexpr int row_bytes(int dims) { return dims / 32 * 34; }
  struct Eight {
    uint16_t codes[4], scale;
  };
  static __device__ __forceinline__ Eight load(const unsigned char* row, int dim) {
    const uint16_t* block = reinterpret_cast<const uint16_t*>(row + dim / 32 * 34);
    const uint16_t* codes = block + 1 + dim % 32 / 2;
    return {{codes[0], codes[1], codes[2], codes[3]}, block[0]};
  }
  static __device__ __forceinline__ void floats(const Eight& e, float (&out)[8]) {
    const float scale = __half2float(__ushort_as_half(e.scale));
#pragma unroll
    for (int i = 0; i < 4; i++) {
      out[2 * i] = scale * static_cast<int8_t>(e.codes[i] & 255);
      out[2 * i + 1] = scale * static_cast<int8_t>(e.codes[i] >> 8);
    }
  }
  // A warp stores 32 elements, a lane one of them.
  static __device__ __forceinline__ void store_group(unsigned char* row, int group, float v) {
    const auto scale = CodeScale<1>::of(warp_max(fabsf(v)));
    unsigned char* to = row + group * 34;
    to[2 + lane_id()] = static_cast<unsigned char>(scale.code(v));
    if (lane_id() == 0) *reinterpret_cast<__half*>(to) = __float2half_rn(scale.scale);
  }
};

// Whether elements are stored by groups of 32, not one by one.
template <class Cache>
constexpr bool kHasGroups = false;
template <>
constexpr bool kHasGroups<CacheQ8_0> = true;

// The block of a position in its sequence's table.
__device__ __forceinline__ int64_t block_of(const int32_t* tables, int64_t stride, int32_t sequence,
                                            int64_t position) {
  return row_at(tables, stride, sequence)[position / kBlockTokens];
}

// Which row of the cache has a position's key (0) or value (1) of one head.
__device__ __forceinline__ int64_t cached_row(const int32_t* tables, int64_t stride,
                                              int32_t sequence, int64_t position, int which,
                                              int64_t head, int64_t kv_heads) {
  const int64_t block = block_of(tables, stride, sequence, position);
  return ((block * 2 + which) * kv_heads + head) * kBlockTokens + position % kBlockTokens;
}

}  // namespace corral
