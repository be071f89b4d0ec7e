// Products with very many rows, in F16: weights become values in registers, activations are F16 rows.
//
// Sums are F32 and stay in the tensor cores' registers, so that nothing is done a group and row of the
// batch but multiply; integer sums would be scaled one by one.
#pragma once

#include "products.cuh"

namespace corral {

// Weights are kept 128 times as large, so that small scales are no subnormal numbers.
constexpr float kHalfScale = 128.0f;

inline uint32_t half_bits(__half2 value) { return *reinterpret_cast<uint32_t*>(&value); }
inline __half2 as_half2(uint32_t bits) { return *reinterpret_cast<__half2*>(&bits); }

// Bytes 0 and 2 of a word, or with Odd 1 and 3, as code · scale + offset.
template <class W, bool Odd>
inline uint32_t weight_pair(uint32_t codes, __half2 scale, __half2 offset) {
  const uint32_t bytes = (Odd ? codes >> 8 : codes) & 0x00FF00FFu;
  const __half2 zero = __float2half2_rn(-1024.0f - W::zero), one = __float2half2_rn(1.0f);
  const __half2 code = __hfma2(as_half2(bytes | 0x64006400u), one, zero);
  return half_bits(__hfma2(code, scale, offset));
}

// totals += groups first … first + Groups − 1 of `chunk` (one a row block) × rows of F16. Of each 16
// columns the rows have the even ones first; `rows` is where row 0 has the chunk.
template <class W, int Tiles, int RowBlocks, int Groups, bool IsWhole, int Stride>
inline void multiply_halves(const uint8_t* const (&chunk)[RowBlocks], int first, int groups,
                            const uint8_t* rows, Lane lane,
                            float (&totals)[RowBlocks][Tiles][4]) {
  const int number_of_lane = threadIdx.x & 31;
  const uint8_t* matrices = rows + number_of_lane % 8 * Stride + number_of_lane / 8 * 16;
  float2 factor[RowBlocks], shift[RowBlocks];
#pragma unroll
  for (int j = 0; j < RowBlocks; j++) {
    factor[j] = shift[j] = {kHalfScale, kHalfScale};
    if constexpr (W::has_spans) {
      const float2 scale = W::super_scale(chunk[j], lane);
      factor[j] = {scale.x * kHalfScale, scale.y * kHalfScale};
      if constexpr (W::has_offset) {
        const float2 offset = W::super_offset(chunk[j], lane);
        shift[j] = {offset.x * kHalfScale, offset.y * kHalfScale};
      }
    }
  }
#pragma unroll 1
  for (int i = 0; i < Groups; i++) {
    const int number = first + i;
    if (!IsWhole && number >= groups) break;
    uint32_t a[RowBlocks][2][4];
#pragma unroll
    for (int j = 0; j < RowBlocks; j++) {
      const uint8_t* group = chunk[j] + W::super_bytes + number * W::group_bytes;
      uint32_t codes[4];
      W::template codes<true>(group, lane, codes);
      __half2 offset[2] = {};
      if constexpr (W::has_offset) {
        const float2 value = W::offset(group, lane);
        offset[0] = __float2half2_rn(value.x * shift[j].x);
        offset[1] = __float2half2_rn(value.y * shift[j].y);
      }
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float2 value = W::scale(group, W::parts == 2 ? half : 0, lane);
        const __half2 x = __float2half2_rn(value.x * factor[j].x);
        const __half2 y = __float2half2_rn(value.y * factor[j].y);
        a[j][half][0] = weight_pair<W, false>(codes[2 * half], x, offset[0]);
        a[j][half][1] = weight_pair<W, false>(codes[2 * half + 1], y, offset[1]);
        a[j][half][2] = weight_pair<W, true>(codes[2 * half], x, offset[0]);
        a[j][half][3] = weight_pair<W, true>(codes[2 * half + 1], y, offset[1]);
      }
    }
#pragma unroll
    for (int t = 0; t < Tiles; t++) {
      uint32_t b[4];
      load_matrices(b, matrices + t * 8 * Stride + number * (2 * kGroup));
#pragma unroll
      for (int j = 0; j < RowBlocks; j++) {
        mma_half(totals[j][t], a[j][0], b[0], b[1]);
        mma_half(totals[j][t], a[j][1], b[2], b[3]);
      }
    }
  }
}

}  // namespace corral
