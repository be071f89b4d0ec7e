// The products of prefill on sm_90a: wgmma on tiles that the copy engine brings.
//
// A block has one warp that orders copies and two warpgroups that multiply, each 64 rows × WIDTH columns of one tile of
// 128 × WIDTH. Blocks stay and go from tile to tile, so the copies for the next one run while sums are stored. With a
// cluster of two, the blocks have the same columns and neighbouring rows: each fetches half of the weights for both.
#include "include/product.cuh"
#include "include/ptx_hopper.cuh"

namespace corral {

constexpr int WGMMA_THREADS = 384;
constexpr int ROW_TILES_TOGETHER = 16;

template <int WIDTH>
constexpr int STAGES = WIDTH == 256 ? 4 : 6;

#if CORRAL_ARCH >= 900

struct Place {
  int64_t row_tile, column_tile;
};

// As in matmul_tiles.cu, for runs of CLUSTER row tiles.
template <int CLUSTER>
inline __device__ Place place_of(int64_t n, int64_t row_tiles, int64_t column_tiles) {
  constexpr int TOGETHER = ROW_TILES_TOGETHER / CLUSTER;
  const int64_t group = n / (TOGETHER * column_tiles), first = group * TOGETHER;
  const int64_t rest = n - group * TOGETHER * column_tiles;
  const int64_t height = row_tiles - first < TOGETHER ? row_tiles - first : TOGETHER;
  return {first + rest % height, rest / height};
}

// One stage: a tile of x, then WIDTH / 128 tiles of the weights.
template <int WIDTH>
constexpr int STAGE_BYTES = TILE_BYTES * (1 + WIDTH / TILE_ROWS);

template <int WIDTH, int CLUSTER>
struct Pipeline {
  unsigned char* stages;
  uint64_t* full;   // bytes have come
  uint64_t* empty;  // all who multiply have read them
  int stage = 0;
  uint32_t parity = 0;

  inline __device__ void advance() {
    if (++stage == STAGES<WIDTH>) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The tiles of the result that this cluster computes, one after the other.
template <int WIDTH, int CLUSTER>
struct Work {
  int64_t count, row_tiles, column_tiles, clusters, first, step;

  inline __device__ explicit Work(const Product& f)
      : count(*f.count),
        row_tiles((count + TILE_ROWS * CLUSTER - 1) / (TILE_ROWS * CLUSTER)),
        column_tiles((f.columns + WIDTH - 1) / WIDTH),
        clusters(row_tiles * column_tiles),
        first(blockIdx.x / CLUSTER),
        step(gridDim.x / CLUSTER) {}

  inline __device__ Place at(int64_t n) const {
    Place place = place_of<CLUSTER>(n, row_tiles, column_tiles);
    if (CLUSTER > 1) place.row_tile = place.row_tile * CLUSTER + block_in_cluster();
    return place;
  }
};

template <int WIDTH, int CLUSTER>
inline __device__ void fetch_all(const Product& f, const Work<WIDTH, CLUSTER>& work, Pipeline<WIDTH, CLUSTER>& p) {
  const int64_t last = (work.count - 1) / TILE_ROWS;
  const uint32_t rank = CLUSTER > 1 ? block_in_cluster() : 0;
  for (int64_t n = work.first; n < work.clusters; n += work.step) {
    const Place place = work.at(n);
    const int64_t row_tile = place.row_tile < last ? place.row_tile : last;
    const char* x = f.x + row_tile * f.tiles * TILE_BYTES;
    const char* weights = f.weights + place.column_tile * (WIDTH / TILE_ROWS) * f.tiles * TILE_BYTES;
    for (int64_t tile = 0; tile < f.tiles; tile++) {
      uint64_t* full = &p.full[p.stage];
      unsigned char* to = p.stages + p.stage * STAGE_BYTES<WIDTH>;
      if (CLUSTER > 1)
        barrier_wait_cluster(&p.empty[p.stage], p.parity ^ 1);
      else
        barrier_wait(&p.empty[p.stage], p.parity ^ 1);
      barrier_arrive_expect(full, STAGE_BYTES<WIDTH>);
      bulk_copy(to, x + tile * TILE_BYTES, TILE_BYTES, full);
      if (CLUSTER == 1) {
#pragma unroll
        for (int i = 0; i < WIDTH / TILE_ROWS; i++)
          bulk_copy(to + (1 + i) * TILE_BYTES, weights + (i * f.tiles + tile) * TILE_BYTES, TILE_BYTES, full);
      } else {
        constexpr int PART = WIDTH / TILE_ROWS * TILE_BYTES / CLUSTER;
        const int64_t at = rank * PART;
        bulk_copy_to(to + TILE_BYTES + at, weights + (at / TILE_BYTES * f.tiles + tile) * TILE_BYTES + at % TILE_BYTES, PART,
                     full, (1 << CLUSTER) - 1);
      }
      p.advance();
    }
  }
}

template <int CLUSTER>
inline __device__ void release(uint64_t* empty) {
  if (threadIdx.x % 128 >= CLUSTER) return;
  if (CLUSTER == 1)
    barrier_arrive(empty);
  else
    barrier_arrive_at(empty, threadIdx.x % 128);
}

template <class Element, int FINISH, int WIDTH, int CLUSTER>
inline __device__ void multiply_all(const Product& f, const Work<WIDTH, CLUSTER>& work, Pipeline<WIDTH, CLUSTER>& p) {
  const int part = threadIdx.x / 128 - 1;
  for (int64_t n = work.first; n < work.clusters; n += work.step) {
    const Place place = work.at(n);
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
      if (before) release<CLUSTER>(before);
      before = &p.empty[p.stage];
      p.advance();
    }
    products_wait<0>();
    if (before) release<CLUSTER>(before);
    store_fragment<FINISH, WIDTH / 8>(f, work.count, place.row_tile * TILE_ROWS + part * 64 + threadIdx.x / 32 % 4 * 16,
                                      place.column_tile * WIDTH, sums);
  }
}

#endif

template <class Element, int FINISH, int WIDTH, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(WGMMA_THREADS, 1)
matmul_wgmma(const __grid_constant__ Product f) {
#if CORRAL_ARCH >= 900
  launch_dependents();
  unsigned char* shared = dynamic_shared();
  shared += (1024 - shared_address(shared) % 1024) % 1024;
  uint64_t* barriers = reinterpret_cast<uint64_t*>(shared + STAGES<WIDTH> * STAGE_BYTES<WIDTH>);
  Pipeline<WIDTH, CLUSTER> pipeline{shared, barriers, barriers + STAGES<WIDTH>};
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES<WIDTH>; i++) {
      barrier_init(&pipeline.full[i], 1);
      barrier_init(&pipeline.empty[i], 2 * CLUSTER);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (CLUSTER > 1) cluster_sync();
  wait_for_previous();
  const Work<WIDTH, CLUSTER> work(f);
  if (threadIdx.x < 128) {
    shrink_registers<40>();
    if (threadIdx.x == 0) fetch_all(f, work, pipeline);
  } else {
    grow_registers<232>();
    multiply_all<Element, FINISH>(f, work, pipeline);
  }
  if (CLUSTER > 1) {
    __syncwarp();
    cluster_sync();
  }
#endif
}

}  // namespace corral
