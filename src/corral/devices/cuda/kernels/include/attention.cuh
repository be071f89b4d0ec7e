// What the kernels of attention share: fields, parts of positions, partial results.
#pragma once

#include "cache.cuh"
#include "tiled_rows.cuh"

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
  int64_t planes;  // of codes that the result is rounded to; 0: F32; kTiled: tiles of out_stride bytes
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

// Where one part of one head lies in scratch: its values, and behind those of all, what was seen.
template <int HeadDim>
__device__ __forceinline__ float* partial_at(const AttentionFields& f, int64_t row, int64_t head,
                                             int64_t split) {
  return f.partials + ((row * f.heads + head) * f.splits + split) * HeadDim;
}

template <int HeadDim>
__device__ __forceinline__ float2* seen_at(const AttentionFields& f, int64_t row, int64_t head,
                                           int64_t split) {
  float* behind = f.partials + gridDim.z * f.heads * f.splits * HeadDim;
  return reinterpret_cast<float2*>(behind) + (row * f.heads + head) * f.splits + split;
}

// What was seen of one head so far: its greatest score, times log2(e), and the sum of weights.
struct Seen {
  float most, sum;
};

__device__ __forceinline__ float weight_of(float score, float most) {
  return most == -infinity() ? 0.0f : exp2f(score - most);
}

constexpr int kTiled = 3;

// Writes four dimensions of a head's result from `d` on, as floats or as codes. All lanes of a warp
// call it; eight side by side have a group of codes.
template <int HeadDim>
__device__ __forceinline__ void store_mixed(const AttentionFields& f, int64_t row, int64_t head,
                                            int d, float4 v, bool is_inside) {
  const int64_t column = head * HeadDim + d;
  if (f.planes == kTiled) {
    if (is_inside) {
      store_tiled(reinterpret_cast<unsigned char*>(f.out), f.out_stride, row, column, v);
    }
    return;
  }
  float* out = row_at(f.out, f.out_stride, row);
  if constexpr (HeadDim % kGroup == 0) {
    unsigned char* codes = reinterpret_cast<unsigned char*>(out);
    if (f.planes == 1) return store_codes<1>(codes, f.heads * HeadDim, column, v, is_inside);
    if (f.planes == 2) return store_codes<2>(codes, f.heads * HeadDim, column, v, is_inside);
  }
  if (is_inside) store4<true>(out + column, v);
}

__device__ __forceinline__ float4 scaled(float4 v, float by) {
  return make_float4(v.x * by, v.y * by, v.z * by, v.w * by);
}

__device__ __forceinline__ void add_scaled(float4& sum, float4 v, float by) {
  sum.x += v.x * by, sum.y += v.y * by, sum.z += v.z * by, sum.w += v.w * by;
}

// What some tokens gave of four dimensions of a head.
struct Mixed {
  Seen seen;
  float4 values;

  static __device__ __forceinline__ Mixed nothing() {
    return {{-infinity(), 0.0f}, make_float4(0.0f, 0.0f, 0.0f, 0.0f)};
  }

  // Takes in what others gave, always in this order.
  template <int Count>
  __device__ __forceinline__ void add(const Seen (&seens)[Count], const float4 (&others)[Count]) {
    float most = seen.most;
#pragma unroll
    for (int i = 0; i < Count; i++) most = fmaxf(most, seens[i].most);
    const float shrink = weight_of(seen.most, most);
    seen = {most, seen.sum * shrink};
    values = scaled(values, shrink);
#pragma unroll
    for (int i = 0; i < Count; i++) {
      const float weight = weight_of(seens[i].most, most);
      seen.sum += weight * seens[i].sum;
      add_scaled(values, others[i], weight);
    }
  }
};

// Writes four dimensions of a head from `d` on: the result, or what `fold_parts` folds. All lanes of
// a warp call it.
template <int HeadDim>
__device__ __forceinline__ void store_part(const AttentionFields& f, int64_t row, int64_t head,
                                           const Parts& parts, int part, int d, const Mixed& m,
                                           bool is_inside) {
  if (parts.count == 1) {
    return store_mixed<HeadDim>(f, row, head, d, scaled(m.values, 1.0f / m.seen.sum), is_inside);
  }
  if (!is_inside) return;
  if (d == 0) {
    *seen_at<HeadDim>(f, row, head, part) = make_float2(m.seen.most, m.seen.sum);
  }
  store4<true>(partial_at<HeadDim>(f, row, head, part) + d, m.values);
}

// What each warp of a block gave of its heads, in shared memory, four dimensions a place.
//
// Lanes of one warp that have the same dimensions of different heads write to different banks: two
// heads side by side belong to one lane.
template <int HeadDim, int Heads, int Warps>
struct Gathered {
  static constexpr int kFours = HeadDim / 4;
  static constexpr int kPlaces = (kFours + 7) / 8 * 8;
  static constexpr int kItems = (Heads * kFours + kWarp - 1) / kWarp * kWarp;  // whole warps
  Seen seen[Warps][Heads];
  float4 values[Warps][Heads][kPlaces];

  static __device__ __forceinline__ int place(int head, int four) {
    return four ^ (head / 2 % 2 * 4 + head / 4);
  }

  // Folds the warps. Called by every thread, behind a barrier.
  __device__ __forceinline__ void store(const AttentionFields& f, int64_t row, int64_t first_head,
                                        const Parts& parts, int part) const {
#pragma unroll 1
    for (int i = threadIdx.x; i < kItems; i += Warps * kWarp) {
      const bool is_inside = i < Heads * kFours;
      const int h = is_inside ? i / kFours : 0, four = i % kFours;
      Seen seens[Warps];
      float4 others[Warps];
#pragma unroll
      for (int w = 0; w < Warps; w++) {
        seens[w] = seen[w][h];
        others[w] = values[w][h][place(h, four)];
      }
      Mixed all = Mixed::nothing();
      all.add(seens, others);
      store_part<HeadDim>(f, row, first_head + h, parts, part, 4 * four, all, is_inside);
    }
  }
};

// Four dimensions of a head over some of the parts: of `shares`, the one of this number takes eight
// at a time, which are all on their way at once.
template <int HeadDim>
__device__ __forceinline__ Mixed fold_share(const AttentionFields& f, int64_t row, int64_t head,
                                            int d, int count, int share, int shares) {
  constexpr int kAtOnce = 8;
  const float* values = partial_at<HeadDim>(f, row, head, 0) + d;
  const float2* seen = seen_at<HeadDim>(f, row, head, 0);
  Mixed all = Mixed::nothing();
  for (int first = share * kAtOnce; first < count; first += shares * kAtOnce) {
    Seen s[kAtOnce];
    float4 v[kAtOnce];
#pragma unroll
    for (int p = 0; p < kAtOnce; p++) {
      const int part = first + p < count ? first + p : count - 1;
      const float2 one = __ldcg(seen + part);
      s[p] = {first + p < count ? one.x : -infinity(), one.y};
      v[p] = __ldcg(reinterpret_cast<const float4*>(values + part * HeadDim));
    }
    all.add(s, v);
  }
  return all;
}

// The block that is the last of a row and its heads folds what all of them left, always in the same
// order. Called by every thread, after its `store_part`.
template <int HeadDim, int Heads, int Warps>
__device__ __forceinline__ void fold_parts(const AttentionFields& f, int64_t row,
                                           const Parts& parts) {
  constexpr int kItems = Gathered<HeadDim, Heads, Warps>::kItems, kThreads = Warps * kWarp;
  constexpr int kShares = kItems < kThreads ? kThreads / kItems : 1;
  if (parts.count == 1) return;
  __shared__ bool is_last;
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
  constexpr int kWide = kItems < kThreads ? kItems : kThreads;
  const int share = threadIdx.x / kWide;  // beyond the last: nothing to do
#pragma unroll 1
  for (int base = 0; base < kItems; base += kThreads) {
    const int item = base + threadIdx.x % kWide;
    const bool is_inside = item < Heads * HeadDim / 4;
    const int64_t head = first_head + (is_inside ? item * 4 / HeadDim : 0);
    const int d = item * 4 % HeadDim;
    Mixed all = Mixed::nothing();
    if (share < kShares) all = fold_share<HeadDim>(f, row, head, d, parts.count, share, kShares);
    if constexpr (kShares > 1) {
      __shared__ Seen shared_seen[kShares][kItems];
      __shared__ float4 shared_values[kShares][kItems];
      if (share < kShares) {
        shared_seen[share][item] = all.seen;
        shared_values[share][item] = all.values;
      }
      __syncthreads();
      if (share > 0) return;
      Seen seens[kShares - 1];
      float4 others[kShares - 1];
#pragma unroll
      for (int i = 1; i < kShares; i++) {
        seens[i - 1] = shared_seen[i][item];
        others[i - 1] = shared_values[i][item];
      }
      all.add(seens, others);
    }
    if (item >= kItems || share > 0) return;
    store_mixed<HeadDim>(f, row, head, d, scaled(all.values, 1.0f / all.seen.sum), is_inside);
  }
}

}  // namespace corral
