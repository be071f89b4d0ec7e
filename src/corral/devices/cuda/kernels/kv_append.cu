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
  const int64_t position = f.positions[blockIdx.x];
  const int64_t block =
      block_of(f.tables, f.tables_stride, f.sequences[blockIdx.x], position);
  const int64_t row = ((block * 2 + which) * f.kv_heads + head) * kBlockTokens;
  return f.state + (row + position % kBlockTokens) * row_bytes;
}

// Block (row, K or V); a thread an element.
template <class Cache, int HeadDim>
__global__ void __launch_bounds__(256) kv_append(__grid_constant__ const AppendFields f) {
  launch_dependents();
  wait_for_previous();
  if (blockIdx.x >= *f.count) return;
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
  wait_for_previous();
  if (blockIdx.x >= *f.count) return;
  const int which = blockIdx.y;
  const float* from = which ? row_at(f.v, f.v_stride, blockIdx.x)
                            : row_at(f.k, f.k_stride, blockIdx.x);
  const int64_t groups = f.kv_heads * HeadDim / 32;
  for (int64_t i = warp_id(); i < groups; i += 256 / kWarp) {
    const float value = from[32 * i + lane_id()];
    const float scale = __fdiv_rn(warp_max(fabsf(value)), 127.0f);
    float inverse = __frcp_rn(scale);
    if (inverse > 3.402823466e38f) inverse = 0.0f;
    const int code = __float2int_rn(value * inverse);
    const int64_t head = i / (HeadDim / 32);
    unsigned char* to = appended_head(f, which, head, CacheQ8_0::row_bytes(HeadDim));
    to += i % (HeadDim / 32) * 34;
    to[2 + lane_id()] = static_cast<unsigned char>(code);
    if (lane_id() == 0) *reinterpret_cast<__half*>(to) = __float2half_rn(scale);
  }
}

}  // namespace corral
