// Heads of q and k normalized (or not) and turned; keys and values written to the KV cache.
//
// A warp has one head of one row, of q first, then of k, then of v: many warps with little to do
// each, for few rows must not take long. The turned q are rows again; k is kept nowhere else.
#include "include/cache.cuh"

namespace corral {

constexpr int kHeadsOfBlock = 4;
constexpr int kRopeAppendThreads = kHeadsOfBlock * kWarp;

struct RopeAppendFields {
  const float* q;
  const float* k;
  const float* v;
  float* out;
  unsigned char* state;
  const int64_t* count;
  const float* rotations;
  const int32_t* positions;
  const int32_t* sequences;
  const int32_t* tables;
  const float* q_weight;  // of the norm; null without
  const float* k_weight;
  int64_t q_stride, k_stride, v_stride, out_stride, rotations_stride, tables_stride;
  int64_t heads, kv_heads;
  Float q_epsilon, k_epsilon;
};

// One head in the registers of a warp: each lane has pairs of dimensions that turn together.
// Dimensions behind the turned ones stand in pairs of neighbours.
template <int HeadDim, int Turned, bool AreNeighbours>
struct WarpHead {
  static constexpr int kHalf = Turned / 2;
  static constexpr int kPairs = HeadDim / 2;
  static constexpr int kSteps = (kPairs + kWarp - 1) / kWarp;
  static_assert(HeadDim % 2 == 0 && Turned % 2 == 0 && Turned <= HeadDim, "dimensions are pairs");

  float a[kSteps], b[kSteps];

  static __device__ __forceinline__ int one(int pair) {
    return AreNeighbours || pair >= kHalf ? 2 * pair : pair;
  }
  static __device__ __forceinline__ int two(int pair) {
    return AreNeighbours || pair >= kHalf ? 2 * pair + 1 : pair + kHalf;
  }

  // Calls `use(step, pair)` for the pairs of this lane.
  template <class Use>
  static __device__ __forceinline__ void each(Use use) {
#pragma unroll
    for (int s = 0; s < kSteps; s++) {
      const int pair = s * kWarp + lane_id();
      if (pair < kPairs) use(s, pair);
    }
  }

  __device__ __forceinline__ void load(const float* from) {
#pragma unroll
    for (int s = 0; s < kSteps; s++) a[s] = b[s] = 0.0f;
    each([&](int s, int pair) { a[s] = from[one(pair)], b[s] = from[two(pair)]; });
  }

  __device__ __forceinline__ void normalize(const WarpHead& weights, float epsilon) {
    float squares = 0.0f;
#pragma unroll
    for (int s = 0; s < kSteps; s++) squares += a[s] * a[s] + b[s] * b[s];
    const float mean = warp_sum(squares) / static_cast<float>(HeadDim);
    const float factor = 1.0f / sqrtf(mean + epsilon);
#pragma unroll
    for (int s = 0; s < kSteps; s++) {
      a[s] = a[s] * factor * weights.a[s];
      b[s] = b[s] * factor * weights.b[s];
    }
  }

  // Takes cosines and sines of the pairs instead of dimensions; what does not turn has none.
  __device__ __forceinline__ void load_turns(const float* rotations) {
    each([&](int s, int pair) {
      if (pair < kHalf) a[s] = rotations[pair], b[s] = rotations[kHalf + pair];
    });
  }

  __device__ __forceinline__ void turn(const WarpHead& turns) {
    each([&](int s, int pair) {
      if (pair >= kHalf) return;
      const float x = a[s], y = b[s], cosine = turns.a[s], sine = turns.b[s];
      a[s] = x * cosine - y * sine;
      b[s] = y * cosine + x * sine;
    });
  }

  // Calls `put(dimension, value)` for all that this lane has.
  template <class Put>
  __device__ __forceinline__ void store(Put put) const {
    each([&](int s, int pair) { put(one(pair), a[s]), put(two(pair), b[s]); });
  }
};

// Block (row, four heads).
template <class Cache, int HeadDim, int Turned, bool AreNeighbours, bool IsNormed>
__global__ void __launch_bounds__(kRopeAppendThreads)
    rope_append(__grid_constant__ const RopeAppendFields f) {
  using Head = WarpHead<HeadDim, Turned, AreNeighbours>;
  launch_dependents();
  const int64_t row = blockIdx.x;
  const int64_t number = static_cast<int64_t>(blockIdx.y) * kHeadsOfBlock + warp_id();
  const bool is_q = number < f.heads;
  const int64_t kv_number = number - f.heads;
  const int which = kv_number >= f.kv_heads;  // K or V
  const int64_t head = is_q ? number : kv_number - which * f.kv_heads;
  // Inputs of the batch are there before the first kernel starts: no need to wait for them, nor for
  // weights.
  const bool is_inside = row < *f.count && kv_number < 2 * f.kv_heads;
  unsigned char* cached = nullptr;
  if (is_inside && !is_q) {
    cached = f.state + cached_row(f.tables, f.tables_stride, f.sequences[row], f.positions[row],
                                  which, head, f.kv_heads) *
                           Cache::row_bytes(HeadDim);
  }
  const float* weight = is_q ? f.q_weight : which ? nullptr : f.k_weight;
  Head values, weights, turns;
  if constexpr (IsNormed) {
    if (weight) weights.load(weight);
  }
  wait_for_previous();
  if (!is_inside) return;
  const bool is_turned = is_q || !which;
  if (is_turned) turns.load_turns(row_at(f.rotations, f.rotations_stride, row));
  values.load((is_q    ? row_at(f.q, f.q_stride, row)
               : which ? row_at(f.v, f.v_stride, row)
                       : row_at(f.k, f.k_stride, row)) +
              head * HeadDim);
  if constexpr (IsNormed) {
    if (weight) values.normalize(weights, is_q ? f.q_epsilon.value : f.k_epsilon.value);
  }
  if (is_turned) values.turn(turns);
  if (is_q) {
    float* out = row_at(f.out, f.out_stride, row) + head * HeadDim;
    values.store([&](int dim, float v) { out[dim] = v; });
  } else if constexpr (kHasGroups<Cache>) {
    __shared__ float all_staged[kHeadsOfBlock][HeadDim];
    float* staged = all_staged[warp_id()];
    values.store([&](int dim, float v) { staged[dim] = v; });
    __syncwarp();
#pragma unroll
    for (int i = 0; i < HeadDim / kWarp; i++) {
      Cache::store_group(cached, i, staged[i * kWarp + lane_id()]);
    }
  } else {
    values.store([&](int dim, float v) { Cache::store(cached, dim, v); });
  }
}

}  // namespace corral
