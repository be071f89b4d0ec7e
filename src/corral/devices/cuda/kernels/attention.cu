// softmax(q·K)·V over the blocks of each row's sequence.
//
// A block has one row, `Heads` query heads that share a kv head, and one of `splits` parts of the
// positions that the row sees. Parts depend on the row's own position only, so that a row's result
// has the same bits whatever its neighbours. Where there are several, each leaves its greatest
// score, its sum of weights and its weighted values in scratch, and `attention_merge` folds them.
#include "include/cache.cuh"

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
  int64_t splits;
};

constexpr float kLog2E = 1.4426950408889634f;
constexpr int kAttentionThreads = 128;
constexpr int kAttentionWarps = kAttentionThreads / kWarp;
constexpr int kLeastBlocks = 2;  // of a part: less is not worth a thread block

// The positions of one part: first … end − 1.
struct Part {
  int64_t first, end;
};

template <bool IsWindowed>
__device__ __forceinline__ Part part_of(int64_t position, int64_t window, int64_t splits,
                                        int64_t number) {
  const int64_t end = position + 1;
  const int64_t first = IsWindowed && end > window ? end - window : 0;
  const int64_t first_block = first / kBlockTokens;
  const int64_t blocks = (end + kBlockTokens - 1) / kBlockTokens - first_block;
  int64_t each = (blocks + splits - 1) / splits;
  if (each < kLeastBlocks) each = kLeastBlocks;
  const int64_t from = (first_block + number * each) * kBlockTokens;
  const int64_t to = from + each * kBlockTokens;
  return {from > first ? from : first, to < end ? to : end};
}

// Where one part of one head lies in scratch: the greatest score, the sum, then the values.
template <int HeadDim>
__device__ __forceinline__ float* partial_at(const AttentionFields& f, int64_t row, int64_t head,
                                             int64_t split) {
  return f.partials + ((row * f.heads + head) * f.splits + split) * (HeadDim + 2);
}

constexpr int next_power(int v) {
  int power = 1;
  while (power < v) power *= 2;
  return power;
}

// What a group of lanes has seen of one head: scores are multiplied by log2(e).
struct Seen {
  float most, sum;
};

__device__ __forceinline__ float weight_of(float score, float most) {
  return most == -infinity() ? 0.0f : exp2f(score - most);
}

template <class Cache, int HeadDim, int Heads, bool IsWindowed, bool IsCapped>
__global__ void __launch_bounds__(kAttentionThreads)
    attention(__grid_constant__ const AttentionFields f) {
  constexpr int kEights = HeadDim / 8;
  constexpr int kLanes = next_power(kEights);  // that share a position
  constexpr int kTokens = kWarp / kLanes;      // side by side in a warp
  constexpr int kStep = kTokens * kAttentionWarps;
  constexpr int kUnroll = Heads > 4 ? 2 : 4;
  __shared__ Seen all_seen[kAttentionWarps][Heads];
  __shared__ float all_values[kAttentionWarps][Heads][HeadDim];
  launch_dependents();
  wait_for_previous();
  const int64_t row = blockIdx.z;
  if (row >= *f.count) return;
  const int64_t position = f.positions[row];
  const Part part = part_of<IsWindowed>(position, f.window, f.splits, blockIdx.y);
  if (part.first >= part.end) return;
  const int64_t first_head = static_cast<int64_t>(blockIdx.x) * Heads;
  const int64_t kv_head = first_head / (f.heads / f.kv_heads);
  const int lane = lane_id() % kLanes, dim = 8 * lane;
  const bool has_dims = lane < kEights;

  float q[Heads][8], values[Heads][8] = {};
  Seen seen[Heads];
#pragma unroll
  for (int h = 0; h < Heads; h++) {
    seen[h] = {-infinity(), 0.0f};
    const float* from = row_at(f.q, f.q_stride, row) + (first_head + h) * HeadDim + dim;
#pragma unroll
    for (int e = 0; e < 8; e++) {
      q[h][e] = has_dims ? from[e] * f.scale.value : 0.0f;
      if constexpr (!IsCapped) q[h][e] *= kLog2E;
    }
  }

  const int32_t* table = row_at(f.tables, f.tables_stride, f.sequences[row]);
  constexpr int64_t kRowBytes = Cache::row_bytes(HeadDim);
  const int64_t values_after = f.kv_heads * kBlockTokens * kRowBytes;
  const int mine = warp_id() * kTokens + lane_id() / kLanes;
  for (int64_t start = part.first; start < part.end; start += kUnroll * kStep) {
    typename Cache::Eight keys[kUnroll], mixed[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; u++) {
      const int64_t at = start + u * kStep + mine;
      if (at >= part.end || !has_dims) continue;
      const int64_t cached =
          (table[at / kBlockTokens] * 2 * f.kv_heads + kv_head) * kBlockTokens + at % kBlockTokens;
      const unsigned char* key = f.state + cached * kRowBytes;
      keys[u] = Cache::load(key, dim);
      mixed[u] = Cache::load(key + values_after, dim);
    }
    float scores[kUnroll][Heads];
#pragma unroll
    for (int u = 0; u < kUnroll; u++) {
      const bool is_seen = start + u * kStep + mine < part.end;
      float k[8] = {};
      if (is_seen && has_dims) Cache::floats(keys[u], k);
#pragma unroll
      for (int h = 0; h < Heads; h++) {
        float score = 0.0f;
#pragma unroll
        for (int e = 0; e < 8; e++) score += q[h][e] * k[e];
        score = warp_sum<kLanes>(score);
        if constexpr (IsCapped) score = f.softcap.value * tanhf(score / f.softcap.value) * kLog2E;
        scores[u][h] = is_seen ? score : -infinity();
      }
    }
#pragma unroll
    for (int h = 0; h < Heads; h++) {
      float most = seen[h].most;
#pragma unroll
      for (int u = 0; u < kUnroll; u++) most = fmaxf(most, scores[u][h]);
      const float shrink = weight_of(seen[h].most, most);
      seen[h].most = most;
      seen[h].sum *= shrink;
#pragma unroll
      for (int e = 0; e < 8; e++) values[h][e] *= shrink;
#pragma unroll
      for (int u = 0; u < kUnroll; u++) {
        scores[u][h] = weight_of(scores[u][h], most);
        seen[h].sum += scores[u][h];
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; u++) {
      float v[8] = {};
      if (start + u * kStep + mine < part.end && has_dims) Cache::floats(mixed[u], v);
#pragma unroll
      for (int h = 0; h < Heads; h++) {
#pragma unroll
        for (int e = 0; e < 8; e++) values[h][e] += scores[u][h] * v[e];
      }
    }
  }

  // Fold the groups of lanes, then the warps, each in one fixed order.
#pragma unroll
  for (int h = 0; h < Heads; h++) {
#pragma unroll
    for (int step = kLanes; step < kWarp; step *= 2) {
      const float other = __shfl_xor_sync(kAllLanes, seen[h].most, step);
      const float other_sum = __shfl_xor_sync(kAllLanes, seen[h].sum, step);
      const float most = fmaxf(seen[h].most, other);
      const float own = weight_of(seen[h].most, most), theirs = weight_of(other, most);
      seen[h] = {most, own * seen[h].sum + theirs * other_sum};
#pragma unroll
      for (int e = 0; e < 8; e++) {
        const float v = __shfl_xor_sync(kAllLanes, values[h][e], step);
        values[h][e] = own * values[h][e] + theirs * v;
      }
    }
    if (lane_id() == 0) all_seen[warp_id()][h] = seen[h];
    if (lane_id() < kEights) {
#pragma unroll
      for (int e = 0; e < 8; e++) all_values[warp_id()][h][dim + e] = values[h][e];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < Heads * HeadDim; i += kAttentionThreads) {
    const int h = i / HeadDim, d = i % HeadDim;
    float most = -infinity(), sum = 0.0f, value = 0.0f;
#pragma unroll
    for (int w = 0; w < kAttentionWarps; w++) most = fmaxf(most, all_seen[w][h].most);
#pragma unroll
    for (int w = 0; w < kAttentionWarps; w++) {
      const float weight = weight_of(all_seen[w][h].most, most);
      sum += weight * all_seen[w][h].sum;
      value += weight * all_values[w][h][d];
    }
    if (f.splits == 1) {
      row_at(f.out, f.out_stride, row)[(first_head + h) * HeadDim + d] = value / sum;
    } else {
      float* partial = partial_at<HeadDim>(f, row, first_head + h, blockIdx.y);
      if (d == 0) partial[0] = most, partial[1] = sum;
      partial[2 + d] = value;
    }
  }
}

// Block (head, row): folds the parts of one head; a thread a dimension.
template <int HeadDim, bool IsWindowed>
__global__ void __launch_bounds__(HeadDim)
    attention_merge(__grid_constant__ const AttentionFields f) {
  launch_dependents();
  wait_for_previous();
  const int64_t head = blockIdx.x, row = blockIdx.y;
  if (row >= *f.count) return;
  const int64_t position = f.positions[row];
  const float* partial = partial_at<HeadDim>(f, row, head, 0);
  float most = -infinity(), sum = 0.0f, value = 0.0f;
  int64_t parts = 0;
  for (; parts < f.splits; parts++) {
    const Part part = part_of<IsWindowed>(position, f.window, f.splits, parts);
    if (part.first >= part.end) break;
    most = fmaxf(most, partial[parts * (HeadDim + 2)]);
  }
#pragma unroll 4
  for (int64_t i = 0; i < parts; i++) {
    const float* one = partial + i * (HeadDim + 2);
    const float weight = exp2f(one[0] - most);
    sum += weight * one[1];
    value += weight * one[2 + threadIdx.x];
  }
  row_at(f.out, f.out_stride, row)[head * HeadDim + threadIdx.x] = value / sum;
}

}  // namespace corral
