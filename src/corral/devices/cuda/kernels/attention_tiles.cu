// Attention of prefill by mma.sync, for every architecture: one block takes some consecutive rows of the batch and the query heads that share
// one kv head, and goes over the keys of each sequence that these rows belong to.
//
// Queries, keys and values meet as F16, sums and softmax are F32. Every row folds the same tiles of keys, cut at multiples
// of KEYS, in the same order: a tile of which it sees nothing leaves its sums as they are to the bit, so a row's result
// does not depend on its neighbours. Positions that no row sees are not read; their blocks may be gone.
#include "include/prefill_attention.cuh"

namespace corral {

constexpr int ATTENTION_THREADS = 128;
constexpr int WARPS = ATTENTION_THREADS / 32;

template <int HEAD_DIM>
struct Shape {
  static constexpr int FRAGMENTS = HEAD_DIM <= 128 ? 2 : 1;  // of 16 rows, a warp
  static constexpr int ROWS = WARPS * FRAGMENTS * 16;
  static constexpr int KEYS = HEAD_DIM <= 128 ? 64 : 32;
  static constexpr int STRIDE = HEAD_DIM * 2 + 16;  // an odd number of 16-byte units: no two rows in the same banks
  static constexpr int CHUNKS = HEAD_DIM / CHUNK;
};

// Brings keys (or values) first … first + KEYS − 1 to shared memory, zeros for those outside of [low, high].
template <int HEAD_DIM, int STORED>
inline __device__ void fetch(unsigned char* shared, const char* heads, int64_t block_bytes, const int* table, int first,
                             int low, int high) {
  using S = Shape<HEAD_DIM>;
  constexpr int ROW_BYTES = bytes_of<STORED>(HEAD_DIM);
  static_assert(S::KEYS * S::CHUNKS % ATTENTION_THREADS == 0, "whole rounds");
#pragma unroll(STORED == STORED_F16 ? 1 : 2)
  for (int i = threadIdx.x; i < S::KEYS * S::CHUNKS; i += ATTENTION_THREADS) {
    const int key = i / S::CHUNKS, chunk = i % S::CHUNKS, at = first + key;
    const bool is_present = at >= low && at <= high;
    const char* row = heads;
    if (is_present) row += table[at / BLOCK_TOKENS] * block_bytes + at % BLOCK_TOKENS * ROW_BYTES;
    unsigned char* to = shared + key * S::STRIDE + chunk * 16;
    if (STORED == STORED_F16)
      cp_async_16_or_zero(to, row + chunk * 16, is_present);
    else
      *reinterpret_cast<uint4*>(to) = is_present ? halves_of<STORED>(row, chunk) : make_uint4(0, 0, 0, 0);
  }
  cp_async_commit();
}

inline __device__ float (&fragment(float* sums, int block))[4] { return *reinterpret_cast<float(*)[4]>(sums + 4 * block); }

template <int HEAD_DIM, int GROUP, int STORED, bool WINDOWED, bool CAPPED, int TO>
__global__ void __launch_bounds__(ATTENTION_THREADS)
attention_tiles(const __grid_constant__ Attention f) {
  using S = Shape<HEAD_DIM>;
  constexpr int FRAGMENTS = S::FRAGMENTS, KEY_BLOCKS = S::KEYS / 8, DIM_BLOCKS = HEAD_DIM / 8;
  constexpr int TOKENS = S::ROWS / GROUP;  // rows of the batch; GROUP heads of each stand together
  launch_dependents();
  wait_for_previous();
  const int64_t count = *f.count, tiles = (count + TOKENS - 1) / TOKENS;
  if (blockIdx.y >= tiles) return;
  const int64_t first_token = (tiles - 1 - blockIdx.y) * TOKENS;  // the longest first
  const int tokens = count - first_token < TOKENS ? static_cast<int>(count - first_token) : TOKENS;
  const int64_t kv_head = blockIdx.x;

  unsigned char* queries = dynamic_shared();
  unsigned char* keys = queries + S::ROWS * S::STRIDE;
  unsigned char* values = keys + S::KEYS * S::STRIDE;
  int* positions = reinterpret_cast<int*>(values + S::KEYS * S::STRIDE);
  int* sequences = positions + S::ROWS;
  for (int i = threadIdx.x; i < tokens; i += ATTENTION_THREADS) {
    positions[i] = f.positions[first_token + i];
    sequences[i] = f.sequences[first_token + i];
  }
#pragma unroll 4
  for (int i = threadIdx.x; i < S::ROWS * S::CHUNKS; i += ATTENTION_THREADS) {
    const int row = i / S::CHUNKS, chunk = i % S::CHUNKS, token = row / GROUP;
    const uint4 q = token < tokens ? query_chunk<HEAD_DIM>(f, first_token + token, kv_head * GROUP + row % GROUP, chunk)
                                   : make_uint4(0, 0, 0, 0);
    *reinterpret_cast<uint4*>(queries + row * S::STRIDE + chunk * 16) = q;
  }
  __syncthreads();

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first_row = warp * FRAGMENTS * 16;
  Softmax softmax[FRAGMENTS];
  float mixed[FRAGMENTS][DIM_BLOCKS][4] = {};
#pragma unroll
  for (int i = 0; i < FRAGMENTS; i++) softmax[i].reset();

  const int64_t block_head_bytes = BLOCK_TOKENS * static_cast<int64_t>(bytes_of<STORED>(HEAD_DIM));
  const int64_t half_bytes = f.kv_heads * block_head_bytes;
  const char* key_heads = f.state + kv_head * block_head_bytes;
  const char* value_heads = key_heads + half_bytes;
  const float scale = CAPPED ? f.scale.value / f.softcap.value : f.scale.value * LOG2_E;
  const float limit = CAPPED ? f.softcap.value * LOG2_E : 0.0f;
  const int window = WINDOWED ? static_cast<int>(f.window) : 0;

  Span span = span_after(-1, positions, sequences, tokens, window);
  while (span.sequence >= 0) {
    const int* table = reinterpret_cast<const int*>(f.tables + span.sequence * f.tables_stride);
    const int first = span.low / S::KEYS, last = span.high / S::KEYS;
    fetch<HEAD_DIM, STORED>(keys, key_heads, 2 * half_bytes, table, first * S::KEYS, span.low, span.high);
    for (int tile = first; tile <= last; tile++) {
      const int first_key = tile * S::KEYS;
      fetch<HEAD_DIM, STORED>(values, value_heads, 2 * half_bytes, table, first_key, span.low, span.high);
      cp_async_wait<1>();
      __syncthreads();

      float scores[FRAGMENTS][4 * KEY_BLOCKS] = {};
#pragma unroll
      for (int step = 0; step < HEAD_DIM / 16; step++) {
        uint32_t a[FRAGMENTS][4];
#pragma unroll
        for (int i = 0; i < FRAGMENTS; i++)
          load_matrices(a[i], queries + (first_row + 16 * i + lane % 16) * S::STRIDE + step * 32 + lane / 16 * 16);
#pragma unroll
        for (int block = 0; block < KEY_BLOCKS; block += 2) {
          uint32_t b[4];
          load_matrices(b, keys + (8 * block + lane % 16) * S::STRIDE + step * 32 + lane / 16 * 16);
          const uint32_t one[2] = {b[0], b[2]}, two[2] = {b[1], b[3]};
#pragma unroll
          for (int i = 0; i < FRAGMENTS; i++) {
            mma_f16(fragment(scores[i], block), a[i], one);
            mma_f16(fragment(scores[i], block + 1), a[i], two);
          }
        }
      }
      __syncthreads();
      if (tile < last)
        fetch<HEAD_DIM, STORED>(keys, key_heads, 2 * half_bytes, table, first_key + S::KEYS, span.low, span.high);
      else
        cp_async_commit();

      const bool sees_all =
          span.is_alone && first_key + S::KEYS - 1 <= span.nearest && (!WINDOWED || first_key > span.farthest - window);
      uint32_t weights[FRAGMENTS][2 * KEY_BLOCKS];
#pragma unroll
      for (int i = 0; i < FRAGMENTS; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          int position = -1;
          if (!sees_all) {
            const int token = (first_row + 16 * i + 8 * half + lane / 4) / GROUP;
            if (token < tokens && sequences[token] == span.sequence) position = positions[token];
          }
          const float keep = softmax[i].template fold<KEY_BLOCKS, WINDOWED, CAPPED>(scores[i], half, scale, limit, sees_all,
                                                                                    position, first_key, window);
          if (keep != 1.0f) {
#pragma unroll
            for (int block = 0; block < DIM_BLOCKS; block++) {
              mixed[i][block][2 * half] *= keep;
              mixed[i][block][2 * half + 1] *= keep;
            }
          }
        }

#pragma unroll
      for (int i = 0; i < FRAGMENTS; i++) pack_weights<KEY_BLOCKS>(weights[i], scores[i]);

      cp_async_wait<1>();
      __syncthreads();
#pragma unroll
      for (int step = 0; step < S::KEYS / 16; step++) {
#pragma unroll
        for (int block = 0; block < DIM_BLOCKS; block += 2) {
          uint32_t b[4];
          load_matrices_transposed(b, values + (16 * step + lane % 16) * S::STRIDE + block * 16 + lane / 16 * 16);
          const uint32_t one[2] = {b[0], b[1]}, two[2] = {b[2], b[3]};
#pragma unroll
          for (int i = 0; i < FRAGMENTS; i++) {
            const uint32_t a[4] = {weights[i][4 * step], weights[i][4 * step + 1], weights[i][4 * step + 2],
                                   weights[i][4 * step + 3]};
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
  for (int i = 0; i < FRAGMENTS; i++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float inverse = softmax[i].inverse(half);
      const int row = first_row + 16 * i + 8 * half + lane / 4, token = row / GROUP;
      if (token >= tokens) continue;
      const int64_t first_column = (kv_head * GROUP + row % GROUP) * HEAD_DIM + lane % 4 * 2;
#pragma unroll
      for (int block = 0; block < DIM_BLOCKS; block++)
        store_mixed<TO>(f, first_token + token, first_column + 8 * block, mixed[i][block][2 * half] * inverse,
                              mixed[i][block][2 * half + 1] * inverse);
    }
}

}  // namespace corral
