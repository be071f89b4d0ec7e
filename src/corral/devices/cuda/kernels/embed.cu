// Rows of a packed table, chosen by token.
#include "include/layouts.cuh"

namespace corral {

struct EmbedFields {
  const int32_t* tokens;
  const int64_t* count;
  const int32_t* chosen;  // by the evaluation before
  const unsigned char* table;
  float* out;
  int64_t out_stride, columns, vocabulary;
  Float scale;
};

// Block (row, part of the columns): a thread has four columns of a quantized table, a chunk of one
// row, or one of a float table. Tokens below 0 stand for those that were chosen before; a token
// outside the table gives its last row.
template <class Layout>
__global__ void __launch_bounds__(128) embed(__grid_constant__ const EmbedFields f) {
  launch_dependents();
  const int64_t count = *f.count;
  wait_for_previous();
  if (blockIdx.x >= count) return;
  const int32_t given = f.tokens[blockIdx.x];
  const uint32_t token = given < 0 ? f.chosen[-1 - given] : given;
  const int64_t chosen = token < f.vocabulary ? token : f.vocabulary - 1;
  const unsigned char* block = f.table + chosen / kRows * Layout::row_block_bytes(f.columns);
  const int row = chosen % kRows;
  float* out = row_at(f.out, f.out_stride, blockIdx.x);
  const float factor = f.scale.value;
  const int64_t number = static_cast<int64_t>(blockIdx.y) * 128 + threadIdx.x;
  if constexpr (Layout::kIsFloat) {
    if (number >= f.columns) return;
    const auto* values = reinterpret_cast<const typename Layout::Stored*>(block);
    out[number] = as_float(values[number * kRows + row]) * factor;
  } else {
    const int64_t number_of_group = number / 8;
    const int quarter = number % 8;  // columns 4 quarter … of the group
    if (number_of_group >= f.columns / kGroupColumns) return;
    const unsigned char* group = Layout::group(block, number_of_group);
    const unsigned char* span = Layout::span(block, number_of_group);
    const int chunk = quarter % Layout::kChunks;
    const uint32_t* words = reinterpret_cast<const uint32_t*>(group + Layout::kHeadBytes);
    uint32_t top0 = 0, top1 = 0;
    if constexpr (Layout::kBits == 5 || Layout::kBits == 6) top0 = words[4 * kRows + row];
    if constexpr (Layout::kBits == 6) top1 = words[5 * kRows + row];
    const Codes codes = take_codes<Layout>(words[chunk * kRows + row], top0, top1, chunk);
    const uint32_t four = quarter < Layout::kChunks ? codes.low : codes.high;
    const int part = quarter / 4 * Layout::kParts / 2;
    const float scale = take_scale<Layout>(span, group, 0, part, row);
    float offset = 0.0f;
    if constexpr (Layout::kHasOffset) offset = take_scale<Layout>(span, group, 1, part, row);
    float* to = out + number_of_group * kGroupColumns + 4 * quarter;
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const float value = __fmul_rn(scale, static_cast<int8_t>(four >> (8 * e)));
      to[e] = (Layout::kHasOffset ? __fadd_rn(value, offset) : value) * factor;
    }
  }
}

}  // namespace corral
