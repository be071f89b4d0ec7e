// The products of prefill by mma.sync, for every architecture: one block computes 128 rows × 128 columns.
//
// Three stages of one tile of x and one of the weights are on their way at any time; the tiles lie in memory as ldmatrix
// wants them in shared memory, so copies are contiguous. Each sum goes over the columns of x in one order, whatever the
// other rows are.
#include "include/product.cuh"

namespace corral {

constexpr int MATMUL_THREADS = 256;
constexpr int MATMUL_STAGES = 3;
constexpr int BLOCKS = 4;  // of 8 columns, a warp
constexpr int ACROSS = 4;  // warps beside each other

// 8 warps compute 64 rows × 32 columns each; with 64 × 64 it takes as long.
template <class Element, int FINISH>
__global__ void __launch_bounds__(MATMUL_THREADS, 2)
matmul_tiles(const __grid_constant__ Product f) {
  launch_dependents();
  wait_for_previous();
  const int64_t count = *f.count, row_tiles = (count + TILE_ROWS - 1) / TILE_ROWS;
  const int64_t column_tiles = (f.columns + TILE_ROWS - 1) / TILE_ROWS;
  if (blockIdx.x >= row_tiles * column_tiles) return;
  const Tile place = tile_of(blockIdx.x, row_tiles, column_tiles);
  const char* x = f.x + place.row_tile * f.tiles * TILE_BYTES;
  const char* weights = f.weights + place.column_tile * f.tiles * TILE_BYTES;
  unsigned char* shared = dynamic_shared();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rows_at = warp / ACROSS * 64, columns_at = warp % ACROSS * 8 * BLOCKS;

  const auto fetch = [&](int64_t tile) {
    if (tile < f.tiles) {
      unsigned char* to = shared + tile % MATMUL_STAGES * 2 * TILE_BYTES + threadIdx.x * 16;
#pragma unroll
      for (int i = 0; i < TILE_BYTES; i += MATMUL_THREADS * 16) {
        cp_async_16(to + i, x + tile * TILE_BYTES + i + threadIdx.x * 16);
        cp_async_16(to + TILE_BYTES + i, weights + tile * TILE_BYTES + i + threadIdx.x * 16);
      }
    }
    cp_async_commit();
  };

  float sums[4][BLOCKS][4] = {};
  for (int stage = 0; stage < MATMUL_STAGES - 1; stage++) fetch(stage);
  // lane l points at row l % 16 of a fragment, at its chunk l / 16
  const int row = lane % 16, swizzle = row & 7;
  for (int64_t tile = 0; tile < f.tiles; tile++) {
    cp_async_wait<MATMUL_STAGES - 2>();
    __syncthreads();
    fetch(tile + MATMUL_STAGES - 1);
    const unsigned char* left = shared + tile % MATMUL_STAGES * 2 * TILE_BYTES + (rows_at + row) * 128;
    const unsigned char* right = left + TILE_BYTES + (columns_at - rows_at) * 128;
#pragma unroll
    for (int step = 0; step < TILE_COLUMNS / 16; step++) {
      const int chunk = (2 * step + lane / 16) ^ swizzle;
      uint32_t a[4][4], b[BLOCKS / 2][4];
#pragma unroll
      for (int i = 0; i < BLOCKS / 2; i++) load_matrices(b[i], right + i * 16 * 128 + chunk * 16);
#pragma unroll
      for (int i = 0; i < 4; i++) load_matrices(a[i], left + i * 16 * 128 + chunk * 16);
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < BLOCKS; j++) {
          const uint32_t pair[2] = {b[j / 2][j % 2], b[j / 2][j % 2 + 2]};
          mma(sums[i][j], a[i], pair, Element());
        }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++)
    store_fragment<FINISH, BLOCKS>(f, count, place.row_tile * TILE_ROWS + rows_at + 16 * i,
                              place.column_tile * TILE_ROWS + columns_at, sums[i][0]);
}

}  // namespace corral
