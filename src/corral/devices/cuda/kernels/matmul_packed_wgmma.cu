// Packed weights times 9 to 128 rows of a batch on sm_90a: weights become BF16 in registers and are
// the left operand of wgmma, rows of the batch are tiles of a left factor (tiles.cuh) and the right
// one.
//
//     one warp     weights and rows of a stage ──▶ shared memory    runs ahead of the products
//     warpgroups   weights ──▶ registers of BF16 ──▶ 64 × N sums
//
// A warpgroup has 64 rows of weights, a warp one row block of them; where a result is gated, it has
// 64 of gate and the same 64 of up. RowGroups warpgroups stand side by side and share the rows of
// the batch; Depth of these take turns with the columns, and so do Split blocks of a cluster. Their
// sums meet in shared memory, always in the same order.
//
// A tile of rows has N of them, not 128, so that what a stage needs of them lies side by side.
#include "include/fragments.cuh"
#include "include/matmul_fields.cuh"
#include "include/ptx_hopper.cuh"

namespace corral {

constexpr int kTile = 64;  // columns of a tile of rows
constexpr int kWarpgroup = 128;

#if CORRAL_HAS_WGMMA

// Two values of BF16 in a word.
using Pair = __nv_bfloat162;

inline uint32_t bits_of(Pair pair) { return *reinterpret_cast<uint32_t*>(&pair); }
inline Pair pair_of(uint32_t bits) { return *reinterpret_cast<Pair*>(&bits); }
inline Pair low_twice(uint32_t pair) { return __low2bfloat162(pair_of(pair)); }
inline Pair high_twice(uint32_t pair) { return __high2bfloat162(pair_of(pair)); }

// Where a lane finds the columns that wgmma wants of it: 2c, 2c + 1, 2c + 8 and 2c + 9 of each 16.
// They lie in two chunks of four; `order` puts them as 2c, 2c + 8, 2c + 1, 2c + 9.
struct Column {
  int first, second;
  uint32_t order;

  explicit Column(Lane lane)
      : first(lane.c / 2), second(lane.c / 2 + 2), order(lane.c % 2 ? 0x7362u : 0x5140u) {}

  uint32_t ordered(uint32_t a, uint32_t b) const { return __byte_perm(a, b, order); }
};

// A byte in the low half of a word of BF16 is byte · 2^-133: its lowest exponents continue each other.
// So codes are values as they stand, and the power of two goes into their scale. What is left of it
// is taken off the sums, so that no scale is too great.
constexpr float kCodeUnit = 0x1p103f, kSumUnit = 0x1p30f;

// Words that would else be made anew each time.
struct Masks {
  uint32_t low = in_register(0x000F000Fu), high = in_register(0x00F000F0u),
           bytes = in_register(0x00FF00FFu);
};

// Codes of a row in a group of 32 columns, one a byte: of the first 16 columns, and the others.
struct RowCodes {
  uint32_t low, high;
};

template <class W>
inline void codes_of_rows(const uint8_t* group, Lane lane, Column at, RowCodes (&rows)[2]) {
  const uint8_t* plane = group + W::head_bytes;
  const uint2 one = W::words(plane, at.first, lane), two = W::words(plane, at.second, lane);
  const uint32_t x = at.ordered(one.x, two.x), y = at.ordered(one.y, two.y);
  if constexpr (W::bits == 8) {
    const uint2 three = W::words(plane, 4 + at.first, lane);
    const uint2 four = W::words(plane, 4 + at.second, lane);
    rows[0] = {x, at.ordered(three.x, four.x)};
    rows[1] = {y, at.ordered(three.y, four.y)};
    return;
  }
  if constexpr (W::bits == 4) {  // the other nibbles are masked out later
    rows[0] = {x, x};
    rows[1] = {y, y};
    return;
  }
  rows[0] = {x & 0x0F0F0F0Fu, x >> 4 & 0x0F0F0F0Fu};
  rows[1] = {y & 0x0F0F0F0Fu, y >> 4 & 0x0F0F0F0Fu};
  const uint8_t* top_plane = plane + 4 * 4 * kRows;
  if constexpr (W::bits == 5) {
    const uint2 top = W::words(top_plane, 0, lane);
    const uint32_t tops[2] = {at.ordered(top.x >> at.first, top.x >> at.second),
                              at.ordered(top.y >> at.first, top.y >> at.second)};
#pragma unroll
    for (int i = 0; i < 2; i++) {
      rows[i].low |= tops[i] << 4 & 0x10101010u;
      rows[i].high |= tops[i] & 0x10101010u;
    }
  }
  if constexpr (W::bits == 6) {
    const uint2 low = W::words(top_plane, 0, lane), high = W::words(top_plane, 1, lane);
    const int one_by = 2 * at.first, two_by = 2 * at.second;
    rows[0].low |= at.ordered(low.x >> one_by, low.x >> two_by) << 4 & 0x30303030u;
    rows[0].high |= at.ordered(high.x >> one_by, high.x >> two_by) << 4 & 0x30303030u;
    rows[1].low |= at.ordered(low.y >> one_by, low.y >> two_by) << 4 & 0x30303030u;
    rows[1].high |= at.ordered(high.y >> one_by, high.y >> two_by) << 4 & 0x30303030u;
  }
}

// Where codes have an offset, the middle of their range: there, rounding a scale shall cost nothing.
template <class W>
constexpr int middle = W::has_offset ? 1 << (W::bits - 1) : 0;

// Bytes 0 and 2 of a word as codes · 2^-133, or nibbles: those above, Half 1, are 16 times as much.
template <class W, int Half>
inline Pair codes_of(uint32_t word, Masks with) {
  return pair_of(word & (W::bits > 4 ? with.bytes : Half ? with.high : with.low));
}

// The scales (and offsets) of the two groups of a tile, for a lane's two rows: lane 4g + c knows
// those of tile c of a chunk, and gives them to the others when that tile's turn has come.
template <class W>
struct Scales {
  static constexpr int offsets = W::has_offset ? 1 : 0;
  uint32_t scale[2][W::parts], offset[2][1];
  float2 factor, shift;  // of the span

  void of_span(const uint8_t* chunk, Lane lane) {
    factor = {kCodeUnit, kCodeUnit}, shift = {1.0f / kSumUnit, 1.0f / kSumUnit};
    if constexpr (W::has_spans) {
      factor = scaled(W::super_scale(chunk, lane), kCodeUnit);
      if constexpr (W::has_offset) shift = scaled(W::super_offset(chunk, lane), 1.0f / kSumUnit);
    }
  }

  static float2 scaled(float2 v, float by) { return {v.x * by, v.y * by}; }
  static uint32_t rounded(float2 v) { return bits_of(__floats2bfloat162_rn(v.x, v.y)); }

  void of_tile(const uint8_t* groups, int tile, Lane lane) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const uint8_t* group = groups + (2 * tile + h) * W::group_bytes;
      float2 value;
#pragma unroll
      for (int part = 0; part < W::parts; part++) {
        value = W::scale(group, part, lane);
        value = {value.x * factor.x, value.y * factor.y};
        scale[h][part] = rounded(value);
      }
      if constexpr (W::has_offset) {
        constexpr float kMiddle = middle<W> / kCodeUnit / kSumUnit;
        const float2 least = W::offset(group, lane);
        const float2 kept = __bfloat1622float2(pair_of(scale[h][0]));
        offset[h][0] = rounded({fmaf(value.x - kept.x, kMiddle, least.x * shift.x),
                                fmaf(value.y - kept.y, kMiddle, least.y * shift.y)});
      }
    }
  }
};

// A group as it lies in shared memory: read while the one before is multiplied.
template <class W>
struct Group {
  RowCodes rows[2];
  uint32_t scale[W::parts], offset;

  void read(const uint8_t* group, Lane lane, Column at, const Scales<W>& scales, int h, int tile) {
    const int from = (threadIdx.x & 28) | tile;
    codes_of_rows<W>(group, lane, at, rows);
#pragma unroll
    for (int part = 0; part < W::parts; part++) {
      scale[part] = __shfl_sync(~0u, scales.scale[h][part], from);
    }
    if constexpr (W::has_offset) offset = __shfl_sync(~0u, scales.offset[h][0], from);
  }

  // Its weights as the left operands of two steps of 16 columns.
  void weights(Masks with, uint32_t (&a)[2][4]) const {
    Pair by[2], from[2] = {};
    if constexpr (W::has_offset) from[0] = low_twice(offset), from[1] = high_twice(offset);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      if (half == 0 || W::parts == 2) {
        by[0] = low_twice(scale[half % W::parts]), by[1] = high_twice(scale[half % W::parts]);
        if constexpr (!W::has_offset) {
          const Pair zero = __float2bfloat162_rn(-W::zero * 0x1p-133f);
          from[0] = __hmul2(by[0], zero), from[1] = __hmul2(by[1], zero);
        }
      }
      if (half == 1 && W::bits == 4) {
        const Pair part = __float2bfloat162_rn(0.0625f);
        by[0] = __hmul2(by[0], part), by[1] = __hmul2(by[1], part);
      }
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const uint32_t word = half ? rows[i].high : rows[i].low;
        const Pair even = half ? codes_of<W, 1>(word, with) : codes_of<W, 0>(word, with);
        const Pair odd = half ? codes_of<W, 1>(word >> 8, with) : codes_of<W, 0>(word >> 8, with);
        a[half][i] = bits_of(__hfma2(even, by[i], from[i]));
        a[half][2 + i] = bits_of(__hfma2(odd, by[i], from[i]));
      }
    }
  }
};

// Multiplies parts First … Last − 1 of a launch.
template <class W, int N, int RowGroups, int Depth, int Split, int Tiles, int Stages, int Residents,
          int Columns, Result Kind, Gating Activation, int First = 0, int Last = kMaxParts>
struct Packed {
  static constexpr int operands = Kind == Result::plain ? 1 : 2;  // of a warpgroup, 64 rows each
  static constexpr int warps = 4 * RowGroups * Depth;
  static_assert(warps == 8 || warps == 16, "registers are shared out among two or four warpgroups");
  static_assert(Residents == 1 || warps == 8, "two blocks have no registers for more");
  static constexpr int blocks = 4 * RowGroups * operands;  // row blocks of a unit
  static constexpr int chunk_tiles = W::columns / kTile;
  static constexpr int pieces = chunk_tiles / Tiles;  // stages of a chunk
  static constexpr int tiles = Columns / kTile, chunks = (tiles + chunk_tiles - 1) / chunk_tiles;
  static constexpr int tile_bytes = 2 * W::group_bytes;  // of a row block
  static constexpr int64_t block_bytes =
      static_cast<int64_t>(tiles) * tile_bytes + (W::has_spans ? chunks * W::super_bytes : 0);
  static constexpr int piece_bytes = W::super_bytes + Tiles * tile_bytes;
  static constexpr int rows_bytes = N * 128;  // of a tile
  static constexpr int weights_at = Tiles * rows_bytes;
  static constexpr int stage_bytes = (weights_at + blocks * piece_bytes + 1023) / 1024 * 1024;
  static constexpr int sums = N / 2;
  static constexpr int spare = Depth - 1 + Split - 1;  // sums that meet others
  static constexpr int spare_bytes = sums * operands * kWarpgroup * 4;
  static constexpr int spare_at = Stages * stage_bytes;
  static constexpr int barriers_at = spare_at + RowGroups * spare * spare_bytes;
  static_assert(Columns % kTile == 0, "whole tiles");
  static_assert(Tiles == chunk_tiles || 2 * Tiles == chunk_tiles, "stages are chunks, or half");
  using Places = Units<blocks, Kind, First, Last>;
  using Sums = float[operands][sums];

  const MatmulFields& f;
  uint8_t* shared;
  uint64_t *full, *empty;
  int units, rank, own;  // own: chunks of the block, of those that its cluster shares out
  int first_unit, units_apart;

  // Block `block` of so many that multiply these parts.
  Packed(const MatmulFields& fields, int block, int count) : f(fields) {
    shared = dynamic_shared();
    shared += (1024 - shared_address(shared) % 1024) % 1024;
    full = reinterpret_cast<uint64_t*>(shared + barriers_at);
    empty = full + Stages;
    units = Places::count(f);
    rank = Split > 1 ? block % Split : 0;
    first_unit = block / Split, units_apart = count / Split;
    own = (chunks - rank + Split - 1) / Split;
  }

  static int tiles_in(int chunk, int piece) {
    const int left = tiles - chunk * chunk_tiles - piece * Tiles;
    return left < 0 ? 0 : left < Tiles ? left : Tiles;
  }

  // --- copies ---

  // Lane j copies row block j, and one of them the rows.
  void fetch(int unit, int chunk, int piece, int slot, bool weights, bool rows, uint64_t policy) {
    const int lane = threadIdx.x & 31, count = tiles_in(chunk, piece);
    const int head = piece == 0 ? 0 : W::super_bytes;
    const int size = count ? count * tile_bytes + W::super_bytes - head : 0;
    uint8_t* to = shared + slot * stage_bytes;
    if (weights) {
      if (lane == 0) barrier_arrive_expect(full + slot, blocks * size + count * rows_bytes);
      __syncwarp();
      if (lane < blocks && size > 0) {
        int p, block;
        Places::locate(f, unit, lane, p, block);
        const uint8_t* from = f.parts[p].weights +
                              min(block, Places::blocks(f.parts[p]) - 1) * block_bytes +
                              static_cast<int64_t>(chunk) * W::chunk_bytes;
        from += head + piece * Tiles * tile_bytes;
        bulk_copy(to + weights_at + lane * piece_bytes + head, from, size, full + slot, policy);
      }
    }
    if (rows && lane == 0 && count > 0) {
      const int64_t first = chunk * chunk_tiles + piece * Tiles;
      bulk_copy(to, f.x + first * rows_bytes, count * rows_bytes, full + slot);
    }
  }

  // Calls `work(unit, chunk, piece)` for every stage that the block goes through, empty ones too.
  template <class Work>
  void for_stages(Work work) {
    for (int unit = first_unit; unit < units; unit += units_apart) {
      for (int i = 0; i < own; i++) {
#pragma unroll
        for (int piece = 0; piece < pieces; piece++) work(unit, i * Split + rank, piece);
      }
    }
  }

  // Weights of the first stages are on their way before the rows are there.
  void copy_all() {
    const uint64_t policy = evict_first_policy();
    int number = 0;
    for_stages([&](int unit, int chunk, int piece) {
      if (number < Stages) fetch(unit, chunk, piece, number, true, false, policy);
      number++;
    });
    wait_for_previous();
    int slot = 0, parity = 1, seen = 0;
    for_stages([&](int unit, int chunk, int piece) {
      if (seen >= Stages) barrier_wait(empty + slot, parity);
      fetch(unit, chunk, piece, slot, seen >= Stages, true, policy);
      seen++;
      if (++slot == Stages) slot = 0, parity ^= 1;
    });
  }

  // --- products ---

  static void release(uint64_t* barrier) {
    if (barrier && (threadIdx.x & 31) == 0) barrier_arrive(barrier);
  }

  // Multiplies a stage. Its rows are read until the products are done, so the next one releases it,
  // as `before`; where other warpgroups go on meanwhile, it is released at once.
  void multiply(const uint8_t* stage, int count, bool has_span, int row_group, Lane lane, Column at,
                Masks with, Scales<W> (&scales)[operands], Sums& totals, uint64_t*& before,
                uint64_t* mine) {
    const uint8_t* weights[operands];
#pragma unroll
    for (int o = 0; o < operands; o++) {
      const int block = (o * RowGroups + row_group) * 4 + (threadIdx.x / 32 & 3);
      const uint8_t* piece = stage + weights_at + block * piece_bytes;
      if (has_span) scales[o].of_span(piece, lane);
      weights[o] = piece + W::super_bytes;
      scales[o].of_tile(weights[o], max(min(lane.c, count - 1), 0), lane);
    }
    Group<W> group[operands];
    if (count > 0) {
#pragma unroll
      for (int o = 0; o < operands; o++) group[o].read(weights[o], lane, at, scales[o], 0, 0);
    }
    const uint64_t rows = common_factor_at(stage);
#pragma unroll
    for (int tile = 0; tile < Tiles; tile++) {
      if (tile >= count) break;
#pragma unroll
      for (int h = 0; h < 2; h++) {
        uint32_t a[operands][2][4];
#pragma unroll
        for (int o = 0; o < operands; o++) {
          const Group<W> now = group[o];
          const int next = min(2 * tile + h + 1, 2 * Tiles - 1);  // beyond the last, nobody looks
          group[o].read(weights[o] + next * W::group_bytes, lane, at, scales[o], next % 2, next / 2);
          now.weights(with, a[o]);
        }
        products_begin();
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const uint64_t b = factor_behind(rows, tile * rows_bytes + 64 * h + 32 * half);
#pragma unroll
          for (int o = 0; o < operands; o++) multiply_add_columns(totals[o], a[o][half], b);
        }
        products_commit();
        products_wait<1>();
      }
      release(before);
      before = nullptr;
    }
    if (before) {  // there was nothing to multiply
      products_wait<0>();
      release(before);
    }
    before = mine;
    if constexpr (Depth > 1) {
      products_wait<0>();
      release(before);
      before = nullptr;
    }
  }

  void multiply_all() {
    const int group = threadIdx.x / kWarpgroup, row_group = group % RowGroups;
    const int depth = group / RowGroups;
    const Lane lane;
    const Column at(lane);
    const Masks with;
    int slot = 0, parity = 0, number = 0;  // of chunks; a slot is always of the same warpgroup
    const int count = static_cast<int>(*f.count);
    if constexpr (Split > 1) cluster_wait();
    for (int unit = first_unit; unit < units; unit += units_apart) {
      Sums totals = {};
      Scales<W> scales[operands];
      uint64_t* before = nullptr;
      for (int i = 0; i < own; i++, number++) {
#pragma unroll
        for (int piece = 0; piece < pieces; piece++) {
          if (number % Depth == depth) {
            barrier_wait(full + slot, parity);
            multiply(shared + slot * stage_bytes, tiles_in(i * Split + rank, piece), piece == 0,
                     row_group, lane, at, with, scales, totals, before, empty + slot);
          }
          if (++slot == Stages) slot = 0, parity ^= 1;
        }
      }
      products_wait<0>();
#pragma unroll
      for (int o = 0; o < operands; o++) {
        settle(totals[o]);
#pragma unroll
        for (int i = 0; i < sums; i++) totals[o][i] *= kSumUnit;
      }
      release(before);
      gather(depth, row_group, totals);
      if (depth == 0 && rank == 0) store(unit, row_group, lane, count, totals);
    }
  }

  float* spare_of(int row_group, int number) {
    return reinterpret_cast<float*>(shared + spare_at + (row_group * spare + number) * spare_bytes) +
           threadIdx.x % kWarpgroup;
  }

  static void keep(float* at, const Sums& totals) {
#pragma unroll
    for (int o = 0; o < operands; o++) {
#pragma unroll
      for (int i = 0; i < sums; i++) at[(o * sums + i) * kWarpgroup] = totals[o][i];
    }
  }

  static void add(const float* at, Sums& totals) {
#pragma unroll
    for (int o = 0; o < operands; o++) {
#pragma unroll
      for (int i = 0; i < sums; i++) totals[o][i] += at[(o * sums + i) * kWarpgroup];
    }
  }

  // Adds up what the warpgroups of the same rows have, in the first of them; then what the other
  // blocks of the cluster have, in the first of those.
  void gather(int depth, int row_group, Sums& totals) {
    if constexpr (Depth > 1) {
      if (depth > 0) keep(spare_of(row_group, depth - 1), totals);
      named_barrier_sync(1 + row_group, Depth * kWarpgroup);
      if (depth == 0) {
#pragma unroll 1
        for (int d = 1; d < Depth; d++) add(spare_of(row_group, d - 1), totals);
      }
      if (units > units_apart) named_barrier_sync(1 + row_group, Depth * kWarpgroup);
    }
    if constexpr (Split > 1) {
      if (rank > 0 && depth == 0) {
        const uint32_t at = address_in_block(spare_of(row_group, Depth - 2 + rank), 0);
#pragma unroll
        for (int o = 0; o < operands; o++) {
#pragma unroll
          for (int i = 0; i < sums; i++) {
            store_in_block(at + (o * sums + i) * kWarpgroup * 4, totals[o][i]);
          }
        }
      }
      cluster_arrive();
      cluster_wait();
      if (rank == 0 && depth == 0) {
#pragma unroll 1
        for (int r = 1; r < Split; r++) add(spare_of(row_group, Depth - 2 + r), totals);
      }
    }
  }

  // --- results ---

  void store(int unit, int row_group, Lane lane, int count, const Sums& totals) {
    const int j = row_group * 4 + (threadIdx.x / 32 & 3);
    int p, block;
    Places::locate(f, unit, j, p, block);
    const MatmulPart& part = f.parts[p];
    const int row = block * kRows + 2 * lane.g, rows = static_cast<int>(part.rows);
    if constexpr (Kind == Result::plain) {
      store_rows(part, row, rows, lane, count, totals[0]);
    } else {
      store_gated(part, row, rows, lane, count, totals);
    }
  }

  // A lane has two neighbours of each row of the batch: of one where there is but one, or where
  // pairs are not aligned, each for itself.
  void store_rows(const MatmulPart& part, int row, int rows, Lane lane, int count,
                  const float (&totals)[sums]) {
    if (row >= rows) return;
    const bool is_pair = row + 1 < rows && (part.out_stride | part.residual_stride |
                                            reinterpret_cast<int64_t>(part.out) |
                                            reinterpret_cast<int64_t>(part.residual)) % 8 == 0;
    const float2 bias = {part.bias ? part.bias[row] : 0.0f,
                         part.bias && row + 1 < rows ? part.bias[row + 1] : 0.0f};
    constexpr int kRun = 4;
#pragma unroll
    for (int run = 0; run < N / 8; run += kRun / 2) {
      float2 y[kRun];
#pragma unroll
      for (int i = 0; i < kRun; i++) {
        const int n = 8 * (run + i / 2) + 2 * lane.c + i % 2;
        y[i] = bias;
        if (part.residual == nullptr || n >= count) continue;
        const uint8_t* more = part.residual + part.residual_stride * n + 4 * row;
        if (is_pair) {
          const float2 two = *reinterpret_cast<const float2*>(more);
          y[i].x += two.x, y[i].y += two.y;
        } else {
          y[i].x += reinterpret_cast<const float*>(more)[0];
          if (row + 1 < rows) y[i].y += reinterpret_cast<const float*>(more)[1];
        }
      }
#pragma unroll
      for (int i = 0; i < kRun; i++) {
        const int j = run + i / 2, n = 8 * j + 2 * lane.c + i % 2;
        if (n >= count) continue;
        y[i].x += totals[4 * j + i % 2], y[i].y += totals[4 * j + 2 + i % 2];
        float* out = row_at(part.out, part.out_stride, n) + row;
        if (is_pair) {
          *reinterpret_cast<float2*>(out) = y[i];
        } else {
          out[0] = y[i].x;
          if (row + 1 < rows) out[1] = y[i].y;
        }
      }
    }
  }

  // Gated results are tiles of a left factor; what pads the last tile is zero.
  void store_gated(const MatmulPart& part, int row, int rows, Lane lane, int count,
                   const Sums& totals) {
    const int chunk = row / 8 % 8;
    uint8_t* tile = part.out + static_cast<int64_t>(row / kTile) * rows_bytes + row % 8 * 2;
    if (row >= (rows + kTile - 1) / kTile * kTile) return;
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int n = 8 * j + 2 * lane.c + e;
        if (n >= count) continue;
        const float x = gated_value<Activation>(totals[0][4 * j + e], totals[1][4 * j + e]);
        const float y = gated_value<Activation>(totals[0][4 * j + 2 + e], totals[1][4 * j + 2 + e]);
        const Pair pair = __floats2bfloat162_rn(row < rows ? x : 0.0f, row + 1 < rows ? y : 0.0f);
        *reinterpret_cast<uint32_t*>(tile + n * 128 + ((chunk ^ n) & 7) * 16) = bits_of(pair);
      }
    }
  }

  void run() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < Stages; i++) {
        barrier_init(full + i, 1);
        barrier_init(empty + i, 4 * RowGroups);
      }
      barrier_init_fence();
    }
    __syncthreads();
    if constexpr (Split > 1) cluster_arrive();
    if (threadIdx.x >= 32 * warps) {
      if constexpr (Residents == 1) shrink_registers<warps == 16 ? 32 : 40>();
      if (threadIdx.x < 32 * warps + 32) {
        copy_all();
      } else {
        wait_for_previous();
      }
      if constexpr (Split > 1) {
        cluster_wait();
        cluster_arrive();
        cluster_wait();
      }
    } else {
      if constexpr (Residents == 1) grow_registers<warps == 16 ? 112 : 232>();
      wait_for_previous();
      multiply_all();
    }
  }
};

#endif

// The blocks of a cluster share out the columns of one unit, so a cluster has no more than one.
template <class W, int N, int RowGroups, int Depth, int Split, int Tiles, int Stages, int Residents,
          int Columns, Result Kind, Gating Activation>
__global__ void CORRAL_CLUSTER(Split)
    __launch_bounds__(kWarpgroup * RowGroups * Depth + (Residents == 1 ? kWarpgroup : 32), Residents)
        matmul_packed_wgmma(const __grid_constant__ MatmulFields f) {
#if CORRAL_HAS_WGMMA
  launch_dependents();
  Packed<W, N, RowGroups, Depth, Split, Tiles, Stages, Residents, Columns, Kind, Activation> packed(
      f, blockIdx.x, gridDim.x);
  packed.run();
#endif
}

// Parts of one layout and a last one of another, side by side; every cluster has one unit.
template <class W, class V, int Others, int N, int RowGroups, int Depth, int Split, int Tiles,
          int Stages, int LastStages, int Residents, int Columns>
__global__ void CORRAL_CLUSTER(Split)
    __launch_bounds__(kWarpgroup * RowGroups * Depth + (Residents == 1 ? kWarpgroup : 32), Residents)
        matmul_packed_pair(const __grid_constant__ MatmulFields f) {
#if CORRAL_HAS_WGMMA
  launch_dependents();
  constexpr auto kPlain = Result::plain;
  constexpr auto kNone = Gating::none;
  using Same = Packed<W, N, RowGroups, Depth, Split, Tiles, Stages, Residents, Columns, kPlain, kNone,
                      0, Others>;
  using Other = Packed<V, N, RowGroups, Depth, Split, Tiles, LastStages, Residents, Columns, kPlain,
                       kNone, Others, Others + 1>;
  const int blocks = Same::Places::count(f) * Split;
  if (static_cast<int>(blockIdx.x) < blocks) {
    Same packed(f, blockIdx.x, blocks);
    packed.run();
  } else {
    Other packed(f, blockIdx.x - blocks, gridDim.x - blocks);
    packed.run();
  }
#endif
}

}  // namespace corral
