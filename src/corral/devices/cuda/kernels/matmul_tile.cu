// Rows of activations times packed weights, for batches of 16 rows and more.
//
// A block takes a unit of row blocks and up to N rows of the batch. Its warps share out the row blocks
// (WarpRows of them side by side, RowBlocks each) and the columns of each stage (WarpColumns).
// Weights and activations of a stage come to shared memory together; weights of the first stages
// are on their way before earlier kernels are done. Planes is 0 where activations are rows of F16 as
// `half_rows.cu` writes them.
#include "include/halves.cuh"
#include "include/matmul_fields.cuh"
#include "include/quads.cuh"

namespace corral {

// How the activations of a stage lie in shared memory: virtual columns of codes, then the scales of
// each row, then the sums. A thread copies the same places of every stage.
template <class W, int Planes, int N, int Chunks, int Columns, int Threads>
struct TileRows {
  static constexpr bool is_whole = Columns % (Chunks * W::columns) == 0;
  static constexpr bool has_scales = !W::is_float && Planes > 0;
  static constexpr int planes = Planes == 2 ? 2 : 1;
  static constexpr int virtual_columns = N * planes;
  static constexpr int tiles = virtual_columns / 8;
  static constexpr int columns = Chunks * W::columns;
  static constexpr int element_bytes = W::is_float ? 4 : Planes == 0 ? 2 : 1;
  static constexpr int stride = columns * element_bytes + 16;
  static constexpr int groups = columns / kGroup, all_groups = Columns / kGroup;
  static constexpr int scale_stride = groups * 4 + 16;
  static constexpr int scales_at = virtual_columns * stride;
  static constexpr int sums_at = scales_at + N * scale_stride;
  static constexpr int kinds = W::has_offset ? 2 : 1;
  static constexpr int bytes = scales_at + (has_scales ? kinds * N * scale_stride : 0);

  static constexpr int pieces = columns * element_bytes / 16;  // of a virtual column
  static constexpr int pass = Threads / pieces;                // virtual columns at a time
  static_assert(Threads % pieces == 0 && pass % planes == 0, "threads keep to their plane");
  // Sums are 16-byte aligned only where that many columns are whole pieces.
  static constexpr int wide = Columns % 128 == 0 && is_whole ? 16 : 4;
  static constexpr int scale_pieces = groups * 4 / wide;

  const uint8_t* x;
  int64_t x_stride;
  int rows;  // that there is memory for
  int piece, column;
  const uint8_t* mine;  // the first place that the thread copies from

  TileRows(const MatmulFields& f, int first_row) : x_stride(f.x_stride) {
    x = f.x + first_row * f.x_stride;
    rows = min(N, static_cast<int>(f.capacity) - first_row);
    piece = threadIdx.x % pieces;
    column = threadIdx.x / pieces;
    mine = x + column / planes * x_stride + column % planes * Columns + 16 * piece;
  }

  // Copies the thread's share of stage `step`, as cp.async without commit.
  void copy(uint8_t* slot, int step) const {
    const uint8_t* from = mine + step * (columns * element_bytes);
    uint8_t* to = slot + column * stride + 16 * piece;
    const int64_t pass_bytes = pass / planes * x_stride;
    if (is_whole && virtual_columns % pass == 0 && rows == N) {
#pragma unroll
      for (int v = 0; v < virtual_columns; v += pass) {
        cp_async<16>(to + v * stride, from);
        from += pass_bytes;
      }
    } else if (is_whole || step * columns * element_bytes + 16 * piece < Columns * element_bytes) {
#pragma unroll 1
      for (int v = 0; column + v < virtual_columns && (column + v) / planes < rows; v += pass) {
        cp_async<16>(to + v * stride, from);
        from += pass_bytes;
      }
    }
    if constexpr (has_scales) copy_scales(slot, step);
  }

  void copy_scales(uint8_t* slot, int step) const {
#pragma unroll
    for (int first = 0; first < N * kinds * scale_pieces; first += Threads) {
      const int i = first + threadIdx.x;
      const int number = i % scale_pieces, kind = i / scale_pieces % kinds;
      const int n = i / scale_pieces / kinds, group = step * groups + number * (wide / 4);
      if (n < rows && (is_whole || group < all_groups)) {
        cp_async<wide>(slot + (kind ? sums_at : scales_at) + n * scale_stride + number * wide,
                       x + n * x_stride + Planes * Columns + 4 * (kind * all_groups + group));
      }
    }
  }
};

// What a warp reads of them if they are F32.
template <class Rows, bool IsWhole, int Groups>
struct FloatReader {
  static constexpr bool is_whole = IsWhole;
  static constexpr int max_groups = Groups;
  const uint8_t* at;
  float2 values(int number, int tile) const {
    return *reinterpret_cast<const float2*>(at + tile * 8 * Rows::stride + 32 * number);
  }
};

template <class W, int Planes, int N, int RowBlocks, int WarpRows, int WarpColumns, int Chunks,
          int Stages, int Columns, Result Kind, Gating Activation>
struct Tile {
  static constexpr int warps = WarpRows * WarpColumns, threads = 32 * warps;
  static constexpr int blocks = WarpRows * RowBlocks;  // row blocks of the unit
  static constexpr int stage_columns = Chunks * W::columns;
  static constexpr bool is_whole = Columns % stage_columns == 0;
  static constexpr int steps = (Columns + stage_columns - 1) / stage_columns;
  static constexpr int warp_groups = Chunks * W::groups / WarpColumns;  // of a stage
  static_assert(W::groups % warp_groups == 0, "a warp's groups lie in one chunk");
  static constexpr int code_columns = W::is_float ? 8 : kGroup;  // of a group
  static constexpr int64_t block_bytes =
      static_cast<int64_t>(Columns) / code_columns * W::group_bytes +
      (W::has_spans ? Columns / W::columns * W::super_bytes : 0);
  using Rows = TileRows<W, Planes, N, Chunks, Columns, threads>;
  using V = Values<Rows::planes, false>;
  using Places = Units<blocks, Kind>;

  static constexpr int piece_bytes = Chunks * W::chunk_bytes;  // of a row block in a stage
  static constexpr int rows_at = blocks * piece_bytes;
  static constexpr int stage_bytes = (rows_at + Rows::bytes + 15) / 16 * 16;
  static constexpr int partial_stride = blocks * kRows + 4;
  static constexpr int partial_bytes = WarpColumns * N * partial_stride * 4;
  static constexpr int barriers_at =
      Stages * stage_bytes > partial_bytes ? Stages * stage_bytes : partial_bytes;
  static constexpr int shared_bytes = barriers_at + 8 * Stages;
  static constexpr bool is_bulk =
#if CORRAL_ARCH >= 900
      true;
#else
      false;
#endif

  const MatmulFields& f;
  uint8_t* shared;
  int unit, first_row;
  Rows rows;
  const uint8_t* mine;  // the row block that the thread fetches
  uint64_t policy;

  Tile(const MatmulFields& fields)
      : f(fields), shared(dynamic_shared()), unit(blockIdx.x), first_row(blockIdx.y * N),
        rows(fields, first_row) {
    mine = weights(min(static_cast<int>(threadIdx.x), blocks - 1));
    policy = evict_first_policy();
  }

  uint64_t* barrier(int slot) { return reinterpret_cast<uint64_t*>(shared + barriers_at) + slot; }

  const uint8_t* weights(int j) const {
    int p, block;
    Places::locate(f, unit, j, p, block);
    return f.parts[p].weights + min(block, Places::blocks(f.parts[p]) - 1) * block_bytes;
  }

  // Lane j of the first warp fetches row block j; before Hopper, all threads fetch all.
  void fetch_weights(int step, int slot) {
    if (step >= steps) return;
    int size = piece_bytes;
    if (!is_whole && step == steps - 1) {
      size = static_cast<int>(block_bytes - step * static_cast<int64_t>(piece_bytes));
    }
    uint8_t* to = shared + slot * stage_bytes;
#if CORRAL_ARCH >= 900
    if (threadIdx.x < 32) {
      if (threadIdx.x == 0) barrier_arrive_expect(barrier(slot), blocks * size);
      __syncwarp();
      if (threadIdx.x < blocks) {
        bulk_copy(to + threadIdx.x * piece_bytes, mine + static_cast<int64_t>(step) * piece_bytes,
                  size, barrier(slot), policy);
      }
    }
#else
    for (int j = 0; j < blocks; j++) {
      const uint8_t* from = weights(j) + static_cast<int64_t>(step) * piece_bytes;
      for (int i = 16 * threadIdx.x; i < size; i += 16 * threads) {
        cp_async<16>(to + j * piece_bytes + i, from + i);
      }
    }
#endif
  }

  void fetch_rows(int step, int slot) {
    if (step < steps) rows.copy(shared + slot * stage_bytes + rows_at, step);
  }

  void finish(int count) {
    const float* partials = reinterpret_cast<const float*>(shared);
    auto sum = [&](int n, int row) {
      float total = 0.0f;
#pragma unroll
      for (int w = 0; w < WarpColumns; w++) total += partials[(w * N + n) * partial_stride + row];
      if constexpr (Planes == 0) {
        if (first_row + n >= count) return 0.0f;
        const uint8_t* x = f.x + (first_row + n) * f.x_stride + 2 * Columns;
        return total * (*reinterpret_cast<const float*>(x) * (1.0f / kHalfScale));
      }
      return total * W::unit;
    };
    if constexpr (Kind == Result::plain) {
      for (int i = threadIdx.x; i < N * blocks * kRows; i += threads) {
        const int row_in = i % (blocks * kRows), n = i / (blocks * kRows);
        int p, block;
        Places::locate(f, unit, row_in / kRows, p, block);
        const int row = block * kRows + row_in % kRows;
        if (first_row + n < count && row < f.parts[p].rows) {
          const int at = first_row + n;
          row_at(f.parts[p].out, f.parts[p].out_stride, at)[row] =
              sum(n, row_in) + added(f.parts[p], row, at);
        }
      }
    } else {
      constexpr int kHalf = blocks / 2 * kRows;
      const MatmulPart& part = f.parts[0];
      for (int i = threadIdx.x; i < N * kHalf; i += threads) {
        const int row_in = i % kHalf, n = i / kHalf, row = unit * kHalf + row_in;
        const float value = gated_value<Activation>(sum(n, row_in), sum(n, row_in + kHalf));
        if (first_row + n >= count) continue;
        if constexpr (Kind == Result::gated_codes) {
          if (row < part.rows) {
            store_codes(part.out + (first_row + n) * part.out_stride, part.rows, row / kGroup, value);
          }
        } else {
          if (row < part.rows) row_at(part.out, part.out_stride, first_row + n)[row] = value;
        }
      }
    }
  }

  void run() {
    const int warp = threadIdx.x >> 5, warp_row = warp / WarpColumns, warp_column = warp % WarpColumns;
    const Lane lane;
#if CORRAL_ARCH >= 900
    if (threadIdx.x == 0) {
      for (int i = 0; i < Stages; i++) barrier_init(barrier(i), 1);
      barrier_init_fence();
    }
    __syncthreads();
    for (int i = 0; i < Stages - 1; i++) fetch_weights(i, i);
#endif
    wait_for_previous();
    const int count = static_cast<int>(*f.count);
    for (int i = 0; i < Stages - 1; i++) {
      if (!is_bulk) fetch_weights(i, i);
      fetch_rows(i, i);
      cp_async_commit();
    }
    float totals[RowBlocks][Rows::tiles][V::count] = {};
    const int chunk_of_warp = warp_column * warp_groups / W::groups;
    const int first_group = warp_column * warp_groups % W::groups;
    int slot = 0, parity = 0;
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
      cp_async_wait<Stages - 2>();
#if CORRAL_ARCH >= 900
      barrier_wait(barrier(slot), parity);
#endif
      __syncthreads();
      const int freed = slot ? slot - 1 : Stages - 1;
      fetch_weights(step + Stages - 1, freed);
      fetch_rows(step + Stages - 1, freed);
      cp_async_commit();
      const uint8_t* at = shared + slot * stage_bytes;
      const uint8_t* chunk[RowBlocks];
#pragma unroll
      for (int j = 0; j < RowBlocks; j++) {
        chunk[j] = at + (warp_row * RowBlocks + j) * piece_bytes + chunk_of_warp * W::chunk_bytes;
      }
      const int left = (Columns - step * stage_columns - chunk_of_warp * W::columns) / code_columns;
      const uint8_t* codes = at + rows_at + chunk_of_warp * W::columns * Rows::element_bytes;
      if constexpr (W::is_float) {
        FloatReader<Rows, is_whole, warp_groups> reader{codes + lane.g * Rows::stride + 8 * lane.c};
        multiply_floats<W, Rows::tiles, RowBlocks>(chunk, first_group, left, reader, lane, totals);
      } else if constexpr (Planes == 0) {
        multiply_halves<W, Rows::tiles, RowBlocks, warp_groups, is_whole, Rows::stride>(
            chunk, first_group, left, codes, lane, totals);
      } else {
        const QuadRows<Planes, Rows::stride, Rows::scale_stride, Rows::sums_at - Rows::scales_at>
            reader(codes, at + rows_at + Rows::scales_at + chunk_of_warp * 32, lane);
        multiply_quads<W, Planes, Rows::tiles, RowBlocks, W::is_float ? 4 : warp_groups, is_whole>(
            chunk, first_group, left, reader, lane, totals);
      }
      if (++slot == Stages) slot = 0, parity ^= 1;
    }
    cp_async_wait<0>();
    __syncthreads();
    float* mine = reinterpret_cast<float*>(shared) + warp_column * N * partial_stride;
#pragma unroll
    for (int j = 0; j < RowBlocks; j++) {
#pragma unroll
      for (int t = 0; t < Rows::tiles; t++) {
#pragma unroll
        for (int v = 0; v < V::count; v++) {
          mine[V::column(lane, t, v) * partial_stride + (warp_row * RowBlocks + j) * kRows +
               V::row(lane, v)] = totals[j][t][v];
        }
      }
    }
    __syncthreads();
    finish(count);
  }
};

template <class W, int Planes, int N, int RowBlocks, int WarpRows, int WarpColumns, int Chunks,
          int Stages, int Columns, Result Kind, Gating Activation, int BlocksPerSm>
__global__ void __launch_bounds__(WarpRows* WarpColumns * 32, BlocksPerSm)
    matmul_tile(const __grid_constant__ MatmulFields f) {
  launch_dependents();
  Tile<W, Planes, N, RowBlocks, WarpRows, WarpColumns, Chunks, Stages, Columns, Kind, Activation>
      tile(f);
  tile.run();
}

}  // namespace corral
