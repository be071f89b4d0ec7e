// Rows of A8 or A16 as F16, for the products of `include/halves.cuh`.
//
// A row is [columns of F16, of each 16 the even ones first][factor F32][padding to 16 bytes]; its
// values times the factor are those of the source. The greatest is at most 1024, so that none is
// infinite and small ones keep their bits.
#include "include/fragments.cuh"

namespace corral {

struct HalfRowsFields {
  const int64_t* count;
  const uint8_t* x;
  int64_t x_stride;
  uint8_t* out;
  int64_t out_stride;
  int64_t columns;
};

template <int Planes>
__global__ void __launch_bounds__(256) half_rows(const __grid_constant__ HalfRowsFields f) {
  __shared__ float greatest_of_warps[8];
  launch_dependents();
  wait_for_previous();
  const int row = blockIdx.x, columns = static_cast<int>(f.columns), groups = columns / kGroup;
  if (row >= *f.count) return;
  constexpr float kGreatest = Planes == 1 ? 127.0f : 32512.0f;
  const uint8_t* from = f.x + row * f.x_stride;
  const float* scales = reinterpret_cast<const float*>(from + Planes * columns);
  float greatest = 0.0f;
  for (int i = threadIdx.x; i < groups; i += 256) greatest = fmaxf(greatest, scales[i]);
#pragma unroll
  for (int step = 16; step; step >>= 1) {
    greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, step));
  }
  if (threadIdx.x % 32 == 0) greatest_of_warps[threadIdx.x / 32] = greatest;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 8; i++) greatest = fmaxf(greatest, greatest_of_warps[i]);
  const float factor = fmaxf(greatest, 1e-30f) * (kGreatest / 1024.0f), inverse = 1.0f / factor;
  uint8_t* out = f.out + row * f.out_stride;
  if (threadIdx.x == 0) *reinterpret_cast<float*>(out + 2 * columns) = factor;
  for (int i = threadIdx.x; i < columns / 16; i += 256) {
    const float scale = scales[i / 2] * inverse;
    alignas(16) int8_t codes[Planes][16];
    alignas(16) __half values[16];
#pragma unroll
    for (int p = 0; p < Planes; p++) {
      *reinterpret_cast<int4*>(codes[p]) =
          *reinterpret_cast<const int4*>(from + p * columns + 16 * i);
    }
#pragma unroll
    for (int k = 0; k < 16; k++) {
      int code = codes[0][k];
      if constexpr (Planes == 2) code = 256 * code + codes[1][k];
      values[k % 2 * 8 + k / 2] = __float2half_rn(static_cast<float>(code) * scale);
    }
    int4* to = reinterpret_cast<int4*>(out + 32 * i);
    to[0] = reinterpret_cast<const int4*>(values)[0];
    to[1] = reinterpret_cast<const int4*>(values)[1];
  }
}

}  // namespace corral
