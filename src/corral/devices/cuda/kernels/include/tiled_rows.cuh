// Rows written as the tiles of a left factor (tiles.cuh), four columns at a time.
#pragma once

#include "common.cuh"

namespace corral {

// Writes columns `column` … `column + 3` of a row as BF16.
__device__ __forceinline__ void store_tiled(unsigned char* tiles, int64_t tile_bytes, int64_t row,
                                            int64_t column, float4 v) {
  const int64_t chunk = column / 8;
  unsigned char* at =
      tiles + chunk / 8 * tile_bytes + row * 128 + ((chunk ^ row) & 7) * 16 + column % 8 * 2;
  const __nv_bfloat162 low = __floats2bfloat162_rn(v.x, v.y), high = __floats2bfloat162_rn(v.z, v.w);
  *reinterpret_cast<uint2*>(at) = make_uint2(*reinterpret_cast<const uint32_t*>(&low),
                                             *reinterpret_cast<const uint32_t*>(&high));
}

}  // namespace corral
