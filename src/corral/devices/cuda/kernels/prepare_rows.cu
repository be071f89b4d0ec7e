// Rows of F32 to the left factor of a prefill product, one block a row; norms, gates and int8 codes on the way.
//
// BF16 is what quantized and BF16 weights meet. F16 weights meet F16, each row divided by a power of two that keeps its
// greatest value finite; the product multiplies by it. F32 weights meet [high, low, high]: see dequantize.cu.
#include "include/ptx.cuh"
#include "include/product.cuh"
#include "include/tiles.cuh"

namespace corral {

struct PrepareRows {
  const char* x;        // F32 rows, the gate; or rows of codes
  int64_t x_stride;
  const int64_t* count;
  const char* other;    // the weight of a norm, or rows of up
  int64_t other_stride;
  int64_t columns;      // a multiple of 32
  Float epsilon;
  char* out;
  int64_t stride;       // of the target: see Target
  float* scales;        // of rows, if F16
};

enum Source { ROWS = 0, NORM = 1, GATED_SILU = 2, GATED_GELU = 3, CODES_8 = 4, CODES_16 = 5 };
enum Form { BF16 = 0, F16 = 1, SPLIT = 2 };

constexpr int PREPARE_THREADS = 256;

inline __device__ void load_floats(float (&v)[CHUNK], const char* from) {
  if (reinterpret_cast<uint64_t>(from) % 16 == 0) {
    const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < CHUNK; i++) v[i] = reinterpret_cast<const float*>(from)[i];
}

// Combines a value of every thread; all get the same, from the same order of additions.
template <bool MAXIMUM>
inline __device__ float over_block(float value) {
  __shared__ float parts[PREPARE_THREADS / 32];
#pragma unroll
  for (int step = 16; step; step /= 2) {
    const float other = __shfl_xor_sync(0xFFFFFFFFu, value, step);
    value = MAXIMUM ? fmaxf(value, other) : value + other;
  }
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = parts[0];
#pragma unroll
  for (int i = 1; i < PREPARE_THREADS / 32; i++) value = MAXIMUM ? fmaxf(value, parts[i]) : value + parts[i];
  return value;
}

template <int SOURCE>
struct Row {
  const char* x;
  const char* other;
  int64_t columns;
  float factor = 1.0f;

  inline __device__ void load(float (&v)[CHUNK], int64_t chunk) const {
    if (SOURCE == CODES_8 || SOURCE == CODES_16) {
      constexpr int PLANES = SOURCE == CODES_16 ? 2 : 1;
      const float scale = reinterpret_cast<const float*>(x + PLANES * columns)[chunk * CHUNK / 32];
      const signed char* codes = reinterpret_cast<const signed char*>(x) + chunk * CHUNK;
#pragma unroll
      for (int i = 0; i < CHUNK; i++) {
        int code = codes[i];
        if (PLANES == 2) code = code * 256 + codes[columns + i];
        v[i] = scale * static_cast<float>(code);
      }
      return;
    }
    load_floats(v, x + chunk * CHUNK * 4);
    if (SOURCE == ROWS) return;
    float other_values[CHUNK];
    load_floats(other_values, other + chunk * CHUNK * 4);
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
      v[i] = (SOURCE == NORM ? v[i] * factor : activated(v[i], SOURCE == GATED_SILU ? SILU : GELU)) * other_values[i];
  }
};

template <int SOURCE, int FORM, bool TILED>
__global__ void __launch_bounds__(PREPARE_THREADS)
prepare_rows(const __grid_constant__ PrepareRows f) {
  launch_dependents();
  wait_for_previous();
  const int64_t row = blockIdx.x, chunks = f.columns / CHUNK, padded = (f.columns + 63) / 64 * 8;
  if (row >= *f.count) return;
  Row<SOURCE> source{f.x + row * f.x_stride, SOURCE == NORM ? f.other : f.other + row * f.other_stride, f.columns};
  float v[CHUNK];
  if (SOURCE == NORM) {
    float squares = 0.0f;
    for (int64_t chunk = threadIdx.x; chunk < chunks; chunk += PREPARE_THREADS) {
      load_floats(v, source.x + chunk * CHUNK * 4);
#pragma unroll
      for (int i = 0; i < CHUNK; i++) squares = fmaf(v[i], v[i], squares);
    }
    source.factor = rsqrtf(over_block<false>(squares) / static_cast<float>(f.columns) + f.epsilon.value);
  }
  float inverse = 1.0f;
  if (FORM == F16) {
    float greatest = 0.0f;
    for (int64_t chunk = threadIdx.x; chunk < chunks; chunk += PREPARE_THREADS) {
      source.load(v, chunk);
#pragma unroll
      for (int i = 0; i < CHUNK; i++) greatest = fmaxf(greatest, fabsf(v[i]));
    }
    if (SOURCE == NORM) __syncthreads();  // the parts of the first reduction are read
    greatest = over_block<true>(greatest);
    // 2^e with |x| / 2^e < 2^15: the exponent of the greatest value less 14, kept normal
    const int exponent = static_cast<int>(__float_as_uint(greatest) >> 23) - 14;
    const unsigned biased = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
    inverse = __uint_as_float((254 - biased) << 23);
    if (threadIdx.x == 0) f.scales[row] = __uint_as_float(biased << 23);
  }
  const Target target{f.out, f.stride};
  for (int64_t chunk = threadIdx.x; chunk < padded; chunk += PREPARE_THREADS) {
    if (chunk >= chunks) {
#pragma unroll
      for (int i = 0; i < CHUNK; i++) v[i] = 0.0f;
      if (!TILED && FORM != SPLIT) continue;
    } else {
      source.load(v, chunk);
    }
    if (FORM == F16) {
#pragma unroll
      for (int i = 0; i < CHUNK; i++) v[i] *= inverse;
      *target.chunk<TILED>(row, chunk) = chunk_of<__half>(v);
      continue;
    }
    const uint4 high = chunk_of<__nv_bfloat16>(v);
    *target.chunk<TILED>(row, chunk) = high;
    if (FORM == SPLIT) {
      keep_remainders(v);
      *target.chunk<TILED>(row, padded + chunk) = chunk_of<__nv_bfloat16>(v);
      *target.chunk<TILED>(row, 2 * padded + chunk) = high;
    }
  }
}

}  // namespace corral
