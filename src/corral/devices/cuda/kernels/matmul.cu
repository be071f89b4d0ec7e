// x · weightᵀ (+ bias, + residual) for every layout and every kind of rows.
//
// A block has one row block (16 rows of the weight) and up to `Tokens` rows of x; its warps share
// the columns. A lane loads 16 bytes: one chunk of four rows, so that it meets one word of the
// codes of x. A row of x is summed in one order, whatever the number of tokens.
#include "include/layouts.cuh"

namespace corral {

struct MatmulFields {
  const unsigned char* x;
  const unsigned char* weights;
  float* out;
  int64_t x_stride, out_stride;
  const float* bias;
  const float* residual;
  int64_t residual_stride, rows, columns;
  const int64_t* count;
};

constexpr int kMatmulThreads = 256;
constexpr int kMatmulWarps = kMatmulThreads / kWarp;

// Rows of x as they are multiplied with quantized weights: what one lane needs of one chunk.
struct X32 {
  static constexpr bool kIsCoded = false;
  float4 low, high;
  template <class Layout>
  static __device__ __forceinline__ X32 load(const unsigned char* row, int64_t, int64_t group,
                                             int chunk) {
    const float* at = reinterpret_cast<const float*>(row) + group * kGroupColumns + 4 * chunk;
    X32 x;
    x.low = load4<false>(at);
    if constexpr (Layout::kBits != 8) x.high = load4<false>(at + 16);
    return x;
  }
  static __device__ __forceinline__ float dot(uint32_t codes, float4 x) {
    return static_cast<int8_t>(codes) * x.x + static_cast<int8_t>(codes >> 8) * x.y +
           static_cast<int8_t>(codes >> 16) * x.z + static_cast<int8_t>(codes >> 24) * x.w;
  }
  __device__ __forceinline__ float dot_low(uint32_t codes) const { return dot(codes, low); }
  __device__ __forceinline__ float dot_high(uint32_t codes) const { return dot(codes, high); }
};

template <int Planes>
struct XCodes {
  static constexpr bool kIsCoded = true;
  int32_t low[Planes], high[Planes];
  float scale;
  template <class Layout>
  static __device__ __forceinline__ XCodes load(const unsigned char* row, int64_t columns,
                                                int64_t group, int chunk) {
    XCodes x;
#pragma unroll
    for (int p = 0; p < Planes; p++) {
      const unsigned char* at = row + p * columns + group * kGroupColumns + 4 * chunk;
      x.low[p] = *reinterpret_cast<const int32_t*>(at);
      if constexpr (Layout::kBits != 8) x.high[p] = *reinterpret_cast<const int32_t*>(at + 16);
    }
    x.scale = reinterpret_cast<const float*>(row + Planes * columns)[group];
    return x;
  }
  __device__ __forceinline__ int32_t whole(uint32_t codes, const int32_t (&x)[Planes]) const {
    int32_t sum = __dp4a(static_cast<int32_t>(codes), x[0], 0);
    if constexpr (Planes == 2) sum = __dp4a(static_cast<int32_t>(codes), x[1], 256 * sum);
    return sum;
  }
  __device__ __forceinline__ float dot_low(uint32_t codes) const {
    return scale * static_cast<float>(whole(codes, low));
  }
  __device__ __forceinline__ float dot_high(uint32_t codes) const {
    return scale * static_cast<float>(whole(codes, high));
  }
  __device__ __forceinline__ float dot_both(uint32_t a, uint32_t b) const {
    return scale * static_cast<float>(whole(a, low) + whole(b, high));
  }
};
using XA8 = XCodes<1>;
using XA16 = XCodes<2>;

constexpr uint32_t kOnes = 0x01010101u;

// Adds what one chunk of four rows gives for one token.
template <class Layout, class X>
__device__ __forceinline__ void add_chunk(float (&sums)[4], const Codes (&codes)[4],
                                          const float (&scales)[Layout::kParts][4],
                                          const float (&offsets)[Layout::kParts][4], const X& x) {
  constexpr bool kHasHigh = Layout::kBits != 8;
  float ones_low = 0.0f, ones_high = 0.0f;
  if constexpr (Layout::kHasOffset) {
    ones_low = x.dot_low(kOnes);
    if constexpr (kHasHigh) ones_high = x.dot_high(kOnes);
  }
#pragma unroll
  for (int r = 0; r < 4; r++) {
    if constexpr (kHasHigh && Layout::kParts == 1 && X::kIsCoded) {
      sums[r] += scales[0][r] * x.dot_both(codes[r].low, codes[r].high);
    } else {
      sums[r] += scales[0][r] * x.dot_low(codes[r].low);
      if constexpr (kHasHigh) sums[r] += scales[Layout::kParts - 1][r] * x.dot_high(codes[r].high);
    }
    if constexpr (Layout::kHasOffset) {
      sums[r] += offsets[0][r] * ones_low;
      if constexpr (kHasHigh) sums[r] += offsets[Layout::kParts - 1][r] * ones_high;
    }
  }
}

// The sums of four rows over the columns of one warp: a lane has chunks of its own.
template <class Layout, class X, int Tokens>
struct PackedSums {
  static constexpr int kRowsOfLane = 4;
  static constexpr int kLanes = 4 * Layout::kChunks;  // of a group
  static constexpr int kGroups = kWarp / kLanes;      // side by side in a warp
  float sums[Tokens][4] = {};

  __device__ __forceinline__ static int first_row() { return 4 * (lane_id() % 4); }

  __device__ __forceinline__ void compute(const MatmulFields& f, const unsigned char* block,
                                          int64_t first, int tokens) {
    const int chunk = lane_id() / 4 % Layout::kChunks, row = first_row();
    const int64_t groups = f.columns / kGroupColumns;
#pragma unroll 2
    for (int64_t g = warp_id() * kGroups + lane_id() / kLanes; g < groups;
         g += kMatmulWarps * kGroups) {
      const unsigned char* group = Layout::group(block, g);
      const unsigned char* span = Layout::span(block, g);
      const uint4* words = reinterpret_cast<const uint4*>(group + Layout::kHeadBytes + 4 * row);
      const uint4 word = words[chunk * 4];
      uint4 top0 = make_uint4(0, 0, 0, 0), top1 = top0;
      if constexpr (Layout::kBits == 5 || Layout::kBits == 6) top0 = words[4 * 4];
      if constexpr (Layout::kBits == 6) top1 = words[5 * 4];
      float scales[Layout::kParts][4], offsets[Layout::kParts][4] = {};
#pragma unroll
      for (int p = 0; p < Layout::kParts; p++) {
#pragma unroll
        for (int r = 0; r < 4; r++) {
          scales[p][r] = take_scale<Layout>(span, group, 0, p, row + r);
          if constexpr (Layout::kHasOffset) {
            offsets[p][r] = take_scale<Layout>(span, group, 1, p, row + r);
          }
        }
      }
      const Codes codes[4] = {take_codes<Layout>(word.x, top0.x, top1.x, chunk),
                              take_codes<Layout>(word.y, top0.y, top1.y, chunk),
                              take_codes<Layout>(word.z, top0.z, top1.z, chunk),
                              take_codes<Layout>(word.w, top0.w, top1.w, chunk)};
#pragma unroll
      for (int t = 0; t < Tokens; t++) {
        if (t >= tokens) break;
        const X x = X::template load<Layout>(row_at(f.x, f.x_stride, first + t), f.columns, g,
                                             chunk);
        add_chunk<Layout, X>(sums[t], codes, scales, offsets, x);
      }
    }
  }
};

// The same for float weights: columns lie one after the other, 16 rows each.
template <class Layout, class X, int Tokens>
struct PlainSums {
  using Stored = typename Layout::Stored;
  static constexpr int kRowsOfLane = 16 / sizeof(Stored);
  static constexpr int kLanes = kRows / kRowsOfLane;  // of a column
  static constexpr int kColumns = kWarp / kLanes;     // side by side in a warp
  float sums[Tokens][kRowsOfLane] = {};

  __device__ __forceinline__ static int first_row() { return kRowsOfLane * (lane_id() % kLanes); }

  __device__ __forceinline__ void compute(const MatmulFields& f, const unsigned char* block,
                                          int64_t first, int tokens) {
    const uint4* words = reinterpret_cast<const uint4*>(block);
#pragma unroll 4
    for (int64_t c = warp_id() * kColumns + lane_id() / kLanes; c < f.columns;
         c += kMatmulWarps * kColumns) {
      const uint4 word = words[c * kLanes + lane_id() % kLanes];
      const Stored* values = reinterpret_cast<const Stored*>(&word);
#pragma unroll
      for (int t = 0; t < Tokens; t++) {
        if (t >= tokens) break;
        const float x = reinterpret_cast<const float*>(row_at(f.x, f.x_stride, first + t))[c];
#pragma unroll
        for (int r = 0; r < kRowsOfLane; r++) sums[t][r] += as_float(values[r]) * x;
      }
    }
  }
};

template <bool IsFloat, class Layout, class X, int Tokens>
struct ChooseSums {
  using Type = PackedSums<Layout, X, Tokens>;
};
template <class Layout, class X, int Tokens>
struct ChooseSums<true, Layout, X, Tokens> {
  using Type = PlainSums<Layout, X, Tokens>;
};

template <class Layout, class X, int Tokens>
__global__ void __launch_bounds__(kMatmulThreads) matmul(__grid_constant__ const MatmulFields f) {
  using Sums = typename ChooseSums<Layout::kIsFloat, Layout, X, Tokens>::Type;
  __shared__ float parts[kMatmulWarps][Tokens][kRows];
  launch_dependents();
  const int64_t count = *f.count;
  wait_for_previous();
  const int64_t first = static_cast<int64_t>(blockIdx.y) * Tokens;
  const int64_t left = count - first;
  if (left <= 0) return;
  const int tokens = left < Tokens ? left : Tokens;
  const unsigned char* block = f.weights + blockIdx.x * Layout::row_block_bytes(f.columns);
  Sums mine;
  mine.compute(f, block, first, tokens);
#pragma unroll
  for (int t = 0; t < Tokens; t++) {
#pragma unroll
    for (int r = 0; r < Sums::kRowsOfLane; r++) {
      float sum = mine.sums[t][r];
#pragma unroll
      for (int step = kWarp / 2; step >= kRows / Sums::kRowsOfLane; step >>= 1) {
        sum += __shfl_xor_sync(kAllLanes, sum, step);
      }
      if (lane_id() < kRows / Sums::kRowsOfLane) {
        parts[warp_id()][t][Sums::first_row() + r] = sum;
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < tokens * kRows; i += kMatmulThreads) {
    const int64_t token = first + i / kRows;
    const int64_t row = blockIdx.x * static_cast<int64_t>(kRows) + i % kRows;
    if (row >= f.rows) continue;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kMatmulWarps; w++) sum += parts[w][i / kRows][i % kRows];
    if (f.bias) sum += f.bias[row];
    if (f.residual) sum += row_at(f.residual, f.residual_stride, token)[row];
    row_at(f.out, f.out_stride, token)[row] = sum;
  }
}

}  // namespace corral
