// Products with many rows: four groups of columns at a time, for all tiles of the batch.
#pragma once

#include "products.cuh"

namespace corral {

// A value as two in TF32: 21 bits of it.
struct Halves {
  uint32_t high, low;
  Halves(float value) {
    high = to_tf32(value);
    low = to_tf32(value - __uint_as_float(high));
  }
};

// What a warp reads of the activations of one chunk: `codes` and `scales` are where row 0 has them.
template <int Planes, int Stride, int ScaleStride, int SumsAt>
struct QuadRows {
  using V = Values<Planes, false>;
  const uint8_t* codes;
  const uint8_t* scales;
  int matrix_row, scale_row, sum_row;  // the lane's places in both

  QuadRows(const uint8_t* codes, const uint8_t* scales, Lane lane) : codes(codes), scales(scales) {
    const int number = threadIdx.x & 31;
    matrix_row = number % 8 * Stride + number / 16 * 32 + number / 8 % 2 * 16;
    scale_row = V::columns * lane.c * ScaleStride;
    sum_row = SumsAt + lane.g / Planes * ScaleStride + 4 * lane.c;
  }

  // Both halves of the codes of groups number and number + 1.
  void load(int number, int tile, uint32_t (&b)[4]) const {
    load_matrices(b, codes + matrix_row + tile * 8 * Stride + 32 * number);
  }

  float4 scale(int number, int tile, int i) const {
    return *reinterpret_cast<const float4*>(scales + scale_row + 4 * number +
                                            (tile * 4 * V::columns + i) * ScaleStride);
  }

  // The sum of group number + c of the lane's virtual column.
  float sum(int number, int tile) const {
    return *reinterpret_cast<const float*>(scales + sum_row + 4 * number +
                                           tile * (8 / Planes) * ScaleStride);
  }
};

inline float element(const float4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// totals += offsets × sums of four groups, on tensor cores.
template <int Planes>
inline void add_offsets(float2 offset, float sum, Lane lane,
                        float (&totals)[Values<Planes, false>::count]) {
  if constexpr (Planes == 1) {
    mma_tf32_k4(totals, to_tf32(offset.x), to_tf32(offset.y), to_tf32(sum));
  } else {
    // Both virtual columns of a row of the batch have its sum: one the high part, one the low.
    const Halves x(offset.x), y(offset.y), both(sum);
    float d[4] = {totals[0], 0.0f, totals[1], 0.0f};
    mma_tf32_k4(d, x.high, y.high, lane.g % 2 ? both.low : both.high);
    mma_tf32_k4(d, x.low, y.low, lane.g % 2 ? 0u : both.high);
    totals[0] = d[0] + d[1], totals[1] = d[2] + d[3];
  }
}

// totals += groups first … first + Groups − 1 of `chunk` (one a row block) × x.
template <class W, int Planes, int Tiles, int RowBlocks, int Groups, bool IsWhole, class X>
inline void multiply_quads(const uint8_t* const (&chunk)[RowBlocks], int first, int groups,
                           const X& x, Lane lane,
                           float (&totals)[RowBlocks][Tiles][Values<Planes, false>::count]) {
  using F = Flush<Planes, false>;
  static_assert(Groups % 4 == 0, "groups come in fours");
#pragma unroll 1
  for (int q = 0; q < Groups; q += 4) {
    const int number = first + q;
    uint32_t a[RowBlocks][4][4];
    float2 scale[RowBlocks][4][W::parts], offset[RowBlocks];
#pragma unroll
    for (int j = 0; j < RowBlocks; j++) {
      float2 factor = {1.0f, 1.0f};
      if constexpr (W::has_spans) factor = W::super_scale(chunk[j], lane);
      const uint8_t* quad = chunk[j] + W::super_bytes + number * W::group_bytes;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const uint8_t* group = quad + i * W::group_bytes;
        W::codes(group, lane, a[j][i]);
#pragma unroll
        for (int p = 0; p < W::parts; p++) {
          scale[j][i][p] = W::scale(group, p, lane);
          if constexpr (W::has_spans) {
            scale[j][i][p].x *= factor.x, scale[j][i][p].y *= factor.y;
          }
        }
      }
      if constexpr (W::has_offset) {
        float2 by = {1.0f, 1.0f};
        if constexpr (W::has_spans) by = W::super_offset(chunk[j], lane);
        offset[j] = W::offset(quad + lane.c * W::group_bytes, lane);
        offset[j].x *= by.x, offset[j].y *= by.y;
        if (!IsWhole && number + lane.c >= groups) offset[j] = {0.0f, 0.0f};
      }
    }
#pragma unroll
    for (int t = 0; t < Tiles; t++) {
      uint32_t b[2][4];
      x.load(number, t, b[0]);
      x.load(number + 2, t, b[1]);
      float4 scales[F::V::columns];
#pragma unroll
      for (int i = 0; i < F::V::columns; i++) scales[i] = x.scale(number, t, i);
      if constexpr (W::has_offset) {
        float sum = x.sum(number, t);
        if (!IsWhole && number + lane.c >= groups) sum = 0.0f;
#pragma unroll
        for (int j = 0; j < RowBlocks; j++) {
          add_offsets<Planes>(offset[j], sum, lane, totals[j][t]);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (!IsWhole && number + i >= groups) break;
        ColumnScale columns[F::V::columns];
#pragma unroll
        for (int k = 0; k < F::V::columns; k++) columns[k].set(element(scales[k], i), 0.0f);
        const uint32_t b0 = b[i / 2][i % 2 * 2], b1 = b[i / 2][i % 2 * 2 + 1];
#pragma unroll
        for (int j = 0; j < RowBlocks; j++) {
          int32_t d[4];
          if constexpr (W::parts == 1) {
            mma_k32<W::is_signed>(d, a[j][i], b0, b1, kStart);
            F::add(d, scale[j][i][0], columns, totals[j][t]);
          } else {
            mma_k16<W::is_signed>(d, a[j][i][0], a[j][i][1], b0, kStart);
            F::add(d, scale[j][i][0], columns, totals[j][t]);
            mma_k16<W::is_signed>(d, a[j][i][2], a[j][i][3], b1, kStart);
            F::add(d, scale[j][i][1], columns, totals[j][t]);
          }
        }
      }
    }
  }
}

}  // namespace corral
