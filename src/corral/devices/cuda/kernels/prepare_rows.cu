// Rows of F32 to the left factor of a prefill product, one block a row; norms, gates and int8 codes
// on the way.
//
// BF16 is what quantized and BF16 weights meet. F16 weights meet F16, each row divided by a power
// of two that keeps its greatest value finite; the product multiplies by it. F32 weights meet
// [high, low, high]: see dequantize.cu.
#include "include/prefill_product.cuh"
#include "include/ptx.cuh"
#include "include/tiles.cuh"

namespace corral {

struct PrepareRows {
  const char* x;  // F32 rows, the gate; or rows of codes
  int64_t x_stride;
  const int64_t* count;
  const char* other;  // the weight of a norm, or rows of up
  int64_t other_stride;
  int64_t columns;  // a multiple of 32
  Float epsilon;
  char* out;
  int64_t stride;  // of the target: see Target
  float* scales;   // of rows, if F16
  int64_t tile_bytes;
};

enum { kRows = 0, kNorm = 1, kGatedSilu = 2, kGatedGelu = 3, kCodes8 = 4, kCodes16 = 5 };
enum { kBf16 = 0, kF16 = 1, kSplit = 2 };

constexpr int kPrepareThreads = 256;

__device__ __forceinline__ void load_floats(float (&v)[kChunk], const char* from) {
  if (reinterpret_cast<uint64_t>(from) % 16 == 0) {
    const float4 low = reinterpret_cast<const float4*>(from)[0],
                 high = reinterpret_cast<const float4*>(from)[1];
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < kChunk; i++) v[i] = reinterpret_cast<const float*>(from)[i];
}

// Combines a value of every thread; all get the same, from the same order of additions.
template <bool Maximum>
__device__ __forceinline__ float over_block(float value) {
  __shared__ float parts[kPrepareThreads / 32];
#pragma unroll
  for (int step = 16; step; step /= 2) {
    const float other = __shfl_xor_sync(0xFFFFFFFFu, value, step);
    value = Maximum ? fmaxf(value, other) : value + other;
  }
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = parts[0];
#pragma unroll
  for (int i = 1; i < kPrepareThreads / 32; i++)
    value = Maximum ? fmaxf(value, parts[i]) : value + parts[i];
  return value;
}

template <int Source>
struct Row {
  const char* x;
  const char* other;
  int64_t columns;
  float factor = 1.0f;

  __device__ __forceinline__ void load(float (&v)[kChunk], int64_t chunk) const {
    if (Source == kCodes8 || Source == kCodes16) {
      constexpr int kPlanes = Source == kCodes16 ? 2 : 1;
      const float scale =
          reinterpret_cast<const float*>(x + kPlanes * columns)[chunk * kChunk / 32];
      const signed char* codes = reinterpret_cast<const signed char*>(x) + chunk * kChunk;
#pragma unroll
      for (int i = 0; i < kChunk; i++) {
        int code = codes[i];
        if (kPlanes == 2) code = code * 256 + codes[columns + i];
        v[i] = scale * static_cast<float>(code);
      }
      return;
    }
    load_floats(v, x + chunk * kChunk * 4);
    if (Source == kRows) return;
    float other_values[kChunk];
    load_floats(other_values, other + chunk * kChunk * 4);
#pragma unroll
    for (int i = 0; i < kChunk; i++)
      v[i] = (Source == kNorm ? v[i] * factor
                              : activated(v[i], Source == kGatedSilu ? kSilu : kGelu)) *
             other_values[i];
  }
};

template <int Source, int Form, bool Tiled>
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_rows(const __grid_constant__ PrepareRows f) {
  launch_dependents();
  const int64_t count = *f.count;
  wait_for_previous();
  const int64_t row = blockIdx.x, chunks = f.columns / kChunk, padded = (f.columns + 63) / 64 * 8;
  if (row >= count) return;
  Row<Source> source{f.x + row * f.x_stride,
                     Source == kNorm ? f.other : f.other + row * f.other_stride, f.columns};
  float v[kChunk];
  if (Source == kNorm) {
    float squares = 0.0f;
    for (int64_t chunk = threadIdx.x; chunk < chunks; chunk += kPrepareThreads) {
      load_floats(v, source.x + chunk * kChunk * 4);
#pragma unroll
      for (int i = 0; i < kChunk; i++) squares = fmaf(v[i], v[i], squares);
    }
    source.factor =
        rsqrtf(over_block<false>(squares) / static_cast<float>(f.columns) + f.epsilon.value);
  }
  float inverse = 1.0f;
  if (Form == kF16) {
    float greatest = 0.0f;
    for (int64_t chunk = threadIdx.x; chunk < chunks; chunk += kPrepareThreads) {
      source.load(v, chunk);
#pragma unroll
      for (int i = 0; i < kChunk; i++) greatest = fmaxf(greatest, fabsf(v[i]));
    }
    if (Source == kNorm) __syncthreads();  // the parts of the first reduction are read
    greatest = over_block<true>(greatest);
    // 2^e with |x| / 2^e < 2^15: the exponent of the greatest value less 14, kept normal
    const int exponent = static_cast<int>(__float_as_uint(greatest) >> 23) - 14;
    const unsigned biased = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
    inverse = __uint_as_float((254 - biased) << 23);
    if (threadIdx.x == 0) f.scales[row] = __uint_as_float(biased << 23);
  }
  const Target target{f.out, f.stride, f.tile_bytes};
  for (int64_t chunk = threadIdx.x; chunk < padded; chunk += kPrepareThreads) {
    if (chunk >= chunks) {
#pragma unroll
      for (int i = 0; i < kChunk; i++) v[i] = 0.0f;
      if (!Tiled && Form != kSplit) continue;
    } else {
      source.load(v, chunk);
    }
    if (Form == kF16) {
#pragma unroll
      for (int i = 0; i < kChunk; i++) v[i] *= inverse;
      *target.chunk<Tiled>(row, chunk) = chunk_of<__half>(v);
      continue;
    }
    const uint4 high = chunk_of<__nv_bfloat16>(v);
    *target.chunk<Tiled>(row, chunk) = high;
    if (Form == kSplit) {
      keep_remainders(v);
      *target.chunk<Tiled>(row, padded + chunk) = chunk_of<__nv_bfloat16>(v);
      *target.chunk<Tiled>(row, 2 * padded + chunk) = high;
    }
  }
}

}  // namespace corral
