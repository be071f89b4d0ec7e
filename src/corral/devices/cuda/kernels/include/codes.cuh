// Rounding to A8 and A16: planes of int8 codes, a scale and a sum for each 32 columns.
#pragma once

#include "common.cuh"

namespace corral {

constexpr int kGroup = 32;
constexpr int kColumnsPerLane = 4;
constexpr int kLanesPerGroup = kGroup / kColumnsPerLane;

__device__ __forceinline__ uint32_t four_bytes(int a, int b, int c, int d) {
  const uint32_t low = __byte_perm(a, b, 0x0040), high = __byte_perm(c, d, 0x0040);
  return __byte_perm(low, high, 0x5410);
}

// How a group of 32 columns is rounded.
template <int Planes>
struct CodeScale {
  static constexpr float kGreatest = Planes == 1 ? 127.0f : 127.0f * 256.0f;
  float scale, inverse;

  // Of a group whose greatest element is this.
  static __device__ __forceinline__ CodeScale of(float most) {
    const float scale = __fdiv_rn(most, kGreatest);
    const float inverse = __frcp_rn(scale);
    return {scale, inverse > 3.402823466e38f ? 0.0f : inverse};  // too small a group has no codes
  }
  __device__ __forceinline__ int code(float v) const { return __float2int_rn(v * inverse); }
};

__device__ __forceinline__ void store_scale(unsigned char* scales, int64_t columns, int64_t column,
                                            float scale, int sum) {
  float* out = reinterpret_cast<float*>(scales);
  out[column / kGroup] = scale;
  out[(columns + column) / kGroup] = scale * static_cast<float>(sum);
}

// Writes columns `column` … `column + 3` of a row of codes. Eight lanes side by side hold one group
// of 32; all lanes of the warp call it, and write where `is_inside`.
template <int Planes>
__device__ __forceinline__ void store_codes(unsigned char* out, int64_t columns, int64_t column,
                                            float4 v, bool is_inside) {
  float most = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
  const auto scale = CodeScale<Planes>::of(warp_max<kLanesPerGroup>(most));
  const int a = scale.code(v.x), b = scale.code(v.y), c = scale.code(v.z), d = scale.code(v.w);
  int sum = a + b + c + d;
#pragma unroll
  for (int step = kLanesPerGroup / 2; step; step >>= 1) {
    sum += __shfl_xor_sync(kAllLanes, sum, step);
  }
  if (!is_inside) return;
  if constexpr (Planes == 1) {
    *reinterpret_cast<uint32_t*>(out + column) = four_bytes(a, b, c, d);
  } else {
    const int e = (a + 128) >> 8, f = (b + 128) >> 8, g = (c + 128) >> 8, h = (d + 128) >> 8;
    *reinterpret_cast<uint32_t*>(out + column) = four_bytes(e, f, g, h);
    *reinterpret_cast<uint32_t*>(out + columns + column) =
        four_bytes(a - 256 * e, b - 256 * f, c - 256 * g, d - 256 * h);
  }
  if (column % kGroup == 0) {
    store_scale(out + Planes * columns, columns, column, scale.scale, sum);
  }
}

// The same of a single column: a warp holds one group, a lane one of its columns.
template <int Planes>
__device__ __forceinline__ void store_code(unsigned char* out, int64_t columns, int64_t column,
                                           float v) {
  const auto scale = CodeScale<Planes>::of(warp_max(fabsf(v)));
  const int code = scale.code(v);
  int sum = code;
#pragma unroll
  for (int step = kWarp / 2; step; step >>= 1) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if constexpr (Planes == 1) {
    out[column] = static_cast<unsigned char>(code);
  } else {
    const int high = (code + 128) >> 8;
    out[column] = static_cast<unsigned char>(high);
    out[columns + column] = static_cast<unsigned char>(code - 256 * high);
  }
  if (column % kGroup == 0) {
    store_scale(out + Planes * columns, columns, column, scale.scale, sum);
  }
}

}  // namespace corral
