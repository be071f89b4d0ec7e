// What most kernels need: fields, rows, reductions.
#pragma once

#include "ptx.cuh"

namespace corral {

constexpr unsigned kAllLanes = 0xFFFFFFFFu;
constexpr int kWarp = 32;

// A field that holds an F32: the low half of a word.
struct Float {
  float value;
  uint32_t unused;
};

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7F800000u); }
__device__ __forceinline__ float not_a_number() { return __uint_as_float(0x7FFFFFFFu); }

// Row `i` of rows that lie `stride` bytes apart.
template <class T>
__device__ __forceinline__ T* row_at(T* base, int64_t stride, int64_t i) {
  using Byte = unsigned char;
  return reinterpret_cast<T*>(const_cast<Byte*>(reinterpret_cast<const Byte*>(base)) + i * stride);
}

__device__ __forceinline__ int lane_id() { return threadIdx.x % kWarp; }
__device__ __forceinline__ int warp_id() { return threadIdx.x / kWarp; }

// Every lane gets the sum of runs of `Lanes` lanes; the order of additions is fixed.
template <int Lanes = kWarp>
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int step = Lanes / 2; step; step >>= 1) v += __shfl_xor_sync(kAllLanes, v, step);
  return v;
}

template <int Lanes = kWarp>
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int step = Lanes / 2; step; step >>= 1) {
    v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, step));
  }
  return v;
}

// Every thread gets the sum over the block. All threads call it, once in a kernel.
template <int Threads>
__device__ __forceinline__ float block_sum(float v) {
  constexpr int kWarps = Threads / kWarp;
  __shared__ float parts[kWarps];
  v = warp_sum(v);
  if constexpr (kWarps == 1) return v;
  if (lane_id() == 0) parts[warp_id()] = v;
  __syncthreads();
  v = lane_id() < kWarps ? parts[lane_id()] : 0.0f;
  return warp_sum(v);
}

// Four values of F32; one load where rows are 16-byte aligned.
template <bool IsAligned>
__device__ __forceinline__ float4 load4(const float* p) {
  if constexpr (IsAligned) return *reinterpret_cast<const float4*>(p);
  return make_float4(p[0], p[1], p[2], p[3]);
}

template <bool IsAligned>
__device__ __forceinline__ void store4(float* p, float4 v) {
  if constexpr (IsAligned) {
    *reinterpret_cast<float4*>(p) = v;
  } else {
    p[0] = v.x, p[1] = v.y, p[2] = v.z, p[3] = v.w;
  }
}

}  // namespace corral
