// The products of prefill on sm_90a: wgmma on tiles that the copy engine brings.
//
// A block has one thread that orders copies and two warpgroups that multiply, each 64 rows × WIDTH columns of a tile of
// 128 × WIDTH. Blocks stay and go from tile to tile, so the copies for the next one run while sums are stored.
#include "include/product.cuh"
#include "include/ptx_hopper.cuh"

namespace corral {

constexpr int WGMMA_THREADS = 384;

template <int WIDTH>
constexpr int STAGES = WIDTH == 256 ? 4 : 6;

// One stage: a tile of x, then WIDTH / 128 tiles of the weights.
template <int WIDTH>
constexpr int STAGE_BYTES = TILE_BYTES * (1 + WIDTH / TILE_ROWS);

#if CORRAL_ARCH >= 900

template <int WIDTH>
struct Pipeline {
  unsigned char* stages;
  uint64_t* full;   // bytes have come
  uint64_t* empty;  // both warpgroups have read them
  int stage = 0;
  uint32_t parity = 0;

  inline __device__ void advance() {
    if (++stage == STAGES<WIDTH>) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The tiles of the result that this block computes, one after the other.
template <int WIDTH>
struct Work {
  int64_t count, row_tiles, column_tiles;

  inline __device__ explicit Work(const Product& f)
      : count(*f.count), row_tiles((count + TILE_ROWS - 1) / TILE_ROWS), column_tiles((f.columns + WIDTH - 1) / WIDTH) {}

  inline __device__ int64_t tiles() const { return row_tiles * column_tiles; }
  inline __device__ Tile at(int64_t n) const { return tile_of(n, row_tiles, column_tiles); }
};

template <int WIDTH>
inline __device__ void fetch_all(const Product& f, const Work<WIDTH>& work, Pipeline<WIDTH>& p) {
  for (int64_t n = blockIdx.x; n < work.tiles(); n += gridDim.x) {
    const Tile place = work.at(n);
    const char* x = f.x + place.row_tile * f.tiles * TILE_BYTES;
    const char* weights = f.weights + place.column_tile * (WIDTH / TILE_ROWS) * f.tiles * TILE_BYTES;
    for (int64_t tile = 0; tile < f.tiles; tile++) {
      uint64_t* full = &p.full[p.stage];
      unsigned char* to = p.stages + p.stage * STAGE_BYTES<WIDTH>;
      barrier_wait(&p.empty[p.stage], p.parity ^ 1);
      barrier_arrive_expect(full, STAGE_BYTES<WIDTH>);
      bulk_copy(to, x + tile * TILE_BYTES, TILE_BYTES, full);
#pragma unroll
      for (int i = 0; i < WIDTH / TILE_ROWS; i++)
        bulk_copy(to + (1 + i) * TILE_BYTES, weights + (i * f.tiles + tile) * TILE_BYTES, TILE_BYTES, full);
      p.advance();
    }
  }
}

template <class Element, int FINISH, int WIDTH>
inline __device__ void multiply_all(const Product& f, const Work<WIDTH>& work, Pipeline<WIDTH>& p) {
  const int part = threadIdx.x / 128 - 1;
  for (int64_t n = blockIdx.x; n < work.tiles(); n += gridDim.x) {
    const Tile place = work.at(n);
    float sums[WIDTH / 2];
    uint64_t* before = nullptr;
    for (int64_t tile = 0; tile < f.tiles; tile++) {
      const unsigned char* stage = p.stages + p.stage * STAGE_BYTES<WIDTH>;
      const uint64_t left = factor_at(stage + part * 64 * 128), right = factor_at(stage + TILE_BYTES);
      barrier_wait(&p.full[p.stage], p.parity);
      products_begin();
#pragma unroll
      for (int step = 0; step < TILE_COLUMNS / 16; step++)  // 16 columns are 32 bytes, 2 units of the description
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
    store_fragment<FINISH, WIDTH / 8>(f, work.count, place.row_tile * TILE_ROWS + part * 64 + threadIdx.x / 32 % 4 * 16,
                                      place.column_tile * WIDTH, sums);
  }
}

#endif

template <class Element, int FINISH, int WIDTH>
__global__ void __launch_bounds__(WGMMA_THREADS, 1)
matmul_wgmma(const __grid_constant__ Product f) {
#if CORRAL_ARCH >= 900
  launch_dependents();
  unsigned char* shared = dynamic_shared();
  shared += (1024 - shared_address(shared) % 1024) % 1024;
  uint64_t* barriers = reinterpret_cast<uint64_t*>(shared + STAGES<WIDTH> * STAGE_BYTES<WIDTH>);
  Pipeline<WIDTH> pipeline{shared, barriers, barriers + STAGES<WIDTH>};
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES<WIDTH>; i++) {
      barrier_init(&pipeline.full[i], 1);
      barrier_init(&pipeline.empty[i], 2);
    }
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_previous();
  const Work<WIDTH> work(f);
  if (threadIdx.x < 128) {
    shrink_registers<40>();
    if (threadIdx.x == 0) fetch_all(f, work, pipeline);
  } else {
    grow_registers<232>();
    multiply_all<Element, FINISH>(f, work, pipeline);
  }
#endif
}

}  // namespace corral
