// softmax(q·K)·V over the blocks of each row's sequence, for a cache of any type.
//
// A block has one row, `Heads` query heads that share a kv head, and one of `splits` parts of the
// positions that the row sees. Parts depend on the row's own position only, so that a row's result
// has the same bits whatever its neighbours. Where there are several, each leaves its greatest
// score, its sum of weights and its weighted values in scratch, and the last to end folds them.
#include "include/attention.cuh"

namespace corral {

constexpr int kAttentionThreads = 128;
constexpr int kAttentionWarps = kAttentionThreads / kWarp;

constexpr int next_power(int v) {
  int power = 1;
  while (power < v) power *= 2;
  return power;
}

template <class Cache, int HeadDim, int Heads, bool IsWindowed, bool IsCapped>
__global__ void __launch_bounds__(kAttentionThreads)
    attention(__grid_constant__ const AttentionFields f) {
  constexpr int kEights = HeadDim / 8;
  constexpr int kLanes = next_power(kEights);  // that share a position
  constexpr int kTokens = kWarp / kLanes;      // side by side in a warp
  constexpr int kStep = kTokens * kAttentionWarps;
  constexpr int kUnroll = Heads > 4 ? 2 : 4;
  __shared__ Gathered<HeadDim, Heads, kAttentionWarps> gathered;
  launch_dependents();
  const int64_t row = blockIdx.z, count = *f.count;
  const Parts parts = Parts::of<IsWindowed>(f.positions[row], f.window, f.splits);
  wait_for_previous();
  if (row >= count) return;
  if (static_cast<int>(blockIdx.y) >= parts.count) return;
  const int end = parts.end_of(blockIdx.y);
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
  for (int start = parts.first_of(blockIdx.y); start < end; start += kUnroll * kStep) {
    typename Cache::Eight keys[kUnroll], mixed[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; u++) {
      const int at = start + u * kStep + mine;
      if (at >= end || !has_dims) continue;
      const int64_t cached =
          (table[at / kBlockTokens] * 2 * f.kv_heads + kv_head) * kBlockTokens + at % kBlockTokens;
      const unsigned char* key = f.state + cached * kRowBytes;
      keys[u] = Cache::load(key, dim);
      mixed[u] = Cache::load(key + values_after, dim);
    }
    float scores[kUnroll][Heads];
#pragma unroll
    for (int u = 0; u < kUnroll; u++) {
      const bool is_seen = start + u * kStep + mine < end;
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
      if (start + u * kStep + mine < end && has_dims) Cache::floats(mixed[u], v);
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
    if (lane_id() == 0) gathered.seen[warp_id()][h] = seen[h];
    if (lane_id() < kEights) {
#pragma unroll
      for (int e = 0; e < 8; e += 4) {
        gathered.values[warp_id()][h][gathered.place(h, (dim + e) / 4)] = make_float4(
            values[h][e], values[h][e + 1], values[h][e + 2], values[h][e + 3]);
      }
    }
  }
  __syncthreads();
  gathered.store(f, row, first_head, parts, blockIdx.y);
  fold_parts<HeadDim, Heads, kAttentionWarps>(f, row, parts);
}

}  // namespace corral
