// Root mean square norms, alone or followed by rounding to integer codes.
#include "include/codes.cuh"
#include "include/tiled_rows.cuh"

namespace corral {

struct NormFields {
  const float* x;
  const int64_t* count;
  float* out;
  int64_t x_stride, out_stride;
  const float* weight;
  int64_t columns;
  Float epsilon;
};

// One block a row, which lies in registers: Threads × Steps × 4 columns at most.
template <int Threads, int Steps, bool IsAligned>
struct NormedRow {
  float4 values[Steps], weights[Steps];

  static __device__ __forceinline__ int64_t column(int step) {
    return kColumnsPerLane * (threadIdx.x + static_cast<int64_t>(step) * Threads);
  }

  // Needs nothing of an earlier kernel.
  __device__ __forceinline__ void load_weights(const float* weight, int64_t columns) {
#pragma unroll
    for (int s = 0; s < Steps; s++) {
      weights[s] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (column(s) < columns) weights[s] = load4<true>(weight + column(s));
    }
  }

  __device__ __forceinline__ void compute(const float* x, int64_t columns, float epsilon) {
    float squares = 0.0f;
#pragma unroll
    for (int s = 0; s < Steps; s++) {
      values[s] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (column(s) < columns) values[s] = load4<IsAligned>(x + column(s));
      const float4 v = values[s];
      squares += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
    }
    const float mean = block_sum<Threads>(squares) / static_cast<float>(columns);
    const float factor = 1.0f / sqrtf(mean + epsilon);
#pragma unroll
    for (int s = 0; s < Steps; s++) {
      const float4 w = weights[s];
      float4& v = values[s];
      v.x *= factor * w.x, v.y *= factor * w.y, v.z *= factor * w.z, v.w *= factor * w.w;
    }
  }
};

// Rows of a multiple of 4 columns, normalized as a whole.
template <int Threads, int Steps, bool IsAligned>
__global__ void __launch_bounds__(Threads) rms_norm(__grid_constant__ const NormFields f) {
  launch_dependents();
  const int64_t count = *f.count;
  NormedRow<Threads, Steps, IsAligned> row;
  row.load_weights(f.weight, f.columns);
  wait_for_previous();
  if (blockIdx.x >= count) return;
  row.compute(row_at(f.x, f.x_stride, blockIdx.x), f.columns, f.epsilon.value);
  float* out = row_at(f.out, f.out_stride, blockIdx.x);
#pragma unroll
  for (int s = 0; s < Steps; s++) {
    if (row.column(s) < f.columns) store4<IsAligned>(out + row.column(s), row.values[s]);
  }
}

// The same, written as A8 (one plane) or A16 (two).
template <int Planes, int Threads, int Steps, bool IsAligned>
__global__ void __launch_bounds__(Threads) norm_quantize(__grid_constant__ const NormFields f) {
  launch_dependents();
  const int64_t count = *f.count;
  NormedRow<Threads, Steps, IsAligned> row;
  row.load_weights(f.weight, f.columns);
  wait_for_previous();
  if (blockIdx.x >= count) return;
  row.compute(row_at(f.x, f.x_stride, blockIdx.x), f.columns, f.epsilon.value);
  unsigned char* out =
      row_at(reinterpret_cast<unsigned char*>(f.out), f.out_stride, blockIdx.x);
#pragma unroll
  for (int s = 0; s < Steps; s++) {
    store_codes<Planes>(out, f.columns, row.column(s), row.values[s], row.column(s) < f.columns);
  }
}

// The same, written as tiles of a left factor, of `out_stride` bytes.
template <int Threads, int Steps, bool IsAligned>
__global__ void __launch_bounds__(Threads) norm_tiled(__grid_constant__ const NormFields f) {
  launch_dependents();
  const int64_t count = *f.count;
  NormedRow<Threads, Steps, IsAligned> row;
  row.load_weights(f.weight, f.columns);
  wait_for_previous();
  if (blockIdx.x >= count) return;
  row.compute(row_at(f.x, f.x_stride, blockIdx.x), f.columns, f.epsilon.value);
  unsigned char* out = reinterpret_cast<unsigned char*>(f.out);
#pragma unroll
  for (int s = 0; s < Steps; s++) {
    if (row.column(s) < f.columns) {
      store_tiled(out, f.out_stride, blockIdx.x, row.column(s), row.values[s]);
    }
  }
}

struct GroupNormFields {
  const float* x;
  const int64_t* count;
  float* out;
  int64_t x_stride, out_stride;
  const float* weight;
  int64_t groups, group;
  Float epsilon;
};

// Any run of columns: one warp a run.
template <int Threads>
__global__ void __launch_bounds__(Threads) group_norm(__grid_constant__ const GroupNormFields f) {
  launch_dependents();
  const int64_t count = *f.count;
  wait_for_previous();
  const int64_t number = static_cast<int64_t>(blockIdx.y) * (Threads / kWarp) + warp_id();
  if (blockIdx.x >= count || number >= f.groups) return;
  const float* x = row_at(f.x, f.x_stride, blockIdx.x) + number * f.group;
  float* out = row_at(f.out, f.out_stride, blockIdx.x) + number * f.group;
  float squares = 0.0f;
  for (int64_t i = lane_id(); i < f.group; i += kWarp) squares += x[i] * x[i];
  const float mean = warp_sum(squares) / static_cast<float>(f.group);
  const float factor = 1.0f / sqrtf(mean + f.epsilon.value);
  for (int64_t i = lane_id(); i < f.group; i += kWarp) out[i] = x[i] * factor * f.weight[i];
}

}  // namespace corral
