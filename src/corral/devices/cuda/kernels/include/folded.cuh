// Products with so few rows that a tensor-core product of 8 columns would be mostly empty.
//
// Its columns are filled with different groups of the weights' columns: each instruction sees the
// activations of one group in the columns that are that group's, and zeros in all others, so that a
// set of sums collects several groups side by side. What follows the tensor cores (scales, offsets) is then
// done once a group instead of once a group and idle column.
//
// Column n of a set is group n / per_group, and within it (row, half, plane) from the slowest to
// the fastest; halves are those of groups with two scales.
#pragma once

#include "products.cuh"

namespace corral {

template <class W, int Planes, int Batch>
struct Folded {
  static constexpr int per_row = Planes * W::parts;
  static constexpr int per_group = Batch * per_row;
  static constexpr bool is_possible = per_group <= 8;
  static constexpr int set_groups = is_possible ? 8 / per_group : 1;
  static constexpr int sets = W::groups / set_groups;
  // A lane has two columns: two rows of the batch, or parts of the same.
  static constexpr int lane_rows = per_row == 1 && per_group > 1 ? 2 : 1;
  static constexpr int count = 2 * lane_rows;  // values: weight row × batch row

  int lane_group;      // of a set, as the lane's column of B
  int lane_code;       // where its codes begin, but for the group
  uint32_t mask[set_groups], half_mask[2];
  int sum_group;       // of a set, as the lane's columns of the sums
  int sum_row, sum_half;

  // `stride` lies between virtual columns of codes.
  void init(Lane lane, int stride) {
    const int within = lane.g % per_group, half = within / Planes % W::parts;
    lane_group = lane.g / per_group;
    lane_code = (within / per_row * Planes + within % Planes) * stride + 4 * lane.c;
    if constexpr (W::parts == 2) lane_code += 16 * half;
#pragma unroll
    for (int q = 0; q < set_groups; q++) mask[q] = lane_group == q ? ~0u : 0u;
    half_mask[0] = half == 0 ? ~0u : 0u, half_mask[1] = half == 1 ? ~0u : 0u;
    const int first = 2 * lane.c;
    sum_group = first / per_group;
    sum_row = first % per_group / per_row;
    sum_half = first % per_group / Planes % W::parts;
  }

  // The batch row of a value.
  int row(int value) const { return lane_rows == 2 ? sum_row + value % 2 : sum_row; }
  static int weight_row(Lane lane, int value) { return 2 * lane.g + value / lane_rows; }

  // totals += the lane's rows of a chunk × x; `codes` and `scales` are those of the chunk, scales
  // and sums of group i and row n at i · Batch + n.
  void multiply(const uint8_t* chunk, int groups, bool is_whole, const uint8_t* codes,
                const float* scales, const float* sums, Lane lane, float (&totals)[count]) const {
    float scaled[count] = {}, shifted[count] = {};
#pragma unroll
    for (int s = 0; s < sets; s++) {
      const uint8_t* mine = codes + lane_code + 32 * (s * set_groups + lane_group);
      uint32_t b0 = *reinterpret_cast<const uint32_t*>(mine), b1 = 0;
      if constexpr (W::parts == 1) {
        b1 = *reinterpret_cast<const uint32_t*>(mine + 16);
      } else {
        b1 = b0 & half_mask[1], b0 &= half_mask[0];
      }
      // Two chains of products, so that one need not wait for the other.
      int32_t d[4], other[4];
      uint32_t a[set_groups][4];
#pragma unroll
      for (int q = 0; q < set_groups; q++) {
        const int number = s * set_groups + q;
        if (is_whole || number < groups) {
          W::codes(chunk + W::super_bytes + number * W::group_bytes, lane, a[q]);
        }
      }
#pragma unroll
      for (int q = 0; q < set_groups; q++) {
        const uint32_t c0 = set_groups > 1 ? b0 & mask[q] : b0;
        const uint32_t c1 = set_groups > 1 ? b1 & mask[q] : b1;
        if (q < 2) {
          mma_k32<W::is_signed>(q ? other : d, a[q], c0, c1, q ? 0 : kStart);
        } else {
          mma_k32_more<W::is_signed>(q % 2 ? other : d, a[q], c0, c1);
        }
      }
      if constexpr (set_groups > 1) {
#pragma unroll
        for (int i = 0; i < 4; i++) d[i] += other[i];
      }
      const int number = s * set_groups + sum_group;
      if (is_whole || number < groups) {
        add(chunk + W::super_bytes + number * W::group_bytes, number, d, scales, sums, lane, scaled,
            shifted);
      }
    }
    finish(chunk, lane, scaled, shifted, totals);
  }

 private:
  void add(const uint8_t* group, int number, const int32_t (&d)[4], const float* scales,
           const float* sums, Lane lane, float (&scaled)[count], float (&shifted)[count]) const {
    if constexpr (per_group == 1) {
      // Two groups side by side; a group past the last has codes and scales of no meaning.
      const float2 scale = *reinterpret_cast<const float2*>(scales + number);
      add_one(group, d[0], d[2], scale.x, lane, scaled);
      add_one(group + W::group_bytes, d[1], d[3], scale.y, lane, scaled);
      if constexpr (W::has_offset) {
        const float2 sum = *reinterpret_cast<const float2*>(sums + number);
        const float2 first = W::offset(group, lane), second = W::offset(group + W::group_bytes, lane);
        shifted[0] = fmaf(second.x, sum.y, fmaf(first.x, sum.x, shifted[0]));
        shifted[1] = fmaf(second.y, sum.y, fmaf(first.y, sum.x, shifted[1]));
      }
    } else if constexpr (lane_rows == 2) {
      const float2 two = *reinterpret_cast<const float2*>(scales + number * Batch + sum_row);
      const float2 scale = W::scale(group, 0, lane);
      ColumnScale x[2];
      x[0].set(two.x, 0), x[1].set(two.y, 0);
      Flush<1, false>::add(d, scale, x, scaled);
      if constexpr (W::has_offset) {
        const float2 sum = *reinterpret_cast<const float2*>(sums + number * Batch + sum_row);
        x[0].sum = sum.x, x[1].sum = sum.y;
        Flush<1, false>::add_offset(W::offset(group, lane), x, shifted);
      }
    } else {
      const float scale = scales[number * Batch + sum_row];
      if constexpr (Planes == 2) {
        ColumnScale x[1];
        x[0].set(scale, 0);
        Flush<2, false>::add(d, W::scale(group, sum_half, lane), x, scaled);
      } else {
        add_one(group, d[0], d[2], scale, lane, scaled, 0);
        add_one(group, d[1], d[3], scale, lane, scaled, 1);
      }
      if constexpr (W::has_offset) {
        const float sum = sums[number * Batch + sum_row];
        const float2 offset = W::offset(group, lane);
        shifted[0] = fmaf(offset.x, sum, shifted[0]);
        shifted[1] = fmaf(offset.y, sum, shifted[1]);
      }
    }
  }

  // One column of one plane.
  static void add_one(const uint8_t* group, int32_t first, int32_t second, float x_scale, Lane lane,
                      float (&scaled)[count], int half = 0) {
    ColumnScale x;
    x.set(x_scale, 0);
    const float2 scale = W::scale(group, half, lane);
    scaled[0] = fmaf(scale.x, fmaf(__int_as_float(first), x.scale, x.bias), scaled[0]);
    scaled[1] = fmaf(scale.y, fmaf(__int_as_float(second), x.scale, x.bias), scaled[1]);
  }

  static void finish(const uint8_t* chunk, Lane lane, const float (&scaled)[count],
                     const float (&shifted)[count], float (&totals)[count]) {
    if constexpr (W::has_spans) {
      const float2 scale = W::super_scale(chunk, lane);
#pragma unroll
      for (int v = 0; v < count; v++) {
        totals[v] = fmaf(v / lane_rows ? scale.y : scale.x, scaled[v], totals[v]);
      }
      if constexpr (W::has_offset) {
        const float2 offset = W::super_offset(chunk, lane);
#pragma unroll
        for (int v = 0; v < count; v++) {
          totals[v] = fmaf(v / lane_rows ? offset.y : offset.x, shifted[v], totals[v]);
        }
      }
    } else {
#pragma unroll
      for (int v = 0; v < count; v++) totals[v] += scaled[v] + (W::has_offset ? shifted[v] : 0.0f);
    }
  }

 public:
  // Adds up the lanes that have other groups, halves or planes of the same rows.
  static void gather(float (&totals)[count]) {
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
      if (2 * step >= per_group || 2 * step < per_row) {
#pragma unroll
        for (int v = 0; v < count; v++) totals[v] += __shfl_xor_sync(~0u, totals[v], step);
      }
    }
  }
};

// Float weights are never folded.
struct Unfolded {
  static constexpr bool is_possible = false;
  static constexpr int count = 1;
  void init(Lane, int) {}
  int row(int) const { return 0; }
  static int weight_row(Lane, int) { return 0; }
};

template <class W, int Planes, int Batch, bool IsFloat = W::is_float>
struct FoldedChoice {
  using Type = Folded<W, Planes, Batch>;
};
template <class W, int Planes, int Batch>
struct FoldedChoice<W, Planes, Batch, true> {
  using Type = Unfolded;
};
template <class W, int Planes, int Batch>
using FoldedOf = typename FoldedChoice<W, Planes, Batch>::Type;

}  // namespace corral
