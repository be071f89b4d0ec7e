// What adapters add to products: A · x for the rows that have some, then B · (A · x), in place.
//
// Both go through the spans of the batch, rows that one adapter counts for, and ask the weight's
// table where its matrices lie (tensor/attach.py says how). They lie in F16:
//
//   A  for each unit of 8 ranks: (columns of x, 8)      B  for each 16 rows of it: (ranks, 16)
//
// Products of one x share a launch; block z is the number of the product. A · x is left as sums of
// 512 columns each, (parts, ranks) a row, so that many blocks read A; whoever reads it adds them, in
// one order. What adapters hold does not depend on the launch ahead and is read before waiting.
#include "include/common.cuh"

#include <cuda_fp16.h>

namespace corral {

constexpr int kLoraThreads = 128;
constexpr int kLoraWarps = kLoraThreads / kWarp;
constexpr int kUnitRanks = 8;
constexpr int kPartColumns = 512;
constexpr int kSteps = kPartColumns / kLoraThreads;  // columns of A a thread
constexpr int kRanksAtOnce = 16;
constexpr int kGroups = 8;  // runs of parts that are added side by side
constexpr int kSpanWords = 5;
constexpr int kSpansAtOnce = 64;
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

// What a product's half reads is x, or what A made of it; columns are those of x, or of the result.
struct LoraPart {
  const Adapter* adapters;
  const float* x;
  float* out;
  int64_t x_stride;
  int64_t out_stride;
  int64_t columns;
  int64_t parts;
};

struct LoraFields {
  const int32_t* spans;
  int64_t units;
  LoraPart products[kMostParts];
};

// Brings spans from number `from` on to shared memory; all threads call it.
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

// Every fourth lane gets the sum over the warp of one of eight values, number returned in `which`.
__device__ __forceinline__ float scattered_sum(float* v, int* which) {
  const int lane = lane_id();
#pragma unroll
  for (int half = 4, step = 16; half; half >>= 1, step >>= 1) {
    const bool is_upper = lane & step;
#pragma unroll
    for (int i = 0; i < half; i++) {
      const float kept = is_upper ? v[i + half] : v[i], given = is_upper ? v[i] : v[i + half];
      v[i] = kept + __shfl_xor_sync(kAllLanes, given, step);
    }
  }
  v[0] += __shfl_xor_sync(kAllLanes, v[0], 2);
  v[0] += __shfl_xor_sync(kAllLanes, v[0], 1);
  *which = (lane >> 4 & 1) * 4 + (lane >> 3 & 1) * 2 + (lane >> 2 & 1);
  return v[0];
}

// Block (x, y, z): rows Tile · x …; unit y mod units of columns 512 · (y / units) … of product z.
template <int Tile>
__global__ void __launch_bounds__(kLoraThreads) lora_down(__grid_constant__ const LoraFields f) {
  __shared__ Span spans[kSpansAtOnce];
  __shared__ float sums[kLoraWarps][Tile * kUnitRanks];
  launch_dependents();
  const int count = f.spans[0], begin = Tile * blockIdx.x, units = static_cast<int>(f.units);
  const int unit = blockIdx.y % units, part = blockIdx.y / units;
  const LoraPart product = f.products[blockIdx.z];
  const int columns = static_cast<int>(product.columns), base = part * kPartColumns;
  bool has_waited = false;
  for (int from = 0; from < count && base < columns; from += kSpansAtOnce) {
    const int here = load_spans(spans, f.spans, from, count);
    for (int s = 0; s < here; s++) {
      const Span span = spans[s];
      const int low = max(span.first, begin), high = min(span.end, begin + Tile);
      if (low >= high) continue;
      const Adapter adapter = product.adapters[span.slot];
      const int own = unit - span.unit;
      if (own < 0 || own >= adapter.units) continue;
      const __half* a = adapter.a + static_cast<int64_t>(own) * columns * kUnitRanks;
      alignas(16) __half ranks[kSteps][kUnitRanks];
#pragma unroll
      for (int i = 0; i < kSteps; i++) {
        const int c = base + i * kLoraThreads + threadIdx.x;
        int4 loaded = make_int4(0, 0, 0, 0);
        if (c < columns) loaded = *reinterpret_cast<const int4*>(a + int64_t(c) * kUnitRanks);
        *reinterpret_cast<int4*>(ranks[i]) = loaded;
      }
      if (!has_waited) wait_for_previous();
      has_waited = true;
#pragma unroll
      for (int t = 0; t < Tile; t++) {
        const int row = begin + t;
        if (row < low || row >= high) continue;
        const float* x = row_at(product.x, product.x_stride, row);
        float values[kSteps], totals[kUnitRanks] = {};
#pragma unroll
        for (int i = 0; i < kSteps; i++) {
          const int c = base + i * kLoraThreads + threadIdx.x;
          values[i] = c < columns ? x[c] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < kSteps; i++) {
#pragma unroll
          for (int r = 0; r < kUnitRanks; r++) {
            totals[r] = fmaf(__half2float(ranks[i][r]), values[i], totals[r]);
          }
        }
        int which;
        const float sum = scattered_sum(totals, &which);
        if (lane_id() % 4 == 0) sums[warp_id()][t * kUnitRanks + which] = sum;
      }
      __syncthreads();
      if (threadIdx.x < Tile * kUnitRanks) {
        float sum = sums[0][threadIdx.x];
#pragma unroll
        for (int w = 1; w < kLoraWarps; w++) sum += sums[w][threadIdx.x];
        const int row = begin + threadIdx.x / kUnitRanks;
        const int rank = unit * kUnitRanks + threadIdx.x % kUnitRanks;
        if (row >= low && row < high) {
          row_at(product.out, product.out_stride, row)[part * units * kUnitRanks + rank] = sum;
        }
      }
      __syncthreads();
    }
  }
  if (!has_waited) wait_for_previous();
}

// Block (x, y, z): rows Tile · x …, columns 512 · y … of product z; four columns a thread.
template <int Tile>
__global__ void __launch_bounds__(kLoraThreads, 4) lora_up(__grid_constant__ const LoraFields f) {
  __shared__ Span spans[kSpansAtOnce];
  __shared__ float partial[kGroups][Tile * kRanksAtOnce];
  __shared__ float values[Tile * kRanksAtOnce];
  launch_dependents();
  const int count = f.spans[0], begin = Tile * blockIdx.x;
  const LoraPart product = f.products[blockIdx.z];
  const int all_ranks = static_cast<int>(f.units) * kUnitRanks;
  const int parts = static_cast<int>(product.parts);
  const int64_t first = 4 * (static_cast<int64_t>(blockIdx.y) * kLoraThreads + threadIdx.x);
  const bool is_here = blockIdx.y * 4 * kLoraThreads < product.columns;
  bool has_waited = false;
  for (int from = 0; from < count && is_here; from += kSpansAtOnce) {
    const int here = load_spans(spans, f.spans, from, count);
    for (int s = 0; s < here; s++) {
      const Span span = spans[s];
      const int low = max(span.first, begin), high = min(span.end, begin + Tile);
      if (low >= high) continue;
      const Adapter adapter = product.adapters[span.slot];
      const int ranks = static_cast<int>(adapter.units) * kUnitRanks;
      if (ranks == 0) continue;
      const bool is_inside = first < product.columns;
      const __half* b = adapter.b + (first / 16 * ranks * 16 + first % 16);
      float totals[Tile][4] = {};
      for (int r = 0; r < ranks; r += kRanksAtOnce) {
        alignas(8) __half column[kRanksAtOnce][4];
#pragma unroll
        for (int i = 0; i < kRanksAtOnce; i++) {
          int2 loaded = make_int2(0, 0);
          if (is_inside && r + i < ranks) loaded = *reinterpret_cast<const int2*>(b + (r + i) * 16);
          *reinterpret_cast<int2*>(column[i]) = loaded;
        }
        if (!has_waited) wait_for_previous();
        has_waited = true;
        for (int i = threadIdx.x; i < kGroups * Tile * kRanksAtOnce; i += kLoraThreads) {
          const int group = i / (Tile * kRanksAtOnce), place = i % (Tile * kRanksAtOnce);
          const int row = begin + place / kRanksAtOnce, rank = r + place % kRanksAtOnce;
          float sum = 0.0f;
          if (row >= low && row < high && rank < ranks) {
            const float* x = row_at(product.x, product.x_stride, row);
            for (int p = group; p < parts; p += kGroups) {
              sum += x[p * all_ranks + span.unit * kUnitRanks + rank];
            }
          }
          partial[group][place] = sum;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < Tile * kRanksAtOnce; i += kLoraThreads) {
          float sum = partial[0][i];
#pragma unroll
          for (int g = 1; g < kGroups; g++) sum += partial[g][i];
          values[i] = sum;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kRanksAtOnce; i++) {
#pragma unroll
          for (int t = 0; t < Tile; t++) {
            const float value = values[t * kRanksAtOnce + i];
#pragma unroll
            for (int k = 0; k < 4; k++) {
              totals[t][k] = fmaf(__half2float(column[i][k]), value, totals[t][k]);
            }
          }
        }
      }
      const float scale = span.scale * adapter.factor.value;
#pragma unroll
      for (int t = 0; t < Tile; t++) {
        const int row = begin + t;
        if (row < low || row >= high) continue;
        float* y = row_at(product.out, product.out_stride, row) + first;
#pragma unroll
        for (int k = 0; k < 4; k++) {
          if (first + k < product.columns) y[k] = fmaf(totals[t][k], scale, y[k]);
        }
      }
    }
  }
  if (!has_waited) wait_for_previous();
}

}  // namespace corral
