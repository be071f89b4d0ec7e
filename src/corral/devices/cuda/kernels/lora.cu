// What adapters add to products: A · x for the rows that have some, then B · (A · x), in place.
//
// Both go through the spans of the batch, rows that one adapter counts for, and ask the weight's
// table where its matrices lie (tensor/attach.py says how). They lie in F16:
//
//   A  for each unit of 8 ranks: (columns of x, 8)      B  for each 16 rows of it: (ranks, 16)
//
// Products of one x share a launch; block z is the number of the part. A row's sums have one order,
// whatever the tile it stands in.
#include "include/common.cuh"

#include <cuda_fp16.h>

namespace corral {

constexpr int kLoraThreads = 256;
constexpr int kUnitRanks = 8;
constexpr int kSpanWords = 5;
constexpr int kSpansAtOnce = 128;
constexpr int kMostParts = 3;

struct Span {
  int32_t first, end, slot, unit;
  float scale;
};

struct Adapter {
  const __half* a;
  const __half* b;
  int64_t units;
  Float factor;
};

// What a part reads is x, or what A made of it; columns are those of x, or of the result.
struct LoraPart {
  const Adapter* adapters;
  const float* x;
  float* out;
  int64_t x_stride;
  int64_t out_stride;
  int64_t columns;
};

struct LoraFields {
  const int32_t* spans;
  LoraPart parts[kMostParts];
};

// Brings up to kSpansAtOnce spans from number `from` on to shared memory; all threads call it.
__device__ __forceinline__ int load_spans(Span* to, const int32_t* spans, int from, int count) {
  const int here = min(kSpansAtOnce, count - from);
  __syncthreads();
  for (int i = threadIdx.x; i < here; i += kLoraThreads) {
    const int32_t* word = spans + (from + i + 1) * kSpanWords;
    to[i].first = word[0], to[i].end = word[1], to[i].slot = word[2], to[i].unit = word[3];
    to[i].scale = __int_as_float(word[4]);
  }
  __syncthreads();
  return here;
}

__device__ __forceinline__ void unpack8(float* to, const __half* from) {
  alignas(16) __half values[8];
  *reinterpret_cast<int4*>(values) = *reinterpret_cast<const int4*>(from);
#pragma unroll
  for (int i = 0; i < 8; i++) to[i] = __half2float(values[i]);
}

// Block (x, y, z): rows Tile · x … of unit y of part z.
template <int Tile>
__global__ void __launch_bounds__(kLoraThreads) lora_down(__grid_constant__ const LoraFields f) {
  constexpr int kWarps = kLoraThreads / kWarp;
  __shared__ Span spans[kSpansAtOnce];
  __shared__ float sums[kWarps][Tile * kUnitRanks];
  launch_dependents();
  const int count = f.spans[0], begin = Tile * blockIdx.x, unit = blockIdx.y;
  const LoraPart part = f.parts[blockIdx.z];
  const int columns = static_cast<int>(part.columns);
  bool has_waited = false;
  for (int from = 0; from < count; from += kSpansAtOnce) {
    const int here = load_spans(spans, f.spans, from, count);
    for (int s = 0; s < here; s++) {
      const Span span = spans[s];
      const int low = max(span.first, begin), high = min(span.end, begin + Tile);
      if (low >= high) continue;
      const Adapter adapter = part.adapters[span.slot];
      const int own = unit - span.unit;
      if (own < 0 || own >= adapter.units) continue;
      if (!has_waited) wait_for_previous();
      has_waited = true;
      const __half* a = adapter.a + static_cast<int64_t>(own) * columns * kUnitRanks;
      float totals[Tile][kUnitRanks] = {};
      for (int c = threadIdx.x; c < columns; c += kLoraThreads) {
        float ranks[kUnitRanks];
        unpack8(ranks, a + static_cast<int64_t>(c) * kUnitRanks);
#pragma unroll
        for (int t = 0; t < Tile; t++) {
          const int row = begin + t;
          if (row < low || row >= high) continue;
          const float x = row_at(part.x, part.x_stride, row)[c];
#pragma unroll
          for (int r = 0; r < kUnitRanks; r++) totals[t][r] = fmaf(ranks[r], x, totals[t][r]);
        }
      }
#pragma unroll
      for (int t = 0; t < Tile; t++) {
#pragma unroll
        for (int r = 0; r < kUnitRanks; r++) {
          const float sum = warp_sum(totals[t][r]);
          if (lane_id() == 0) sums[warp_id()][t * kUnitRanks + r] = sum;
        }
      }
      __syncthreads();
      if (threadIdx.x < Tile * kUnitRanks) {
        float sum = 0.0f;
        for (int w = 0; w < kWarps; w++) sum += sums[w][threadIdx.x];
        const int row = begin + threadIdx.x / kUnitRanks;
        if (row >= low && row < high) {
          row_at(part.out, part.out_stride, row)[unit * kUnitRanks + threadIdx.x % kUnitRanks] = sum;
        }
      }
      __syncthreads();
    }
  }
  if (!has_waited) wait_for_previous();
}

// Block (x, y, z): rows Tile · x …, columns 2048 y … of part z; eight columns a thread.
template <int Tile>
__global__ void __launch_bounds__(kLoraThreads) lora_up(__grid_constant__ const LoraFields f) {
  __shared__ Span spans[kSpansAtOnce];
  launch_dependents();
  const int count = f.spans[0], begin = Tile * blockIdx.x;
  const LoraPart part = f.parts[blockIdx.z];
  const int64_t first = 8 * (static_cast<int64_t>(blockIdx.y) * kLoraThreads + threadIdx.x);
  wait_for_previous();
  for (int from = 0; from < count; from += kSpansAtOnce) {
    const int here = load_spans(spans, f.spans, from, count);
    for (int s = 0; s < here; s++) {
      const Span span = spans[s];
      const int low = max(span.first, begin), high = min(span.end, begin + Tile);
      if (low >= high || first >= part.columns) continue;
      const Adapter adapter = part.adapters[span.slot];
      const int ranks = static_cast<int>(adapter.units) * kUnitRanks;
      if (ranks == 0) continue;
      const __half* b = adapter.b + (first / 16 * ranks * 16 + first % 16);
      float totals[Tile][8] = {};
      for (int r = 0; r < ranks; r++) {
        float column[8];
        unpack8(column, b + r * 16);
#pragma unroll
        for (int t = 0; t < Tile; t++) {
          const int row = begin + t;
          if (row < low || row >= high) continue;
          const float value = row_at(part.x, part.x_stride, row)[span.unit * kUnitRanks + r];
#pragma unroll
          for (int i = 0; i < 8; i++) totals[t][i] = fmaf(column[i], value, totals[t][i]);
        }
      }
      const float scale = span.scale * adapter.factor.value;
#pragma unroll
      for (int t = 0; t < Tile; t++) {
        const int row = begin + t;
        if (row < low || row >= high) continue;
        float* y = row_at(part.out, part.out_stride, row) + first;
#pragma unroll
        for (int i = 0; i < 8; i++) {
          if (first + i < part.columns) y[i] = fmaf(totals[t][i], scale, y[i]);
        }
      }
    }
  }
}

}  // namespace corral
