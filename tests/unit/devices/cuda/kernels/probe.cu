// Small kernels, right and wrong ones, that the emulator itself is tested with.
#include "include/ptx.cuh"

namespace corral {

struct ProbeFields {
  const float* x;
  float* out;
  int64_t columns;
};

// Sums of rows: copies, dynamic and static shared memory, shuffles, barriers.
template <int Threads>
__global__ void __launch_bounds__(Threads) sum_rows(__grid_constant__ const ProbeFields f) {
  __shared__ float parts[Threads / 32];
  float* row = reinterpret_cast<float*>(dynamic_shared());
  launch_dependents();
  wait_for_previous();
  for (int i = threadIdx.x; i < f.columns; i += Threads) {
    cp_async<4>(row + i, f.x + blockIdx.x * f.columns + i);
  }
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  float sum = 0.0f;
  for (int i = threadIdx.x; i < f.columns; i += Threads) sum += row[f.columns - 1 - i];
  for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  float total = 0.0f;
  for (float part : parts) total += part;
  f.out[blockIdx.x] = total;
}

// One product on tensor cores: a 16 × 16, then b with 8 columns of 16.
__global__ void multiply(__grid_constant__ const ProbeFields f) {
  wait_for_previous();
  __nv_bfloat16* all = reinterpret_cast<__nv_bfloat16*>(dynamic_shared());
  for (int i = threadIdx.x; i < 16 * 16 + 8 * 16; i += 32) all[i] = __float2bfloat16_rn(f.x[i]);
  __syncwarp();
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  uint32_t a[4], b[2];
  load_matrices(a, all + lane % 16 * 16 + lane / 16 * 8);
  load_matrices(b, all + 256 + lane % 8 * 16 + lane / 8 % 2 * 8);
  float d[4] = {};
  mma_bf16(d, a, b);
  for (int i = 0; i < 4; i++) f.out[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = d[i];
}

// Three phases of a copy that completes on a barrier.
__global__ void copy_in_bulk(__grid_constant__ const ProbeFields f) {
#if CORRAL_ARCH >= 900
  uint64_t* barrier = reinterpret_cast<uint64_t*>(dynamic_shared());
  float* row = reinterpret_cast<float*>(dynamic_shared() + 128);
  if (threadIdx.x == 0) barrier_init(barrier, 1);
  barrier_init_fence();
  __syncthreads();
  wait_for_previous();
  for (int phase = 0; phase < 3; phase++) {
    if (threadIdx.x == 33) {
      barrier_arrive_expect(barrier, 256);
      bulk_copy(row, f.x + 64 * phase, 256, barrier);
    }
    barrier_wait(barrier, phase & 1);
    f.out[phase * 64 + threadIdx.x] = row[threadIdx.x];
    __syncthreads();
  }
#endif
}

__global__ void leaves_a_barrier_open(__grid_constant__ const ProbeFields f) {
  wait_for_previous();
  named_barrier_sync(threadIdx.x < 32 ? 1 : 2, 64);
}

__global__ void shuffles_with_the_gone(__grid_constant__ const ProbeFields f) {
  wait_for_previous();
  if (threadIdx.x == 3) return;
  __shfl_xor_sync(~0u, 1, 1);
}

__global__ void reads_unaligned(__grid_constant__ const ProbeFields f) {
  wait_for_previous();
  f.out[0] = reinterpret_cast<const float4*>(f.x + 1)->x;
}

__global__ void writes_past_an_array(__grid_constant__ const ProbeFields f) {
  __shared__ float few[4];
  wait_for_previous();
  few[threadIdx.x] = 1.0f;
  __syncthreads();
  f.out[0] = few[0];
}

__global__ void never_waits(__grid_constant__ const ProbeFields f) {}

// Reads what another thread of its block wrote, without a barrier.
__global__ void forgets_a_barrier(__grid_constant__ const ProbeFields f) {
  __shared__ float all[64];
  wait_for_previous();
  all[threadIdx.x] = f.x[threadIdx.x];
  f.out[blockIdx.x * 64 + threadIdx.x] = all[63 - threadIdx.x];
}

// Uses a copy that it did not wait for.
__global__ void forgets_a_copy(__grid_constant__ const ProbeFields f) {
  float* row = reinterpret_cast<float*>(dynamic_shared());
  wait_for_previous();
  cp_async<4>(row + threadIdx.x, f.x + threadIdx.x);
  cp_async_commit();
  cp_async_wait<1>();
  f.out[threadIdx.x] = row[threadIdx.x];
}

}  // namespace corral
