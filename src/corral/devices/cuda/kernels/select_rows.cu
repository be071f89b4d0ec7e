// Copies the rows whose logits are wanted: out[n] = x[rows[n]]. A block copies one row.
#include "include/ptx.cuh"

namespace corral {

struct SelectRowsFields {
  const unsigned char* x;  // F32 rows
  const int32_t* rows;     // the numbers of those wanted
  const int64_t* count;    // how many are wanted
  unsigned char* out;
  int64_t x_stride;  // bytes from a row to the next, a multiple of 16
  int64_t out_stride;
  int64_t columns;  // a multiple of 4
};

__global__ void __launch_bounds__(256) select_rows(const __grid_constant__ SelectRowsFields f) {
  launch_dependents();
  wait_for_previous();
  const int64_t row = blockIdx.x;
  if (row >= *f.count) return;
  const auto* x = reinterpret_cast<const float4*>(f.x + f.rows[row] * f.x_stride);
  auto* out = reinterpret_cast<float4*>(f.out + row * f.out_stride);
  for (int64_t i = threadIdx.x; i < f.columns / 4; i += blockDim.x) out[i] = x[i];
}

}  // namespace corral
