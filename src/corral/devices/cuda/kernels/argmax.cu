// The likeliest token of each row of logits, the first of equal ones; −1 if the greatest logit is no
// finite number, which NaN anywhere makes it.
#include "include/common.cuh"

namespace corral {

struct ArgmaxFields {
  const float* logits;
  const int64_t* count;
  uint64_t* partials;
  int32_t* tokens;
  int64_t logits_stride, vocabulary, parts;
};

constexpr int kArgmaxThreads = 512;

constexpr uint32_t kLeastFinite = 0x00800000u, kGreatestFinite = 0xFF7FFFFFu;  // as keys order them

// A number that grows with the value, NaN above all, and with equal values falls with the index.
__device__ __forceinline__ uint64_t key_of(float value, uint32_t index) {
  const uint32_t bits = __float_as_uint(value);
  const uint32_t ordered = value != value ? 0xFFFFFFFFu : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  // −0 and +0 are equal
  return static_cast<uint64_t>(value == 0.0f ? 0x80000000u : ordered) << 32 | (0xFFFFFFFFu - index);
}

__device__ __forceinline__ uint64_t block_max(uint64_t key) {
  __shared__ uint64_t parts[kArgmaxThreads / kWarp];
#pragma unroll
  for (int step = kWarp / 2; step; step >>= 1) {
    const uint64_t other = __shfl_xor_sync(kAllLanes, key, step);
    key = other > key ? other : key;
  }
  if (lane_id() == 0) parts[warp_id()] = key;
  __syncthreads();
  key = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / kWarp; w++) {
    key = parts[w] > key ? parts[w] : key;
  }
  return key;
}

// Block (part, row): the greatest of one part of a row.
template <bool IsAligned>
__global__ void __launch_bounds__(kArgmaxThreads) argmax(__grid_constant__ const ArgmaxFields f) {
  launch_dependents();
  const int64_t count = *f.count;
  wait_for_previous();
  if (blockIdx.y >= count) return;
  const float* row = row_at(f.logits, f.logits_stride, blockIdx.y);
  const int64_t fours = (f.vocabulary + 3) / 4, each = (fours + f.parts - 1) / f.parts;
  const int64_t first = blockIdx.x * each, end = first + each < fours ? first + each : fours;
  uint64_t key = 0;
#pragma unroll 4
  for (int64_t i = first + threadIdx.x; i < end; i += kArgmaxThreads) {
    float v[4] = {-infinity(), -infinity(), -infinity(), -infinity()};
    if (4 * i + 4 <= f.vocabulary) {
      const float4 four = load4<IsAligned>(row + 4 * i);
      v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    } else {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        if (4 * i + e < f.vocabulary) v[e] = row[4 * i + e];
      }
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const uint64_t one = key_of(v[e], static_cast<uint32_t>(4 * i + e));
      key = one > key ? one : key;
    }
  }
  key = block_max(key);
  if (threadIdx.x == 0) f.partials[blockIdx.y * f.parts + blockIdx.x] = key;
}

// A warp a row: the greatest of its parts.
__global__ void __launch_bounds__(kWarp) argmax_merge(__grid_constant__ const ArgmaxFields f) {
  launch_dependents();
  const int64_t count = *f.count;
  wait_for_previous();
  if (blockIdx.x >= count) return;
  uint64_t key = 0;
  for (int64_t i = threadIdx.x; i < f.parts; i += kWarp) {
    const uint64_t one = f.partials[blockIdx.x * f.parts + i];
    key = one > key ? one : key;
  }
  key = block_max(key);
  const uint32_t value = key >> 32, token = 0xFFFFFFFFu - static_cast<uint32_t>(key);
  const bool is_finite = value >= kLeastFinite && value <= kGreatestFinite;
  if (threadIdx.x == 0) f.tokens[blockIdx.x] = is_finite ? static_cast<int32_t>(token) : -1;
}

}  // namespace corral
