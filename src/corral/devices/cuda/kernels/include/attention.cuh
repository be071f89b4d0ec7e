// What the kernels of attention share: fields, parts of positions, partial results.
#pragma once

#include "cache.cuh"

namespace corral {

struct AttentionFields {
  const float* q;
  const unsigned char* state;
  float* out;
  const int64_t* count;
  const int32_t* positions;
  const int32_t* sequences;
  const int32_t* tables;
  int64_t q_stride, out_stride, tables_stride, kv_heads, heads;
  Float scale;
  int64_t window;
  Float softcap;
  float* partials;
  int32_t* counters;  // of parts that are done, one a row and block of heads; zero before and after
  int64_t splits;
  int64_t planes;  // of codes that the result is rounded to; 0: it stays F32
};

constexpr float kLog2E = 1.4426950408889634f;
constexpr int kLeastBlocks = 4;  // of a part: less is not worth a thread block
constexpr int kMostSplits = 264;

// The positions that a row sees, first … end − 1, cut in parts of whole blocks.
struct Parts {
  int first, end, first_block, each, count;

  template <bool IsWindowed>
  static __device__ __forceinline__ Parts of(int position, int64_t window, int splits) {
    Parts p;
    p.end = position + 1;
    p.first = IsWindowed && p.end > window ? p.end - static_cast<int>(window) : 0;
    p.first_block = p.first / kBlockTokens;
    const int blocks = (p.end + kBlockTokens - 1) / kBlockTokens - p.first_block;
    p.each = (blocks + splits - 1) / splits;
    if (p.each < kLeastBlocks) p.each = kLeastBlocks;
    p.count = (blocks + p.each - 1) / p.each;
    return p;
  }
  __device__ __forceinline__ int first_of(int part) const {
    const int from = (first_block + part * each) * kBlockTokens;
    return from > first ? from : first;
  }
  __device__ __forceinline__ int end_of(int part) const {
    const int to = (first_block + (part + 1) * each) * kBlockTokens;
    return to < end ? to : end;
  }
};

// Where one part of one head lies in scratch: the greatest score, the sum, then the values.
template <int HeadDim>
__device__ __forceinline__ float* partial_at(const AttentionFields& f, int64_t row, int64_t head,
                                             int64_t split) {
  return f.partials + ((row * f.heads + head) * f.splits + split) * (HeadDim + 2);
}

// What was seen of one head so far: its greatest score, times log2(e), and the sum of weights.
struct Seen {
  float most, sum;
};

__device__ __forceinline__ float weight_of(float score, float most) {
  return most == -infinity() ? 0.0f : exp2f(score - most);
}

// Writes dimension `d` of a head's result: a warp 32 of them side by side, where they become codes.
template <int HeadDim>
__device__ __forceinline__ void store_mixed(const AttentionFields& f, int64_t row, int64_t head,
                                            int d, float value) {
  const int64_t column = head * HeadDim + d;
  float* out = row_at(f.out, f.out_stride, row);
  if constexpr (HeadDim % kGroup == 0) {
    unsigned char* codes = reinterpret_cast<unsigned char*>(out);
    if (f.planes == 1) return store_code<1>(codes, f.heads * HeadDim, column, value);
    if (f.planes == 2) return store_code<2>(codes, f.heads * HeadDim, column, value);
  }
  out[column] = value;
}

// Writes dimension `d` of a head: the result, or what `fold_parts` folds.
template <int HeadDim>
__device__ __forceinline__ void store_value(const AttentionFields& f, int64_t row, int64_t head,
                                            const Parts& parts, int part, int d, Seen seen,
                                            float value) {
  if (parts.count == 1) return store_mixed<HeadDim>(f, row, head, d, value / seen.sum);
  float* partial = partial_at<HeadDim>(f, row, head, part);
  if (d == 0) partial[0] = seen.most, partial[1] = seen.sum;
  partial[2 + d] = value;
}

// The block that is the last of a row and its heads folds what all of them left, always in the same
// order. Called by every thread, after its `store_value`.
template <int HeadDim, int Heads, int Warps>
__device__ __forceinline__ void fold_parts(const AttentionFields& f, int64_t row,
                                           const Parts& parts) {
  if (parts.count == 1) return;
  __shared__ bool is_last;
  __shared__ float weights[Heads][kMostSplits], totals[Heads];
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t* counter = f.counters + row * gridDim.x + blockIdx.x;
    is_last = atomicAdd(counter, 1) == parts.count - 1;
    if (is_last) *counter = 0;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  const int64_t first_head = static_cast<int64_t>(blockIdx.x) * Heads;
  for (int h = warp_id(); h < Heads; h += Warps) {
    const float* partial = partial_at<HeadDim>(f, row, first_head + h, 0);
    float most = -infinity(), sum = 0.0f;
    for (int i = lane_id(); i < parts.count; i += kWarp) {
      weights[h][i] = __ldcg(partial + i * (HeadDim + 2));
      most = fmaxf(most, weights[h][i]);
    }
    most = warp_max(most);
    for (int i = lane_id(); i < parts.count; i += kWarp) {
      weights[h][i] = weight_of(weights[h][i], most);
      sum += weights[h][i] * __ldcg(partial + i * (HeadDim + 2) + 1);
    }
    sum = warp_sum(sum);
    if (lane_id() == 0) totals[h] = sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < Heads * HeadDim; i += Warps * kWarp) {
    const int h = i / HeadDim, d = i % HeadDim;
    const float* partial = partial_at<HeadDim>(f, row, first_head + h, 0) + 2 + d;
    float value = 0.0f;
#pragma unroll 8
    for (int p = 0; p < parts.count; p++) {
      value += weights[h][p] * __ldcg(partial + p * (HeadDim + 2));
    }
    store_mixed<HeadDim>(f, row, first_head + h, d, value / totals[h]);
  }
}

}  // namespace corral
