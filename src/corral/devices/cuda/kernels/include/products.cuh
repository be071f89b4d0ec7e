// Products of packed weights with rows of activations, one chunk of columns at a time.
//
// Activations stand in shared memory as virtual columns of a tensor-core product: one a row and
// plane of codes. A product has Tiles × 8 of them, and a lane gets
//   one plane    virtual columns 8t + 2c, 8t + 2c + 1 of each of its two rows: four values a tile;
//   two planes   columns 4t + c, high and low plane put together: two values a tile;
//   Single       column 0 alone: two values.
//
// Integer sums begin at the bits of 1.5 · 2^23, so they are floats already: that constant plus the
// sum. One multiply-add by the activation's scale, of which two bits are cut to make it exact,
// removes the constant.
#pragma once

#include "fragments.cuh"

namespace corral {

constexpr int32_t kStart = 0x4B400000;
constexpr float kStartValue = 12582912.0f;

template <int Planes, bool Single>
struct Values {
  static constexpr int columns = Planes == 2 || Single ? 1 : 2;  // of the lane in a tile
  static constexpr int count = 2 * columns;                      // values a tile

  static int row(Lane lane, int value) { return 2 * lane.g + value / columns; }
  static int column(Lane lane, int tile, int value) {
    if constexpr (Planes == 2) return 4 * tile + lane.c;
    else if constexpr (Single) return lane.c;  // only that of c = 0 means anything
    else return 8 * tile + 2 * lane.c + value % 2;
  }
};

// Scale and sum of one column of activations; `bias` takes the constant of the sums away.
struct ColumnScale {
  float scale, bias, sum;

  void set(float raw_scale, float raw_sum) {
    scale = __uint_as_float(__float_as_uint(raw_scale) & ~3u);
    bias = -kStartValue * scale;
    sum = raw_sum;
  }
};

template <int Planes, bool Single>
struct Flush {
  using V = Values<Planes, Single>;

  // sums += scale of the row × scale of the column × what the tensor cores summed
  static void add(const int32_t (&d)[4], float2 scale, const ColumnScale (&x)[V::columns],
                  float (&sums)[V::count]) {
    if constexpr (Planes == 2) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float high = __int_as_float(d[2 * r]) - kStartValue;
        const float low = fmaf(__int_as_float(d[2 * r + 1]), x[0].scale, x[0].bias);
        const float value = fmaf(high, 256.0f * x[0].scale, low);
        sums[r] = fmaf(r ? scale.y : scale.x, value, sums[r]);
      }
    } else {
#pragma unroll
      for (int v = 0; v < V::count; v++) {
        const int i = v % V::columns, r = v / V::columns;
        const float value = fmaf(__int_as_float(d[2 * r + i]), x[i].scale, x[i].bias);
        sums[v] = fmaf(r ? scale.y : scale.x, value, sums[v]);
      }
    }
  }

  static void add_offset(float2 offset, const ColumnScale (&x)[V::columns],
                         float (&sums)[V::count]) {
#pragma unroll
    for (int v = 0; v < V::count; v++) {
      const int i = v % V::columns, r = v / V::columns;
      sums[v] = fmaf(r ? offset.y : offset.x, x[i].sum, sums[v]);
    }
  }
};


// totals += rows of `chunk` (one a row block) × x, for integer codes.
template <class W, int Planes, bool Single, int Tiles, int RowBlocks, class X>
inline void multiply_codes(const uint8_t* const (&chunk)[RowBlocks], int first_group, int groups,
                           X& x, Lane lane,
                           float (&totals)[RowBlocks][Tiles][Values<Planes, Single>::count]) {
  using F = Flush<Planes, Single>;
  constexpr int kCount = Values<Planes, Single>::count;
  constexpr bool kDeferred = W::has_spans && Tiles == 1;
  float scaled[RowBlocks][kCount] = {}, shifted[RowBlocks][kCount] = {};
  float2 super_scale[RowBlocks], super_offset[RowBlocks];
  if constexpr (W::has_spans) {
#pragma unroll
    for (int j = 0; j < RowBlocks; j++) {
      super_scale[j] = W::super_scale(chunk[j], lane);
      if constexpr (W::has_offset) super_offset[j] = W::super_offset(chunk[j], lane);
    }
  }
#pragma unroll
  for (int i = 0; i < X::max_groups; i++) {
    const int number = first_group + i;
    if (!X::is_whole && number >= groups) break;
    uint32_t a[RowBlocks][4];
    float2 scale[RowBlocks][W::parts], offset[RowBlocks];
#pragma unroll
    for (int j = 0; j < RowBlocks; j++) {
      const uint8_t* group = chunk[j] + W::super_bytes + number * W::group_bytes;
      W::codes(group, lane, a[j]);
#pragma unroll
      for (int p = 0; p < W::parts; p++) {
        scale[j][p] = W::scale(group, p, lane);
        if constexpr (W::has_spans && !kDeferred) {
          scale[j][p].x *= super_scale[j].x, scale[j][p].y *= super_scale[j].y;
        }
      }
      if constexpr (W::has_offset) {
        offset[j] = W::offset(group, lane);
        if constexpr (W::has_spans && !kDeferred) {
          offset[j].x *= super_offset[j].x, offset[j].y *= super_offset[j].y;
        }
      }
    }
#pragma unroll
    for (int t = 0; t < Tiles; t++) {
      const uint32_t b0 = x.code(number, t, 0), b1 = x.code(number, t, 1);
      ColumnScale columns[F::V::columns];
      x.scales(number, t, columns);
#pragma unroll
      for (int j = 0; j < RowBlocks; j++) {
        float(&sums)[kCount] = kDeferred ? scaled[j] : totals[j][t];
        int32_t d[4];
        if constexpr (W::parts == 1) {
          mma_k32<W::is_signed>(d, a[j], b0, b1, kStart);
          F::add(d, scale[j][0], columns, sums);
        } else {
          mma_k16<W::is_signed>(d, a[j][0], a[j][1], b0, kStart);
          F::add(d, scale[j][0], columns, sums);
          mma_k16<W::is_signed>(d, a[j][2], a[j][3], b1, kStart);
          F::add(d, scale[j][1], columns, sums);
        }
        if constexpr (W::has_offset) {
          F::add_offset(offset[j], columns, kDeferred ? shifted[j] : totals[j][t]);
        }
      }
    }
  }
  if constexpr (kDeferred) {
#pragma unroll
    for (int j = 0; j < RowBlocks; j++) {
#pragma unroll
      for (int v = 0; v < kCount; v++) {
        const int r = v / Values<Planes, Single>::columns;
        float& total = totals[j][0][v];
        total = fmaf(r ? super_scale[j].y : super_scale[j].x, scaled[j][v], total);
        if constexpr (W::has_offset) {
          total = fmaf(r ? super_offset[j].y : super_offset[j].x, shifted[j][v], total);
        }
      }
    }
  }
}

// The same for float weights and rows of F32.
template <class W, int Tiles, int RowBlocks, class X>
inline void multiply_floats(const uint8_t* const (&chunk)[RowBlocks], int first_group, int groups,
                            X& x, Lane lane, float (&totals)[RowBlocks][Tiles][4]) {
#pragma unroll 4
  for (int i = 0; i < X::max_groups; i++) {
    const int number = first_group + i;
    if (!X::is_whole && number >= groups) break;
    uint32_t a[RowBlocks][4];
#pragma unroll
    for (int j = 0; j < RowBlocks; j++) {
      W::values(chunk[j] + number * W::group_bytes, lane, a[j]);
    }
#pragma unroll
    for (int t = 0; t < Tiles; t++) {
      const float2 b = x.values(number, t);
      const uint32_t b0 = to_tf32(b.x), b1 = to_tf32(b.y);
#pragma unroll
      for (int j = 0; j < RowBlocks; j++) mma_tf32(totals[j][t], a[j], b0, b1);
    }
  }
}

}  // namespace corral
