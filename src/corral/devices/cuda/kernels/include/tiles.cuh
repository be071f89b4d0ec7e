// How the two factors of a prefill product lie in memory: rows of 16-bit elements, either plain or
// in tiles.
//
// A tile is 128 rows × 64 columns = 16 KiB, contiguous, and exactly what a kernel wants in shared
// memory, so that one bulk copy fetches it: row r has 128 bytes at 128 · r, and its 16-byte chunk c
// (8 columns) stands at place c XOR (r mod 8), where eight rows of one chunk touch all banks. Tiles
// of 128 rows follow each other along the columns. Columns are padded to 64 with zeros, on both
// sides of a product; rows beyond the last are never stored by whoever reads them.
#pragma once
#include "ptx.cuh"

namespace corral {

constexpr int kTileRows = 128;
constexpr int kTileColumns = 64;
constexpr int kTileBytes = kTileRows * kTileColumns * 2;
constexpr int kChunk = 8;  // columns of 16 bytes

// A field of 8 bytes whose low half is an F32.
struct Float {
  float value;
  float padding;
};

// Where a matrix of 16-bit elements takes its chunks.
struct Target {
  char* base;
  int64_t stride;  // plain: bytes of a row; tiled: tiles of a row
  int64_t tile_bytes = kTileBytes;  // less where all rows stand in fewer than 128

  template <bool Tiled>
  __device__ __forceinline__ uint4* chunk(int64_t row, int64_t chunk) const {
    if (!Tiled) return reinterpret_cast<uint4*>(base + row * stride + chunk * 16);
    const int64_t tile = (row / kTileRows) * stride + chunk / 8;
    return reinterpret_cast<uint4*>(base + tile * tile_bytes + row % kTileRows * 128 +
                                    ((chunk ^ row) & 7) * 16);
  }
};

__device__ __forceinline__ unsigned pair_of(float low, float high, __nv_bfloat16) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&both);
}

__device__ __forceinline__ unsigned pair_of(float low, float high, __half) {
  const __half2 both = __floats2half2_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&both);
}

template <class Element>
__device__ __forceinline__ uint4 chunk_of(const float (&v)[kChunk]) {
  return make_uint4(pair_of(v[0], v[1], Element()), pair_of(v[2], v[3], Element()),
                    pair_of(v[4], v[5], Element()), pair_of(v[6], v[7], Element()));
}

__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                    __nv_bfloat16) {
  mma_bf16(d, a, b);
}
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                    __half) {
  mma_f16(d, a, b);
}

// What BF16 leaves of each value.
__device__ __forceinline__ void keep_remainders(float (&v)[kChunk]) {
#pragma unroll
  for (int i = 0; i < kChunk; i++) v[i] -= __bfloat162float(__float2bfloat16_rn(v[i]));
}

}  // namespace corral
