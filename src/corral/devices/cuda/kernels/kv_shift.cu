// Keys of blocks turned to other positions, where they are or on their way to other blocks.
//
// A warp has the key of one token and head at a time, as floats in shared memory: what turns
// together may lie in different groups of codes, and all of it is read before any is written.
#include "include/cache.cuh"

namespace corral {

constexpr int kShiftThreads = 256;
constexpr int kShiftWarps = kShiftThreads / kWarp;

struct ShiftFields {
  unsigned char* state;
  const int64_t* count;
  const float* rotations;
  const int32_t* from_blocks;
  const int32_t* to_blocks;
  int64_t rotations_stride, kv_heads;
};

__device__ __forceinline__ float element(CacheF32, const unsigned char* row, int dim) {
  return reinterpret_cast<const float*>(row)[dim];
}

__device__ __forceinline__ float element(CacheF16, const unsigned char* row, int dim) {
  return __half2float(reinterpret_cast<const __half*>(row)[dim]);
}

__device__ __forceinline__ float element(CacheBF16, const unsigned char* row, int dim) {
  return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(row)[dim]);
}

__device__ __forceinline__ float element(CacheQ8_0, const unsigned char* row, int dim) {
  const unsigned char* block = row + dim / 32 * 34;
  const float scale = __half2float(*reinterpret_cast<const __half*>(block));
  return scale * static_cast<float>(static_cast<signed char>(block[2 + dim % 32]));
}

// Block (moved block, head).
template <class Cache, int HeadDim, int Turned, bool AreNeighbours>
__global__ void __launch_bounds__(kShiftThreads) kv_shift(__grid_constant__ const ShiftFields f) {
  constexpr int kHalf = Turned / 2;
  constexpr int kRowBytes = Cache::row_bytes(HeadDim);
  constexpr int kPartBytes = kBlockTokens * kRowBytes;
  static_assert(kPartBytes % 16 == 0, "values are copied 16 bytes at a time");
  __shared__ float all_staged[kShiftWarps][HeadDim];
  launch_dependents();
  const int64_t count = *f.count;
  wait_for_previous();
  if (blockIdx.x >= count) return;
  const int64_t head = blockIdx.y;
  const int64_t source = f.from_blocks[blockIdx.x], target = f.to_blocks[blockIdx.x];
  const unsigned char* from = f.state + (source * 2 * f.kv_heads + head) * kPartBytes;
  unsigned char* to = f.state + (target * 2 * f.kv_heads + head) * kPartBytes;
  const float* turns = row_at(f.rotations, f.rotations_stride, blockIdx.x);
  float* staged = all_staged[warp_id()];
  for (int token = warp_id(); token < kBlockTokens; token += kShiftWarps) {
    for (int dim = lane_id(); dim < HeadDim; dim += kWarp) {
      staged[dim] = element(Cache{}, from + token * kRowBytes, dim);
    }
    __syncwarp();
    for (int dim = lane_id(); dim < HeadDim; dim += kWarp) {
      float value = staged[dim];
      if (dim < Turned) {
        const int pair = AreNeighbours ? dim / 2 : dim % kHalf;
        const bool is_second = AreNeighbours ? dim % 2 : dim >= kHalf;
        const float other = staged[AreNeighbours ? dim ^ 1 : is_second ? pair : pair + kHalf];
        const float cosine = turns[pair], sine = turns[kHalf + pair];
        value = value * cosine + (is_second ? other : -other) * sine;
      }
      if constexpr (kHasGroups<Cache>) {
        Cache::store_group(to + token * kRowBytes, dim / kWarp, value);
      } else {
        Cache::store(to + token * kRowBytes, dim, value);
      }
    }
    __syncwarp();
  }
  if (source == target) return;
  const int64_t values = f.kv_heads * kPartBytes;
  const uint4* read = reinterpret_cast<const uint4*>(from + values);
  uint4* written = reinterpret_cast<uint4*>(to + values);
  for (int i = threadIdx.x; i < kPartBytes / 16; i += kShiftThreads) written[i] = read[i];
}

}  // namespace corral
