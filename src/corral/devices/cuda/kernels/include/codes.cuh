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

// Writes columns `column` … `column + 3` of a row of codes. Eight lanes side by side hold one group
// of 32; all lanes of the warp call it, and write where `is_inside`.
template <int Planes>
__device__ __forceinline__ void store_codes(unsigned char* out, int64_t columns, int64_t column,
                                            float4 v, bool is_inside) {
  constexpr float kGreatest = Planes == 1 ? 127.0f : 127.0f * 256.0f;
  float most = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
  most = warp_max<kLanesPerGroup>(most);
  const float scale = __fdiv_rn(most, kGreatest);
  float inverse = __frcp_rn(scale);
  if (inverse > 3.402823466e38f) inverse = 0.0f;  // too small a group to have codes
  const int a = __float2int_rn(v.x * inverse), b = __float2int_rn(v.y * inverse);
  const int c = __float2int_rn(v.z * inverse), d = __float2int_rn(v.w * inverse);
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
    float* scales = reinterpret_cast<float*>(out + Planes * columns);
    scales[column / kGroup] = scale;
    scales[(columns + column) / kGroup] = scale * static_cast<float>(sum);
  }
}

}  // namespace corral
