// Rows of activations times packed weights, for batches of up to 8 rows: made to read at the speed
// of the memory.
//
// A block takes units of RowBlocks row blocks; its warps share out the columns, a chunk of 256 at a
// time. Each warp keeps its own ring of chunks in shared memory, filled by bulk copies (or, before
// Hopper, by cp.async) that begin before earlier kernels are done: weights do not depend on them. The
// sums of the warps meet in shared memory, always in the same order.
#include "include/matmul_fields.cuh"
#include "include/folded.cuh"

namespace corral {

// How rows lie in shared memory for a warp: virtual columns of codes, then scales, then sums.
template <class W, int Planes, int Batch, bool IsWhole>
struct StreamRows {
  using V = Values<Planes, false>;
  static constexpr bool is_whole = IsWhole;
  static constexpr int max_groups = W::groups;
  static constexpr int virtual_columns = Batch * Planes;
  static constexpr int stride = W::is_float ? W::columns * 4 + 16 : W::columns + 16;
  static constexpr int scales_at = virtual_columns * stride;
  static constexpr int sums_at = scales_at + Batch * 32;
  static constexpr int bytes = W::is_float ? scales_at : sums_at + (W::has_offset ? Batch * 32 : 0);

  const uint8_t* slot;
  int column[(virtual_columns + 7) / 8];  // where the lane's virtual column of each tile lies
  int scale_at[(virtual_columns + 7) / 8][V::columns];
  Lane lane;

  void init() {
#pragma unroll
    for (int t = 0; t < (virtual_columns + 7) / 8; t++) {
      column[t] = min(8 * t + lane.g, virtual_columns - 1) * stride + (W::is_float ? 8 : 4) * lane.c;
#pragma unroll
      for (int i = 0; i < V::columns; i++) {
        scale_at[t][i] = scales_at + 4 * min(V::column(lane, t, i), Batch - 1);
      }
    }
  }

  uint32_t code(int number, int tile, int half) const {
    return *reinterpret_cast<const uint32_t*>(slot + column[tile] + 32 * number + 16 * half);
  }

  float2 values(int number, int tile) const {
    return *reinterpret_cast<const float2*>(slot + column[tile] + 32 * number);
  }

  void scales(int number, int tile, ColumnScale (&x)[V::columns]) const {
#pragma unroll
    for (int i = 0; i < V::columns; i++) {
      const float* at = reinterpret_cast<const float*>(slot + scale_at[tile][i]) + number * Batch;
      x[i].set(*at, W::has_offset ? at[(sums_at - scales_at) / 4] : 0.0f);
    }
  }

  // Copies the lane's share of chunk `chunk` of all rows; ends in no commit.
  static void copy(uint8_t* slot, const uint8_t* x, int64_t x_stride, int rows, int columns,
                   int chunk) {
    const int lane = threadIdx.x & 31;
    constexpr int kPieces = W::is_float ? W::columns / 4 : W::columns / 16;  // of 16 bytes
    constexpr int kElement = W::is_float ? 4 : 1;
    const int pieces = IsWhole ? kPieces : min(kPieces, (columns - chunk * W::columns) * kElement / 16);
    for (int i = lane; i < virtual_columns * kPieces; i += 32) {
      const int v = i / kPieces, piece = i % kPieces, row = v / Planes, plane = v % Planes;
      if (row < rows && (IsWhole || piece < pieces)) {
        cp_async<16>(slot + v * stride + 16 * piece,
                     x + row * x_stride + plane * static_cast<int64_t>(columns) +
                         static_cast<int64_t>(chunk) * W::columns * kElement + 16 * piece);
      }
    }
    if constexpr (!W::is_float) {
      constexpr int kFloats = 8 * (W::has_offset ? 2 : 1);
      const int groups = IsWhole ? 8 : min(8, columns / kGroup - chunk * 8);
      for (int i = lane; i < Batch * kFloats; i += 32) {
        const int row = i / kFloats, which = i % kFloats / 8, number = i % 8;
        if (row < rows && (IsWhole || number < groups)) {
          cp_async<4>(slot + (which ? sums_at : scales_at) + 4 * (number * Batch + row),
                      x + row * x_stride + static_cast<int64_t>(Planes) * columns +
                          4 * (which * (columns / kGroup) + chunk * 8 + number));
        }
      }
    }
  }

};

// A warp's ring of chunks of weights.
template <int Bytes, int Stages>
struct Ring {
  static constexpr int bytes = Bytes * Stages;
  uint8_t* slots;
  uint64_t* barriers;
  uint64_t policy;
  int filled = 0, read = 0, parity = 0;

  static constexpr bool is_bulk =
#if CORRAL_ARCH >= 900
      true;
#else
      false;
#endif

  void init() {
#if CORRAL_ARCH >= 900
    policy = evict_first_policy();
    if ((threadIdx.x & 31) == 0) {
      for (int i = 0; i < Stages; i++) barrier_init(barriers + i, 1);
      barrier_init_fence();
    }
    __syncwarp();
#endif
  }

  void fill(const uint8_t* from, int size) {
    uint8_t* slot = slots + filled * Bytes;
#if CORRAL_ARCH >= 900
    if ((threadIdx.x & 31) == 0) {
      barrier_arrive_expect(barriers + filled, size);
      bulk_copy(slot, from, size, barriers + filled, policy);
    }
#else
    for (int i = 16 * (threadIdx.x & 31); i < size; i += 512) cp_async<16>(slot + i, from + i);
#endif
    filled = filled + 1 == Stages ? 0 : filled + 1;
  }

  // The chunk to multiply next; the caller has waited for its own cp.async.
  const uint8_t* next() {
#if CORRAL_ARCH >= 900
    barrier_wait(barriers + read, parity);
#endif
    const uint8_t* slot = slots + read * Bytes;
    if (++read == Stages) read = 0, parity ^= 1;
    return slot;
  }
};

template <class W, int Planes, int Batch, int RowBlocks, int Warps, int Stages, int Slots,
          int Ahead, int Columns, Result Kind, Gating Activation>
struct Stream {
  using Fold = FoldedOf<W, Planes, Batch>;
  static constexpr bool is_folded = Fold::is_possible;
  static constexpr int tiles = is_folded ? 1 : (Batch * Planes + 7) / 8;
  static constexpr bool is_whole = Columns % W::columns == 0;
  static constexpr int chunks = (Columns + W::columns - 1) / W::columns;
  static constexpr int64_t block_bytes =
      static_cast<int64_t>(Columns) / (W::is_float ? 8 : kGroup) * W::group_bytes +
      (W::has_spans ? chunks * W::super_bytes : 0);
  using Rows = StreamRows<W, Planes, Batch, is_whole>;
  using V = Values<Planes, false>;
  static constexpr int count = is_folded ? Fold::count : V::count;
  using Totals = float[RowBlocks][tiles][count];
  static constexpr bool is_direct = Stages == 0;
  using WarpRing = Ring<W::chunk_bytes, is_direct ? 1 : Stages>;
  using Places = Units<RowBlocks, Kind>;

  static constexpr int outputs = RowBlocks * kRows * Batch;
  static constexpr int ring_bytes = is_direct ? 0 : Warps * WarpRing::bytes;
  static constexpr int rows_bytes = Warps * Slots * ((Rows::bytes + 15) / 16 * 16);
  static constexpr int partial_bytes = 2 * Warps * outputs * 4;
  static constexpr int barriers_at = ring_bytes + rows_bytes + partial_bytes;
  static constexpr int shared_bytes = barriers_at + Warps * Stages * 8;

  const MatmulFields& f;
  WarpRing ring;
  Rows rows;
  Fold fold;
  uint8_t* row_slots;
  int warp, units, own;          // own: chunks of a row block that are this warp's
  int unit_ahead, t_ahead = 0, j_ahead = 0;  // the next chunk to fetch
  const uint8_t* base[2];                    // where its unit's row blocks begin, gate and up
  int last;                                  // the unit's last row block that there is

  Stream(const MatmulFields& fields) : f(fields) {
    uint8_t* shared = dynamic_shared();
    warp = threadIdx.x >> 5;
    ring.slots = shared + warp * WarpRing::bytes;
    row_slots = shared + ring_bytes + warp * (rows_bytes / Warps);
    ring.barriers = reinterpret_cast<uint64_t*>(shared + barriers_at) + warp * Stages;
    units = Places::count(f);
    own = warp < chunks ? (chunks - warp + Warps - 1) / Warps : 0;
    unit_ahead = own ? static_cast<int>(blockIdx.x) : units;
    if constexpr (!is_direct) ring.init();
    place();
    rows.init();
    fold.init(rows.lane, Rows::stride);
  }

  static constexpr int together = Kind == Result::plain ? RowBlocks : RowBlocks / 2;

  // Finds the row blocks of the unit ahead.
  void place() {
    if (unit_ahead >= units) return;
    int p, block;
    Places::locate(f, unit_ahead, 0, p, block);
    last = min(together, Places::blocks(f.parts[p]) - block) - 1;
    base[0] = f.parts[p].weights + block * block_bytes + warp * W::chunk_bytes;
    base[1] = f.parts[Kind == Result::plain ? p : 1].weights + block * block_bytes +
              warp * W::chunk_bytes;
  }

  // The next chunk in memory; past the last row block, the last one again.
  const uint8_t* ahead() {
    const bool is_second = Kind != Result::plain && j_ahead >= together;
    const int block = min(is_second ? j_ahead - together : j_ahead, last);
    return (is_second ? base[1] : base[0]) + block * block_bytes +
           static_cast<int64_t>(t_ahead) * (Warps * W::chunk_bytes);
  }

  void advance() {
    if (++j_ahead == RowBlocks) {
      j_ahead = 0;
      if (++t_ahead == own) {
        t_ahead = 0;
        unit_ahead += gridDim.x;
        place();
      }
    }
  }

  void fetch() {
    if (unit_ahead >= units) return;
    int size = W::chunk_bytes;
    if constexpr (!is_whole) {
      if (warp + t_ahead * Warps == chunks - 1) size = static_cast<int>(block_bytes % W::chunk_bytes);
    }
    ring.fill(ahead(), size);
    advance();
  }

  // The weights to multiply next.
  const uint8_t* next() {
    if constexpr (is_direct) {
      const uint8_t* chunk = ahead();
      advance();
      return chunk;
    } else {
      return ring.next();
    }
  }

  // Asks for the weights of a unit to come to L2; each warp names its share of the bytes.
  void prefetch(int unit) {
#if CORRAL_ARCH >= 900
    if (unit >= units || (threadIdx.x & 31) >= RowBlocks) return;
    int p, block;
    Places::locate(f, unit, threadIdx.x & 31, p, block);
    if (block >= Places::blocks(f.parts[p])) return;
    constexpr int kShare = static_cast<int>((block_bytes / 16 + Warps - 1) / Warps * 16);
    const int first = warp * kShare, size = min(kShare, static_cast<int>(block_bytes) - first);
    if (size > 0) bulk_prefetch_l2(f.parts[p].weights + block * block_bytes + first, size);
#endif
  }

  uint8_t* slot(int number) { return row_slots + number * ((Rows::bytes + 15) / 16 * 16); }

  void fetch_rows(int number, int t) {
    const int capacity = min(Batch, static_cast<int>(f.capacity));
    Rows::copy(slot(number), f.x, f.x_stride, capacity, Columns, warp + t * Warps);
  }

  // Multiplies the chunk t of the unit's row blocks.
  void multiply(int t, int t_slot, Totals& totals) {
    rows.slot = slot(t_slot);
    const int left = (Columns - (warp + t * Warps) * W::columns) / (W::is_float ? 8 : kGroup);
#pragma unroll
    for (int j = 0; j < RowBlocks; j++) {
      if constexpr (!WarpRing::is_bulk && !is_direct) {
        cp_async_wait<is_direct ? 0 : Stages - 1>();
        __syncwarp();
      }
      const uint8_t* const chunk[1] = {next()};
      float(&sums)[1][tiles][count] = *reinterpret_cast<float(*)[1][tiles][count]>(&totals[j]);
      if constexpr (is_folded) {
        const float* scales = reinterpret_cast<const float*>(rows.slot + Rows::scales_at);
        fold.multiply(chunk[0], left, is_whole, rows.slot, scales,
                      scales + (Rows::sums_at - Rows::scales_at) / 4, rows.lane, sums[0][0]);
      } else if constexpr (W::is_float) {
        multiply_floats<W, tiles, 1>(chunk, 0, left, rows, rows.lane, sums);
      } else {
        multiply_codes<W, Planes, false, tiles, 1>(chunk, 0, left, rows, rows.lane, sums);
      }
      if constexpr (!is_direct) {
        __syncwarp();
        fetch();
        if constexpr (!WarpRing::is_bulk) cp_async_commit();
      }
    }
  }

  float* partials(int buffer) {
    return reinterpret_cast<float*>(dynamic_shared() + ring_bytes + rows_bytes) +
           buffer * (Warps * outputs);
  }

  void keep(int buffer, Totals& totals) {
    float* mine = partials(buffer) + warp * outputs;
#pragma unroll
    for (int j = 0; j < RowBlocks; j++) {
      if constexpr (is_folded) Fold::gather(totals[j][0]);
#pragma unroll
      for (int t = 0; t < tiles; t++) {
#pragma unroll
        for (int v = 0; v < count; v++) {
          const int n = is_folded ? fold.row(v) : V::column(rows.lane, t, v);
          const int row = is_folded ? Fold::weight_row(rows.lane, v) : V::row(rows.lane, v);
          if (n < Batch) mine[(n * RowBlocks + j) * kRows + row] = totals[j][t][v];
        }
      }
    }
  }

  float sum(int buffer, int n, int j, int row) {
    const float* from = partials(buffer) + (n * RowBlocks + j) * kRows + row;
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < Warps; w++) total += from[w * outputs];
    return total * W::unit;
  }

  // One result of a unit.
  struct Place {
    int part, row, n, j, row_in;
    bool is_inside;
  };

  Place place_of(int unit, int i, int count) const {
    Place at;
    at.row_in = i % kRows, at.j = i / kRows % RowBlocks, at.n = i / kRows / RowBlocks;
    int block;
    Places::locate(f, unit, at.j, at.part, block);
    at.row = block * kRows + at.row_in;
    at.is_inside = i < outputs && at.n < count && at.row < f.parts[at.part].rows;
    return at;
  }

  // The result that the thread writes first. The warps take turns, so that none falls behind.
  int first_result(int turn) const {
    return (warp + turn) % Warps * 32 + static_cast<int>(threadIdx.x & 31);
  }

  // What is added to that result; asked for early, for it comes from far.
  float added_early(int unit, int turn) const {
    if constexpr (Kind != Result::plain) return 0.0f;
    const Place at = place_of(unit, first_result(turn), static_cast<int>(f.capacity));
    return at.is_inside ? added(f.parts[at.part], at.row, at.n) : 0.0f;
  }

  // Writes a unit's results.
  void finish(int buffer, int unit, int turn, int count, float early) {
    const int first = first_result(turn);
    if constexpr (Kind == Result::plain) {
      for (int i = first; i < outputs; i += Warps * 32) {
        const Place at = place_of(unit, i, count);
        if (!at.is_inside) continue;
        const MatmulPart& part = f.parts[at.part];
        row_at(part.out, part.out_stride, at.n)[at.row] =
            sum(buffer, at.n, at.j, at.row_in) + (i == first ? early : added(part, at.row, at.n));
      }
    } else {
      constexpr int kHalf = RowBlocks / 2;
      const MatmulPart& part = f.parts[0];
      for (int i = first; i < kHalf * kRows * Batch; i += Warps * 32) {
        const int row_in = i % kRows, j = i / kRows % kHalf, n = i / kRows / kHalf;
        const int row = (unit * kHalf + j) * kRows + row_in;
        const float value = gated_value<Activation>(sum(buffer, n, j, row_in),
                                                    sum(buffer, n, j + kHalf, row_in));
        if (n >= count) continue;
        if constexpr (Kind == Result::gated_codes) {
          store_codes(part.out + n * part.out_stride, part.rows, unit, value);
        } else {
          if (row < part.rows) row_at(part.out, part.out_stride, n)[row] = value;
        }
      }
    }
  }

  void run() {
#pragma unroll 1
    for (int i = 0; i < Stages && WarpRing::is_bulk; i++) fetch();
    for (int i = 0; i < Ahead; i++) prefetch(blockIdx.x + i * gridDim.x);
    wait_for_previous();
    constexpr bool kStays = (chunks + Warps - 1) / Warps <= Slots;
    // Groups of copies that may still be on their way when the rows of a chunk are needed.
    constexpr int kBehind = (Slots - 1) * (RowBlocks + 1), kAtStart = Slots - 1 + Stages;
    constexpr int kRowsPending = WarpRing::is_bulk || is_direct ? Slots - 1 : kBehind < kAtStart ? kBehind : kAtStart;
    for (int t = 0; t < (kStays ? own : Slots); t++) {
      fetch_rows(t, t % max(own, 1));
      if (!kStays) cp_async_commit();
    }
    if (kStays) cp_async_commit();
    if constexpr (!WarpRing::is_bulk) {
#pragma unroll 1
      for (int i = 0; i < Stages; i++) {
        fetch();
        cp_async_commit();
      }
    }
    const int count = static_cast<int>(*f.count);
    int slot_now = 0, t_rows = Slots % max(own, 1), turn = 0;
    if constexpr (kStays) {
      if constexpr (WarpRing::is_bulk || is_direct) cp_async_wait<0>();
      __syncwarp();
    }
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x, turn++) {
      Totals totals = {};
      if (Ahead) prefetch(unit + Ahead * gridDim.x);
      const float early = added_early(unit, turn);
#pragma unroll 1
      for (int t = 0; t < own; t++) {
        if constexpr (kStays) {
          multiply(t, t, totals);
        } else {
          cp_async_wait<kRowsPending>();
          __syncwarp();
          multiply(t, slot_now, totals);
          fetch_rows(slot_now, t_rows);
          cp_async_commit();
          if (++slot_now == Slots) slot_now = 0;
          if (++t_rows == own) t_rows = 0;
        }
      }
      const int buffer = turn & 1;
      keep(buffer, totals);
      __syncthreads();
      finish(buffer, unit, turn, count, early);
    }
    cp_async_wait<0>();
  }
};

template <class W, int Planes, int Batch, int RowBlocks, int Warps, int Stages, int Slots,
          int Ahead, int Columns, Result Kind, Gating Activation, int BlocksPerSm>
__global__ void __launch_bounds__(Warps * 32, BlocksPerSm)
    matmul_stream(const __grid_constant__ MatmulFields f) {
  launch_dependents();
  Stream<W, Planes, Batch, RowBlocks, Warps, Stages, Slots, Ahead, Columns, Kind, Activation>
      stream(f);
  stream.run();
}

}  // namespace corral
