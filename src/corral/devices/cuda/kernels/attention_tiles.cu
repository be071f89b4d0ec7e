// Attention of prefill by mma.sync, for every architecture: one block takes some consecutive rows
// of the batch and the query heads that share one kv head, and goes over the keys of each sequence
// that these rows belong to.
//
// Queries, keys and values meet as F16, sums and softmax are F32. Every row folds the same tiles of
// keys, cut at multiples of kKeys, in the same order: a tile of which it sees nothing leaves its
// sums as they are to the bit, so a row's result does not depend on its neighbours. Positions that
// no row sees are not read; their blocks may be gone.
#include "include/prefill_attention.cuh"

namespace corral {

constexpr int kAttentionThreads = 128;
constexpr int kWarps = kAttentionThreads / 32;

template <int HeadDim>
struct Shape {
  static constexpr int kFragments = HeadDim <= 128 ? 2 : 1;  // of 16 rows, a warp
  static constexpr int kRows = kWarps * kFragments * 16;
  static constexpr int kKeys = HeadDim <= 128 ? 64 : 32;
  static constexpr int kStride =
      HeadDim * 2 + 16;  // an odd number of 16-byte units: no two rows in the same banks
  static constexpr int kChunks = HeadDim / kChunk;
};

// Brings keys (or values) first … first + kKeys − 1 to shared memory, zeros for those outside of
// [low, high].
template <int HeadDim, int Stored>
__device__ __forceinline__ void fetch(unsigned char* shared, const char* heads, int64_t block_bytes,
                                      const int* table, int first, int low, int high) {
  using S = Shape<HeadDim>;
  constexpr int kRowBytes = bytes_of<Stored>(HeadDim);
  static_assert(S::kKeys * S::kChunks % kAttentionThreads == 0, "whole rounds");
#pragma unroll(Stored == kStoredF16 ? 1 : 2)
  for (int i = threadIdx.x; i < S::kKeys * S::kChunks; i += kAttentionThreads) {
    const int key = i / S::kChunks, chunk = i % S::kChunks, at = first + key;
    const bool is_present = at >= low && at <= high;
    const char* row = heads;
    if (is_present) row += table[at / kBlockTokens] * block_bytes + at % kBlockTokens * kRowBytes;
    unsigned char* to = shared + key * S::kStride + chunk * 16;
    if (Stored == kStoredF16)
      cp_async_16_or_zero(to, row + chunk * 16, is_present);
    else
      *reinterpret_cast<uint4*>(to) =
          is_present ? halves_of<Stored>(row, chunk) : make_uint4(0, 0, 0, 0);
  }
  cp_async_commit();
}

__device__ __forceinline__ float (&fragment(float* sums, int block))[4] {
  return *reinterpret_cast<float (*)[4]>(sums + 4 * block);
}

template <int HeadDim, int Group, int Stored, bool Windowed, bool Capped, int To>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_tiles(const __grid_constant__ Attention f) {
  using S = Shape<HeadDim>;
  constexpr int kFragments = S::kFragments, kKeyBlocks = S::kKeys / 8, kDimBlocks = HeadDim / 8;
  constexpr int kTokens =
      S::kRows / Group;  // rows of the batch; Group heads of each stand together
  launch_dependents();
  wait_for_previous();
  const int64_t count = *f.count, tiles = (count + kTokens - 1) / kTokens;
  if (blockIdx.y >= tiles) return;
  const int64_t first_token = (tiles - 1 - blockIdx.y) * kTokens;  // the longest first
  const int tokens =
      count - first_token < kTokens ? static_cast<int>(count - first_token) : kTokens;
  const int64_t kv_head = blockIdx.x;

  unsigned char* queries = dynamic_shared();
  unsigned char* keys = queries + S::kRows * S::kStride;
  unsigned char* values = keys + S::kKeys * S::kStride;
  int* positions = reinterpret_cast<int*>(values + S::kKeys * S::kStride);
  int* sequences = positions + S::kRows;
  for (int i = threadIdx.x; i < tokens; i += kAttentionThreads) {
    positions[i] = f.positions[first_token + i];
    sequences[i] = f.sequences[first_token + i];
  }
#pragma unroll 4
  for (int i = threadIdx.x; i < S::kRows * S::kChunks; i += kAttentionThreads) {
    const int row = i / S::kChunks, chunk = i % S::kChunks, token = row / Group;
    const uint4 q = token < tokens ? query_chunk<HeadDim>(f, first_token + token,
                                                          kv_head * Group + row % Group, chunk)
                                   : make_uint4(0, 0, 0, 0);
    *reinterpret_cast<uint4*>(queries + row * S::kStride + chunk * 16) = q;
  }
  __syncthreads();

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first_row = warp * kFragments * 16;
  Softmax softmax[kFragments];
  float mixed[kFragments][kDimBlocks][4] = {};
#pragma unroll
  for (int i = 0; i < kFragments; i++) softmax[i].reset();

  const int64_t block_head_bytes = kBlockTokens * static_cast<int64_t>(bytes_of<Stored>(HeadDim));
  const int64_t half_bytes = f.kv_heads * block_head_bytes;
  const char* key_heads = f.state + kv_head * block_head_bytes;
  const char* value_heads = key_heads + half_bytes;
  const float scale = Capped ? f.scale.value / f.softcap.value : f.scale.value * kLog2E;
  const float limit = Capped ? f.softcap.value * kLog2E : 0.0f;
  const int window = Windowed ? static_cast<int>(f.window) : 0;

  Span span = span_after(-1, positions, sequences, tokens, window);
  while (span.sequence >= 0) {
    const int* table = reinterpret_cast<const int*>(f.tables + span.sequence * f.tables_stride);
    const int first = span.low / S::kKeys, last = span.high / S::kKeys;
    fetch<HeadDim, Stored>(keys, key_heads, 2 * half_bytes, table, first * S::kKeys, span.low,
                           span.high);
    for (int tile = first; tile <= last; tile++) {
      const int first_key = tile * S::kKeys;
      fetch<HeadDim, Stored>(values, value_heads, 2 * half_bytes, table, first_key, span.low,
                             span.high);
      cp_async_wait<1>();
      __syncthreads();

      float scores[kFragments][4 * kKeyBlocks] = {};
#pragma unroll
      for (int step = 0; step < HeadDim / 16; step++) {
        uint32_t a[kFragments][4];
#pragma unroll
        for (int i = 0; i < kFragments; i++)
          load_matrices(a[i], queries + (first_row + 16 * i + lane % 16) * S::kStride + step * 32 +
                                  lane / 16 * 16);
#pragma unroll
        for (int block = 0; block < kKeyBlocks; block += 2) {
          uint32_t b[4];
          load_matrices(b,
                        keys + (8 * block + lane % 16) * S::kStride + step * 32 + lane / 16 * 16);
          const uint32_t one[2] = {b[0], b[2]}, two[2] = {b[1], b[3]};
#pragma unroll
          for (int i = 0; i < kFragments; i++) {
            mma_f16(fragment(scores[i], block), a[i], one);
            mma_f16(fragment(scores[i], block + 1), a[i], two);
          }
        }
      }
      __syncthreads();
      if (tile < last)
        fetch<HeadDim, Stored>(keys, key_heads, 2 * half_bytes, table, first_key + S::kKeys,
                               span.low, span.high);
      else
        cp_async_commit();

      const bool sees_all = span.is_alone && first_key + S::kKeys - 1 <= span.nearest &&
                            (!Windowed || first_key > span.farthest - window);
      uint32_t weights[kFragments][2 * kKeyBlocks];
#pragma unroll
      for (int i = 0; i < kFragments; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          int position = -1;
          if (!sees_all) {
            const int token = (first_row + 16 * i + 8 * half + lane / 4) / Group;
            if (token < tokens && sequences[token] == span.sequence) position = positions[token];
          }
          const float keep = softmax[i].template fold<kKeyBlocks, Windowed, Capped>(
              scores[i], half, scale, limit, sees_all, position, first_key, window);
          if (keep != 1.0f) {
#pragma unroll
            for (int block = 0; block < kDimBlocks; block++) {
              mixed[i][block][2 * half] *= keep;
              mixed[i][block][2 * half + 1] *= keep;
            }
          }
        }

#pragma unroll
      for (int i = 0; i < kFragments; i++) pack_weights<kKeyBlocks>(weights[i], scores[i]);

      cp_async_wait<1>();
      __syncthreads();
#pragma unroll
      for (int step = 0; step < S::kKeys / 16; step++) {
#pragma unroll
        for (int block = 0; block < kDimBlocks; block += 2) {
          uint32_t b[4];
          load_matrices_transposed(
              b, values + (16 * step + lane % 16) * S::kStride + block * 16 + lane / 16 * 16);
          const uint32_t one[2] = {b[0], b[1]}, two[2] = {b[2], b[3]};
#pragma unroll
          for (int i = 0; i < kFragments; i++) {
            const uint32_t a[4] = {weights[i][4 * step], weights[i][4 * step + 1],
                                   weights[i][4 * step + 2], weights[i][4 * step + 3]};
            mma_f16(mixed[i][block], a, one);
            mma_f16(mixed[i][block + 1], a, two);
          }
        }
      }
      __syncthreads();
    }
    if (span.is_alone) break;
    span = span_after(span.sequence, positions, sequences, tokens, window);
  }

#pragma unroll
  for (int i = 0; i < kFragments; i++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float inverse = softmax[i].inverse(half);
      const int row = first_row + 16 * i + 8 * half + lane / 4, token = row / Group;
      if (token >= tokens) continue;
      const int64_t first_column = (kv_head * Group + row % Group) * HeadDim + lane % 4 * 2;
#pragma unroll
      for (int block = 0; block < kDimBlocks; block++)
        store_mixed<To>(f, first_token + token, first_column + 8 * block,
                        mixed[i][block][2 * half] * inverse,
                        mixed[i][block][2 * half + 1] * inverse);
    }
}

}  // namespace corral
