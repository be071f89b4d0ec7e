// Operations on each element by itself, alone or followed by rounding to integer codes.
//
// Block (x, y) has columns 1024 y … of row x; four columns a thread.
#include "include/activation.cuh"
#include "include/codes.cuh"

namespace corral {

constexpr int kElementThreads = 256;

__device__ __forceinline__ int64_t first_column() {
  return kColumnsPerLane * (static_cast<int64_t>(blockIdx.y) * kElementThreads + threadIdx.x);
}

struct UnaryFields {
  const float* x;
  const int64_t* count;
  float* out;
  int64_t x_stride, out_stride, columns;
  Float limit;
};

struct BinaryFields {
  const float* a;
  const float* b;
  const int64_t* count;
  float* out;
  int64_t a_stride, b_stride, out_stride, columns;
};

struct Add {
  static __device__ __forceinline__ float of(float a, float b) { return a + b; }
};

struct Mul {
  static __device__ __forceinline__ float of(float a, float b) { return a * b; }
};

template <class Activation>
struct Gated {
  static __device__ __forceinline__ float of(float a, float b) { return Activation::of(a) * b; }
};

// Aligned rows are a multiple of 4 columns.
template <class Operation, bool IsAligned>
__global__ void __launch_bounds__(kElementThreads)
    binary(__grid_constant__ const BinaryFields f) {
  launch_dependents();
  const int64_t count = *f.count;
  wait_for_previous();
  if (blockIdx.x >= count) return;
  const float* a = row_at(f.a, f.a_stride, blockIdx.x);
  const float* b = row_at(f.b, f.b_stride, blockIdx.x);
  float* out = row_at(f.out, f.out_stride, blockIdx.x);
  const int64_t first = first_column();
  if constexpr (IsAligned) {
    if (first >= f.columns) return;
    const float4 u = load4<true>(a + first), v = load4<true>(b + first);
    store4<true>(out + first, make_float4(Operation::of(u.x, v.x), Operation::of(u.y, v.y),
                                          Operation::of(u.z, v.z), Operation::of(u.w, v.w)));
  } else {
    for (int64_t i = first; i < f.columns && i < first + kColumnsPerLane; i++) {
      out[i] = Operation::of(a[i], b[i]);
    }
  }
}

struct Softcap {
  static __device__ __forceinline__ float of(float x, float limit) {
    return limit * tanhf(x / limit);
  }
};

template <class Activation>
struct Activate {
  static __device__ __forceinline__ float of(float x, float) { return Activation::of(x); }
};

template <class Operation, bool IsAligned>
__global__ void __launch_bounds__(kElementThreads) unary(__grid_constant__ const UnaryFields f) {
  launch_dependents();
  const int64_t count = *f.count;
  wait_for_previous();
  if (blockIdx.x >= count) return;
  const float* x = row_at(f.x, f.x_stride, blockIdx.x);
  float* out = row_at(f.out, f.out_stride, blockIdx.x);
  const int64_t first = first_column();
  const float limit = f.limit.value;
  if constexpr (IsAligned) {
    if (first >= f.columns) return;
    const float4 v = load4<true>(x + first);
    store4<true>(out + first, make_float4(Operation::of(v.x, limit), Operation::of(v.y, limit),
                                          Operation::of(v.z, limit), Operation::of(v.w, limit)));
  } else {
    for (int64_t i = first; i < f.columns && i < first + kColumnsPerLane; i++) {
      out[i] = Operation::of(x[i], limit);
    }
  }
}

// Rows of a multiple of 32 columns, written as A8 or A16.
template <int Planes, bool IsAligned>
__global__ void __launch_bounds__(kElementThreads)
    quantize(__grid_constant__ const UnaryFields f) {
  launch_dependents();
  const int64_t count = *f.count;
  wait_for_previous();
  if (blockIdx.x >= count) return;
  const int64_t first = first_column();
  const bool is_inside = first < f.columns;
  float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (is_inside) v = load4<IsAligned>(row_at(f.x, f.x_stride, blockIdx.x) + first);
  unsigned char* out = reinterpret_cast<unsigned char*>(f.out);
  store_codes<Planes>(row_at(out, f.out_stride, blockIdx.x), f.columns, first, v, is_inside);
}

template <class Activation, int Planes, bool IsAligned>
__global__ void __launch_bounds__(kElementThreads)
    gated_quantize(__grid_constant__ const BinaryFields f) {
  launch_dependents();
  const int64_t count = *f.count;
  wait_for_previous();
  if (blockIdx.x >= count) return;
  const int64_t first = first_column();
  const bool is_inside = first < f.columns;
  float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (is_inside) {
    const float4 a = load4<IsAligned>(row_at(f.a, f.a_stride, blockIdx.x) + first);
    const float4 b = load4<IsAligned>(row_at(f.b, f.b_stride, blockIdx.x) + first);
    v.x = Activation::of(a.x) * b.x, v.y = Activation::of(a.y) * b.y;
    v.z = Activation::of(a.z) * b.z, v.w = Activation::of(a.w) * b.w;
  }
  unsigned char* out = reinterpret_cast<unsigned char*>(f.out);
  store_codes<Planes>(row_at(out, f.out_stride, blockIdx.x), f.columns, first, v, is_inside);
}

struct SelectFields {
  const float* x;
  const int64_t* count;
  float* out;
  int64_t x_stride, out_stride;
  const int32_t* rows;
  int64_t columns;
};

template <bool IsAligned>
__global__ void __launch_bounds__(kElementThreads)
    select_rows(__grid_constant__ const SelectFields f) {
  launch_dependents();
  const int64_t count = *f.count;
  wait_for_previous();
  if (blockIdx.x >= count) return;
  const float* x = row_at(f.x, f.x_stride, f.rows[blockIdx.x]);
  float* out = row_at(f.out, f.out_stride, blockIdx.x);
  const int64_t first = first_column();
  if constexpr (IsAligned) {
    if (first < f.columns) store4<true>(out + first, load4<true>(x + first));
  } else {
    for (int64_t i = first; i < f.columns && i < first + kColumnsPerLane; i++) out[i] = x[i];
  }
}

}  // namespace corral
