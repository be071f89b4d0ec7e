// The token of each row of logits: the likeliest, or one drawn among the likeliest. −1 if the
// greatest logit is no finite number, which NaN anywhere makes it.
//
//   row ─▶ biases ─▶ parts ─▶ of each its greatest ─▶ the greatest of all, in order
//                                                       └─▶ top_p ─▶ min_p ─▶ temperature ─▶ draw ─▶ token
//
// As the host does it, with the same numbers in the same order (corral.sampling: chain, steps, random).
#include "include/common.cuh"

namespace corral {

constexpr int kMostBiases = 4;

// How a row's token is chosen; with `top_k` 1 it is the likeliest.
struct Draw {
  uint64_t seed, position;
  double top_p;
  double floor;  // how far below the greatest logit min_p reaches
  double temperature;
  int64_t top_k;
  int32_t tokens[kMostBiases];  // whose logits get a bias first; −1 behind the last
  float biases[kMostBiases];
};

struct ChooseFields {
  const float* logits;
  const int64_t* count;
  const Draw* draws;
  uint64_t* partials;  // of each row and part the greatest keys, kMostCandidates of them
  int32_t* tokens;
  int64_t logits_stride, vocabulary, parts;
};

constexpr int kChooseThreads = 512;
constexpr int kMostCandidates = 128;
constexpr int kPartFours = 1024;  // groups of four logits that a part has at most
constexpr int kFours = kPartFours / kChooseThreads;
constexpr int kMostParts = 96;
// More than the wanted threads that may reach a bound, so that it is found sooner.
constexpr int kSlack = 32;

constexpr uint32_t kLeastFinite = 0x00800000u, kGreatestFinite = 0xFF7FFFFFu;  // as keys order them
constexpr uint64_t kLeastKey = static_cast<uint64_t>(kLeastFinite) << 32;

// A number that grows with the value, NaN above all, and with equal values falls with the index.
__device__ __forceinline__ uint64_t key_of(float value, uint32_t index) {
  const uint32_t bits = __float_as_uint(value);
  const uint32_t ordered = value != value ? 0xFFFFFFFFu : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  // −0 and +0 are equal
  return static_cast<uint64_t>(value == 0.0f ? 0x80000000u : ordered) << 32 | (0xFFFFFFFFu - index);
}

__device__ __forceinline__ float value_of(uint64_t key) {
  const uint32_t ordered = key >> 32;
  return __uint_as_float(ordered & 0x80000000u ? ordered & 0x7FFFFFFFu : ~ordered);
}

__device__ __forceinline__ uint64_t greater(uint64_t a, uint64_t b) { return a > b ? a : b; }

__device__ __forceinline__ uint64_t warp_greatest(uint64_t key) {
#pragma unroll
  for (int step = kWarp / 2; step; step >>= 1) {
    key = greater(key, __shfl_xor_sync(kAllLanes, key, step));
  }
  return key;
}

// Every thread gets the greatest key of the block. All threads call it, once in a kernel.
__device__ __forceinline__ uint64_t block_greatest(uint64_t key) {
  __shared__ uint64_t parts[kChooseThreads / kWarp];
  key = warp_greatest(key);
  if (lane_id() == 0) parts[warp_id()] = key;
  __syncthreads();
  return warp_greatest(lane_id() < kChooseThreads / kWarp ? parts[lane_id()] : 0);
}

// Writes the `wanted` greatest finite keys of the block to `sorted`, in order, and returns how many
// there are. `each(f)` calls f with every key of a thread, `most` is the greatest of these. `room`
// holds the keys of wanted + kSlack threads. All threads call it, once in a kernel.
//
// A bound is found by halving: a key that the greatest keys of enough threads reach, and of few
// more. As no two keys are equal, there is one, and what reaches it fits into the room.
template <class Each>
__device__ __forceinline__ int greatest_keys(Each each, uint64_t most, int wanted, uint64_t* room,
                                             uint64_t* sorted) {
  __shared__ int taken;
  if (threadIdx.x == 0) taken = 0;
  uint64_t low = kLeastKey, high = ~0ull;
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    const int reached = __syncthreads_count(most >= middle);
    if (reached < wanted) {
      high = middle;
      continue;
    }
    low = middle;
    if (reached <= wanted + kSlack) break;
  }
  __syncthreads();
  each([&](uint64_t key) {
    if (key >= low) room[atomicAdd(&taken, 1)] = key;
  });
  __syncthreads();
  const int found = taken;
  for (int i = threadIdx.x; i < found; i += kChooseThreads) {
    const uint64_t key = room[i];
    int rank = 0;
    for (int j = 0; j < found; j++) rank += room[j] > key;
    if (rank < wanted) sorted[rank] = key;
  }
  __syncthreads();
  return found < wanted ? found : wanted;
}

__device__ __forceinline__ int wanted_of(const Draw& draw) {
  return draw.top_k < kMostCandidates ? static_cast<int>(draw.top_k) : kMostCandidates;
}

// Block (part, row): the greatest keys of one part of a row.
template <bool IsAligned>
__global__ void __launch_bounds__(kChooseThreads)
    choose_parts(__grid_constant__ const ChooseFields f) {
  __shared__ uint64_t room[(kMostCandidates + kSlack) * 4 * kFours];
  launch_dependents();
  const int64_t count = *f.count;
  const Draw& draw = f.draws[blockIdx.y];
  const int wanted = wanted_of(draw);
  wait_for_previous();
  if (blockIdx.y >= count) return;
  const float* row = row_at(f.logits, f.logits_stride, blockIdx.y);
  const int64_t fours = (f.vocabulary + 3) / 4, length = (fours + f.parts - 1) / f.parts;
  const int64_t first = blockIdx.x * length;
  const int64_t end = first + length < fours ? first + length : fours;
  float v[kFours][4];
  uint64_t most = 0;
#pragma unroll
  for (int n = 0; n < kFours; n++) {
    const int64_t i = first + n * kChooseThreads + threadIdx.x;
    v[n][0] = v[n][1] = v[n][2] = v[n][3] = -infinity();
    if (i < end && 4 * i + 4 <= f.vocabulary) {
      const float4 four = load4<IsAligned>(row + 4 * i);
      v[n][0] = four.x, v[n][1] = four.y, v[n][2] = four.z, v[n][3] = four.w;
    } else if (i < end) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        if (4 * i + e < f.vocabulary) v[n][e] = row[4 * i + e];
      }
    }
  }
  for (int k = 0; k < kMostBiases && draw.tokens[k] >= 0; k++) {
    const int64_t token = draw.tokens[k];
    const float bias = draw.biases[k];
#pragma unroll
    for (int n = 0; n < kFours; n++) {
      const int64_t i = first + n * kChooseThreads + threadIdx.x;
#pragma unroll
      for (int e = 0; e < 4; e++) {
        if (4 * i + e == token) v[n][e] += bias;
      }
    }
  }
  const auto each = [&](auto take) {
#pragma unroll
    for (int n = 0; n < kFours; n++) {
      const uint32_t i = static_cast<uint32_t>(first) + n * kChooseThreads + threadIdx.x;
#pragma unroll
      for (int e = 0; e < 4; e++) take(key_of(v[n][e], 4 * i + e));
    }
  };
  each([&](uint64_t key) { most = greater(most, key); });
  uint64_t* partials = f.partials + (blockIdx.y * f.parts + blockIdx.x) * kMostCandidates;
  if (wanted <= 1) {
    most = block_greatest(most);
    if (threadIdx.x == 0) partials[0] = most;
    return;
  }
  const int found = greatest_keys(each, most, wanted, room, partials);
  for (int i = found + threadIdx.x; i < wanted; i += kChooseThreads) partials[i] = 0;
}

// The words of Philox4x32-10 for a counter and a key, of which two are used.
__device__ __forceinline__ double uniform(uint64_t seed, uint64_t position) {
  uint32_t c[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0};
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const uint64_t a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
    c[0] = static_cast<uint32_t>(b >> 32) ^ c[1] ^ k0;
    c[1] = static_cast<uint32_t>(b);
    c[2] = static_cast<uint32_t>(a >> 32) ^ c[3] ^ k1;
    c[3] = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  const double high = c[0] >> 5, low = c[1] >> 6;
  return (high * 67108864.0 + low) * 0x1p-53;
}

// The sum of values up to each, one after the other: `held` may be `values`.
__device__ __forceinline__ void add_up(const double* values, double* held, int count) {
  double sum = 0.0;
  for (int i = 0; i < count; i++) held[i] = sum += values[i];
}

// The place of the candidate that is drawn; `sorted` are keys of `count` candidates, the likeliest
// first. All threads of the block call it.
__device__ __forceinline__ int drawn(const uint64_t* sorted, int count, const Draw& draw) {
  __shared__ double weights[kMostCandidates], held[kMostCandidates];
  const int i = threadIdx.x;
  const double greatest = value_of(sorted[0]);
  const double logit = i < count ? value_of(sorted[i]) : 0.0;
  if (draw.top_p < 1.0) {
    if (i < count) weights[i] = exp(logit - greatest);
    __syncthreads();
    if (i == 0) add_up(weights, held, count);
    __syncthreads();
    const double total = held[count - 1];
    if (i < count) weights[i] /= total;
    __syncthreads();
    if (i == 0) add_up(weights, held, count);
    __syncthreads();
    const int before = __syncthreads_count(i < count && held[i] < draw.top_p);
    count = before + 1 < count ? before + 1 : count;
  }
  count = __syncthreads_count(i < count && logit >= greatest + draw.floor);
  if (i < count) weights[i] = exp((logit - greatest) / draw.temperature);
  __syncthreads();
  if (i == 0) add_up(weights, held, count);
  __syncthreads();
  const double total = held[count - 1];
  const double below = __longlong_as_double(__double_as_longlong(total) - 1);
  const double chance = uniform(draw.seed, draw.position) * total;
  const double target = chance < below ? chance : below;
  return __syncthreads_count(i < count && held[i] <= target);
}

// A block a row: the token, from the greatest keys of its parts.
__global__ void __launch_bounds__(kChooseThreads, 1)
    choose_token(__grid_constant__ const ChooseFields f) {
  constexpr int kWarps = kChooseThreads / kWarp;
  constexpr int kEach = (kMostParts / kWarps) * (kMostCandidates / kWarp);
  __shared__ uint64_t room[(kMostCandidates + kSlack) * kEach];
  __shared__ uint64_t sorted[kMostCandidates];
  launch_dependents();
  const int64_t count = *f.count;
  const Draw draw = f.draws[blockIdx.x];
  const int wanted = wanted_of(draw);
  wait_for_previous();
  if (blockIdx.x >= count) return;
  const uint64_t* partials = f.partials + blockIdx.x * f.parts * kMostCandidates;
  const auto each = [&](auto take) {
    for (int part = warp_id(); part < f.parts; part += kWarps) {
      const uint64_t* keys = partials + part * kMostCandidates;
      for (int rank = lane_id(); rank < wanted; rank += kWarp) take(keys[rank]);
    }
  };
  uint64_t most = 0;
  each([&](uint64_t key) { most = greater(most, key); });
  const uint64_t key = block_greatest(most);
  const uint32_t value = key >> 32, token = 0xFFFFFFFFu - static_cast<uint32_t>(key);
  if (value < kLeastFinite || value > kGreatestFinite || wanted <= 1) {
    const bool is_finite = value >= kLeastFinite && value <= kGreatestFinite;
    if (threadIdx.x == 0) f.tokens[blockIdx.x] = is_finite ? static_cast<int32_t>(token) : -1;
    return;
  }
  const int found = greatest_keys(each, most, wanted, room, sorted);
  const int place = drawn(sorted, found, draw);
  if (threadIdx.x == 0) f.tokens[blockIdx.x] = 0xFFFFFFFFu - static_cast<uint32_t>(sorted[place]);
}

}  // namespace corral
