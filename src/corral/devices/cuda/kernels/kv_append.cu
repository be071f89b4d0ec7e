// Keys and values of a batch's rows, written to the blocks of their positions.
#include "include/cache.cuh"

namespace corral {

struct AppendFields {
  const float* k;
  const float* v;
  unsigned char* state;
  const int64_t* count;
  const int32_t* positions;
  const int32_t* sequences;
  const int32_t* tables;
  int64_t k_stride, v_stride, tables_stride, kv_heads;
};

__device__ __forceinline__ unsigned char* appended_head(const AppendFields& f, int which,
                                                        int64_t head, int64_t row_bytes) {
  return f.state + row_bytes * cached_row(f.tables, f.tables_stride, f.sequences[blockIdx.x],
                                          f.positions[blockIdx.x], which, head, f.kv_heads);
}

// Block (row, K or V); a thread an element.
template <class Cache, int HeadDim>
__global__ void __launch_bounds__(256) kv_append(__grid_constant__ const AppendFields f) {
  launch_dependents();
  const int64_t count = *f.count;
  wait_for_previous();
  if (blockIdx.x >= count) return;
  const int which = blockIdx.y;
  const float* from = which ? row_at(f.v, f.v_stride, blockIdx.x)
                            : row_at(f.k, f.k_stride, blockIdx.x);
  for (int64_t i = threadIdx.x; i < f.kv_heads * HeadDim; i += 256) {
    unsigned char* to = appended_head(f, which, i / HeadDim, Cache::row_bytes(HeadDim));
    Cache::store(to, i % HeadDim, from[i]);
  }
}

// The same for Q8_0: a warp a group of 32 elements.
template <int HeadDim>
__global__ void __launch_bounds__(256) kv_append_q8_0(__grid_constant__ const AppendFields f) {
  launch_dependents();
  const int64_t count = *f.count;
  wait_for_previous();
  if (blockIdx.x >= count) return;
  const int which = blockIdx.y;
  const float* from = which ? row_at(f.v, f.v_stride, blockIdx.x)
                            : row_at(f.k, f.k_stride, blockIdx.x);
  const int64_t groups = f.kv_heads * HeadDim / 32;
  for (int64_t i = warp_id(); i < groups; i += 256 / kWarp) {
    const int64_t head = i / (HeadDim / 32);
    unsigned char* to = appended_head(f, which, head, CacheQ8_0::row_bytes(HeadDim));
    CacheQ8_0::store_group(to, i % (HeadDim / 32), from[32 * i + lane_id()]);
  }
}

}  // namespace corral
