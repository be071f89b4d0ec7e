// The products of prefill on sm_90a: wgmma on tiles that the copy engine brings.
//
// A block has one thread that orders copies and two warpgroups that multiply, each 64 rows × Width
// columns of a tile of 128 × Width. Blocks stay and go from tile to tile, so the copies for the
// next one run while sums are stored.
#include "include/prefill_product.cuh"
#include "include/ptx_hopper.cuh"

namespace corral {

constexpr int kWgmmaThreads = 384;

template <int Width>
constexpr int kStages = Width == 256 ? 4 : 6;

// One stage: a tile of x, then Width / 128 tiles of the weights.
template <int Width>
constexpr int kStageBytes = kTileBytes * (1 + Width / kTileRows);

#if CORRAL_HAS_WGMMA

template <int Width>
struct Pipeline {
  unsigned char* stages;
  uint64_t* full;   // bytes have come
  uint64_t* empty;  // both warpgroups have read them
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages<Width>) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The tiles of the result that this block computes, one after the other.
template <int Width>
struct Work {
  int64_t count, row_tiles, column_tiles;

  __device__ __forceinline__ explicit Work(const Product& f)
      : count(*f.count),
        row_tiles((count + kTileRows - 1) / kTileRows),
        column_tiles((f.columns + Width - 1) / Width) {}

  __device__ __forceinline__ int64_t tiles() const { return row_tiles * column_tiles; }
  __device__ __forceinline__ Tile at(int64_t n) const {
    return tile_of(n, row_tiles, column_tiles);
  }
};

template <int Width>
__device__ __forceinline__ void fetch_all(const Product& f, const Work<Width>& work,
                                          Pipeline<Width>& p) {
  for (int64_t n = blockIdx.x; n < work.tiles(); n += gridDim.x) {
    const Tile place = work.at(n);
    const char* x = f.x + place.row_tile * f.tiles * kTileBytes;
    const char* weights =
        f.weights + place.column_tile * (Width / kTileRows) * f.tiles * kTileBytes;
    for (int64_t tile = 0; tile < f.tiles; tile++) {
      uint64_t* full = &p.full[p.stage];
      unsigned char* to = p.stages + p.stage * kStageBytes<Width>;
      barrier_wait(&p.empty[p.stage], p.parity ^ 1);
      barrier_arrive_expect(full, kStageBytes<Width>);
      bulk_copy(to, x + tile * kTileBytes, kTileBytes, full);
#pragma unroll
      for (int i = 0; i < Width / kTileRows; i++)
        bulk_copy(to + (1 + i) * kTileBytes, weights + (i * f.tiles + tile) * kTileBytes,
                  kTileBytes, full);
      p.advance();
    }
  }
}

template <class Element, int Finish, int Width>
__device__ __forceinline__ void multiply_all(const Product& f, const Work<Width>& work,
                                             Pipeline<Width>& p) {
  const int part = threadIdx.x / 128 - 1;
  for (int64_t n = blockIdx.x; n < work.tiles(); n += gridDim.x) {
    const Tile place = work.at(n);
    float sums[Width / 2];
    uint64_t* before = nullptr;
    for (int64_t tile = 0; tile < f.tiles; tile++) {
      const unsigned char* stage = p.stages + p.stage * kStageBytes<Width>;
      const uint64_t left = factor_at(stage + part * 64 * 128),
                     right = factor_at(stage + kTileBytes);
      barrier_wait(&p.full[p.stage], p.parity);
      products_begin();
#pragma unroll
      for (int step = 0; step < kTileColumns / 16;
           step++)  // 16 columns are 32 bytes, 2 units of the description
        multiply_add(sums, left + 2 * step, right + 2 * step, tile == 0 && step == 0, Element());
      products_commit();
      products_wait<1>();
      if (before && threadIdx.x % 128 == 0) barrier_arrive(before);
      before = &p.empty[p.stage];
      p.advance();
    }
    products_wait<0>();
    settle(sums);
    if (before && threadIdx.x % 128 == 0) barrier_arrive(before);
    store_fragment<Finish, Width / 8>(
        f, work.count, place.row_tile * kTileRows + part * 64 + threadIdx.x / 32 % 4 * 16,
        place.column_tile * Width, sums);
  }
}

#endif

template <class Element, int Finish, int Width>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    matmul_wgmma(const __grid_constant__ Product f) {
#if CORRAL_HAS_WGMMA
  launch_dependents();
  unsigned char* shared = dynamic_shared();
  shared += (1024 - shared_address(shared) % 1024) % 1024;
  uint64_t* barriers = reinterpret_cast<uint64_t*>(shared + kStages<Width> * kStageBytes<Width>);
  Pipeline<Width> pipeline{shared, barriers, barriers + kStages<Width>};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages<Width>; i++) {
      barrier_init(&pipeline.full[i], 1);
      barrier_init(&pipeline.empty[i], 2);
    }
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_previous();
  const Work<Width> work(f);
  if (threadIdx.x < 128) {
    shrink_registers<40>();
    if (threadIdx.x == 0) fetch_all(f, work, pipeline);
  } else {
    grow_registers<232>();
    multiply_all<Element, Finish>(f, work, pipeline);
  }
#endif
}

}  // namespace corral
