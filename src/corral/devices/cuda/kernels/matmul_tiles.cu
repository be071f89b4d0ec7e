// The products of prefill by mma.sync, for every architecture: one block computes 128 rows × 128
// columns.
//
// Three stages of one tile of x and one of the weights are on their way at any time; the tiles lie
// in memory as ldmatrix wants them in shared memory, so copies are contiguous. Each sum goes over
// the columns of x in one order, whatever the other rows are.
#include "include/prefill_product.cuh"

namespace corral {

constexpr int kMatmulThreads = 256;
constexpr int kMatmulStages = 3;
constexpr int kWarpBlocks = 4;  // of 8 columns, a warp
constexpr int kAcross = 4;      // warps beside each other

// 8 warps compute 64 rows × 32 columns each; with 64 × 64 it takes as long.
template <class Element, int Finish>
__global__ void __launch_bounds__(kMatmulThreads, 2)
    matmul_tiles(const __grid_constant__ Product f) {
  launch_dependents();
  wait_for_previous();
  const int64_t count = *f.count, row_tiles = (count + kTileRows - 1) / kTileRows;
  const int64_t column_tiles = (f.columns + kTileRows - 1) / kTileRows;
  if (blockIdx.x >= row_tiles * column_tiles) return;
  const Tile place = tile_of(blockIdx.x, row_tiles, column_tiles);
  const char* x = f.x + place.row_tile * f.tiles * kTileBytes;
  const char* weights = f.weights + place.column_tile * f.tiles * kTileBytes;
  unsigned char* shared = dynamic_shared();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rows_at = warp / kAcross * 64,
            columns_at = warp % kAcross * 8 * kWarpBlocks;

  const auto fetch = [&](int64_t tile) {
    if (tile < f.tiles) {
      unsigned char* to = shared + tile % kMatmulStages * 2 * kTileBytes + threadIdx.x * 16;
#pragma unroll
      for (int i = 0; i < kTileBytes; i += kMatmulThreads * 16) {
        cp_async_16(to + i, x + tile * kTileBytes + i + threadIdx.x * 16);
        cp_async_16(to + kTileBytes + i, weights + tile * kTileBytes + i + threadIdx.x * 16);
      }
    }
    cp_async_commit();
  };

  float sums[4][kWarpBlocks][4] = {};
  for (int stage = 0; stage < kMatmulStages - 1; stage++) fetch(stage);
  // lane l points at row l % 16 of a fragment, at its chunk l / 16
  const int row = lane % 16, swizzle = row & 7;
  for (int64_t tile = 0; tile < f.tiles; tile++) {
    cp_async_wait<kMatmulStages - 2>();
    __syncthreads();
    fetch(tile + kMatmulStages - 1);
    const unsigned char* left =
        shared + tile % kMatmulStages * 2 * kTileBytes + (rows_at + row) * 128;
    const unsigned char* right = left + kTileBytes + (columns_at - rows_at) * 128;
#pragma unroll
    for (int step = 0; step < kTileColumns / 16; step++) {
      const int chunk = (2 * step + lane / 16) ^ swizzle;
      uint32_t a[4][4], b[kWarpBlocks / 2][4];
#pragma unroll
      for (int i = 0; i < kWarpBlocks / 2; i++)
        load_matrices(b[i], right + i * 16 * 128 + chunk * 16);
#pragma unroll
      for (int i = 0; i < 4; i++) load_matrices(a[i], left + i * 16 * 128 + chunk * 16);
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < kWarpBlocks; j++) {
          const uint32_t pair[2] = {b[j / 2][j % 2], b[j / 2][j % 2 + 2]};
          mma(sums[i][j], a[i], pair, Element());
        }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++)
    store_fragment<Finish, kWarpBlocks>(f, count, place.row_tile * kTileRows + rows_at + 16 * i,
                                        place.column_tile * kTileRows + columns_at, sums[i][0]);
}

}  // namespace corral
