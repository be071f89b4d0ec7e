// Attention of prefill on tensor cores: one block takes some consecutive rows of the batch and the query heads that share
// one kv head, and goes over the keys of each sequence that these rows belong to.
//
// Queries, keys and values meet as F16, sums and softmax are F32. Every row folds the same tiles of keys, cut at multiples
// of KEYS, in the same order: a tile of which it sees nothing leaves its sums as they are to the bit, so a row's result
// does not depend on its neighbours. Positions that no row sees are not read; their blocks may be gone.
#include "include/ptx.cuh"
#include "include/tiles.cuh"

namespace corral {

struct AttentionTiles {
  const char* q;
  const char* state;
  char* out;               // F32 rows; or tiles of BF16
  const int64_t* count;
  const int* positions;
  const int* sequences;
  const char* tables;
  int64_t q_stride;
  int64_t out_stride;      // bytes of a row; tiles of a row
  int64_t tables_stride;
  int64_t kv_heads;
  Float scale;
  int64_t window;
  Float softcap;
};

enum Stored { STORED_F16 = 0, STORED_BF16 = 1, STORED_F32 = 2, STORED_Q8_0 = 3 };

constexpr int ATTENTION_THREADS = 128;
constexpr int WARPS = ATTENTION_THREADS / 32;
constexpr int BLOCK_TOKENS = 32;
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float HALF_MAX = 65504.0f;

template <int HEAD_DIM>
struct Shape {
  static constexpr int FRAGMENTS = HEAD_DIM <= 128 ? 2 : 1;  // of 16 rows, a warp
  static constexpr int ROWS = WARPS * FRAGMENTS * 16;
  static constexpr int KEYS = HEAD_DIM <= 128 ? 64 : 32;
  static constexpr int STRIDE = HEAD_DIM * 2 + 16;  // an odd number of 16-byte units: no two rows in the same banks
  static constexpr int CHUNKS = HEAD_DIM / CHUNK;
};

template <int STORED>
constexpr int bytes_of(int elements) {
  return STORED == STORED_F32 ? 4 * elements : STORED == STORED_Q8_0 ? elements / 32 * 34 : 2 * elements;
}

inline __device__ float least() { return __uint_as_float(0xFF800000u); }  // −∞

inline __device__ float within_half(float x) { return fminf(fmaxf(x, -HALF_MAX), HALF_MAX); }

// Eight elements of a stored row as F16.
template <int STORED>
inline __device__ uint4 halves_of(const char* row, int chunk) {
  float v[CHUNK];
  if (STORED == STORED_BF16) {
    const uint4 raw = *reinterpret_cast<const uint4*>(row + chunk * 16);
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < CHUNK; i++) v[i] = within_half(__uint_as_float(i % 2 ? words[i / 2] & 0xFFFF0000u : words[i / 2] << 16));
  } else if (STORED == STORED_F32) {
    const float4 low = reinterpret_cast<const float4*>(row)[2 * chunk], high = reinterpret_cast<const float4*>(row)[2 * chunk + 1];
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
#pragma unroll
    for (int i = 0; i < CHUNK; i++) v[i] = within_half(v[i]);
  } else {  // blocks of an F16 scale and 32 codes, at even addresses
    const unsigned short* block = reinterpret_cast<const unsigned short*>(row + chunk / 4 * 34);
    const float scale = __half2float(__ushort_as_half(block[0]));
#pragma unroll
    for (int i = 0; i < CHUNK; i += 2) {
      const unsigned pair = block[1 + (chunk % 4 * CHUNK + i) / 2];
      v[i] = within_half(scale * static_cast<signed char>(pair & 0xFF));
      v[i + 1] = within_half(scale * static_cast<signed char>(pair >> 8));
    }
  }
  return chunk_of<__half>(v);
}

// Brings keys (or values) first … first + KEYS − 1 to shared memory, zeros for those outside of [low, high].
template <int HEAD_DIM, int STORED>
inline __device__ void fetch(unsigned char* shared, const char* heads, int64_t block_bytes, const int* table, int first,
                             int low, int high) {
  using S = Shape<HEAD_DIM>;
  constexpr int ROW_BYTES = bytes_of<STORED>(HEAD_DIM);
  static_assert(S::KEYS * S::CHUNKS % ATTENTION_THREADS == 0, "whole rounds");
#pragma unroll 2
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

// Rows of a fragment: lane l has elements of rows l / 4 and l / 4 + 8.
template <int FRAGMENTS>
struct Softmax {
  float greatest[FRAGMENTS][2];
  float total[FRAGMENTS][2];
};

template <int HEAD_DIM, int GROUP, int STORED, bool WINDOWED, bool CAPPED, bool TO_TILES>
__global__ void __launch_bounds__(ATTENTION_THREADS)
attention_tiles(const __grid_constant__ AttentionTiles f) {
  using S = Shape<HEAD_DIM>;
  constexpr int FRAGMENTS = S::FRAGMENTS, KEY_BLOCKS = S::KEYS / 8, DIM_BLOCKS = HEAD_DIM / 8;
  constexpr int TOKENS = S::ROWS / GROUP;  // rows of the batch; GROUP heads of each stand together
  launch_dependents();
  wait_for_previous();
  const int64_t count = *f.count, tiles = (count + TOKENS - 1) / TOKENS;
  if (blockIdx.x >= tiles) return;
  const int64_t first_token = (tiles - 1 - blockIdx.x) * TOKENS;  // the longest first
  const int tokens = count - first_token < TOKENS ? static_cast<int>(count - first_token) : TOKENS;
  const int64_t kv_head = blockIdx.y;

  unsigned char* queries = dynamic_shared();
  unsigned char* keys = queries + S::ROWS * S::STRIDE;
  unsigned char* values = keys + S::KEYS * S::STRIDE;
  int* positions = reinterpret_cast<int*>(values + S::KEYS * S::STRIDE);
  int* sequences = positions + S::ROWS;
  for (int i = threadIdx.x; i < TOKENS; i += ATTENTION_THREADS) {
    positions[i] = i < tokens ? f.positions[first_token + i] : -1;
    sequences[i] = i < tokens ? f.sequences[first_token + i] : -1;
  }
  for (int i = threadIdx.x; i < S::ROWS * S::CHUNKS; i += ATTENTION_THREADS) {
    const int row = i / S::CHUNKS, chunk = i % S::CHUNKS, token = row / GROUP;
    float v[CHUNK] = {};
    if (token < tokens) {
      const int64_t column = (kv_head * GROUP + row % GROUP) * HEAD_DIM + chunk * CHUNK;
      const float* from = reinterpret_cast<const float*>(f.q + (first_token + token) * f.q_stride) + column;
#pragma unroll
      for (int j = 0; j < CHUNK; j++) v[j] = within_half(from[j]);
    }
    *reinterpret_cast<uint4*>(queries + row * S::STRIDE + chunk * 16) = chunk_of<__half>(v);
  }
  __syncthreads();

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first_row = warp * FRAGMENTS * 16;
  Softmax<FRAGMENTS> state;
  float mixed[FRAGMENTS][DIM_BLOCKS][4] = {};
#pragma unroll
  for (int i = 0; i < FRAGMENTS; i++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      state.greatest[i][half] = least();
      state.total[i][half] = 0.0f;
    }

  const int64_t block_head_bytes = BLOCK_TOKENS * static_cast<int64_t>(bytes_of<STORED>(HEAD_DIM));
  const int64_t half_bytes = f.kv_heads * block_head_bytes;
  const char* key_heads = f.state + kv_head * block_head_bytes;
  const char* value_heads = key_heads + half_bytes;
  const float scale = CAPPED ? f.scale.value / f.softcap.value : f.scale.value * LOG2_E;
  const int window = WINDOWED ? static_cast<int>(f.window) : 0;

  // Sequences in the order of their first rows here; `done` rows at the start belong to those treated.
  for (int begin = 0; begin < tokens;) {
    const int sequence = sequences[begin];
    int low = positions[begin], high = low;
    bool is_alone = true;
    for (int i = 0; i < tokens; i++) {
      if (sequences[i] != sequence) {
        is_alone = false;
      } else {
        low = positions[i] < low ? positions[i] : low;
        high = positions[i] > high ? positions[i] : high;
      }
    }
    const int nearest = low, farthest = high;  // rows are at these positions
    low = WINDOWED && low >= window ? low - window + 1 : 0;
    const int* table = reinterpret_cast<const int*>(f.tables + sequence * f.tables_stride);
    const int first = low / S::KEYS, last = high / S::KEYS;
    fetch<HEAD_DIM, STORED>(keys, key_heads, 2 * half_bytes, table, first * S::KEYS, low, high);
    for (int tile = first; tile <= last; tile++) {
      const int first_key = tile * S::KEYS;
      fetch<HEAD_DIM, STORED>(values, value_heads, 2 * half_bytes, table, first_key, low, high);
      cp_async_wait<1>();
      __syncthreads();

      float scores[FRAGMENTS][KEY_BLOCKS][4] = {};
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
            mma_f16(scores[i][block], a[i], one);
            mma_f16(scores[i][block + 1], a[i], two);
          }
        }
      }
      __syncthreads();
      if (tile < last)
        fetch<HEAD_DIM, STORED>(keys, key_heads, 2 * half_bytes, table, first_key + S::KEYS, low, high);
      else
        cp_async_commit();

      const bool sees_all = is_alone && first_key + S::KEYS - 1 <= nearest && (!WINDOWED || first_key > farthest - window);
      uint32_t weights[FRAGMENTS][KEY_BLOCKS][2];
#pragma unroll
      for (int i = 0; i < FRAGMENTS; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          float greatest = state.greatest[i][half];
          int position = -1;  // of this row, if it belongs to the sequence
          if (!sees_all) {
            const int token = (first_row + 16 * i + 8 * half + lane / 4) / GROUP;
            if (token < tokens && sequences[token] == sequence) position = positions[token];
          }
#pragma unroll
          for (int block = 0; block < KEY_BLOCKS; block++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
              float& score = scores[i][block][2 * half + j];
              score *= scale;
              if (CAPPED)  // limit · tanh(x), in units of log2
                score = f.softcap.value * LOG2_E * (1.0f - 2.0f / (1.0f + exp2_approx(2.0f * LOG2_E * score)));
              if (!sees_all) {
                const int distance = position - (first_key + 8 * block + lane % 4 * 2 + j);
                const bool is_hidden = distance < 0 || (WINDOWED && distance >= window);
                if (is_hidden) score = least();
              }
              greatest = fmaxf(greatest, score);
            }
          greatest = fmaxf(greatest, __shfl_xor_sync(0xFFFFFFFFu, greatest, 1));
          greatest = fmaxf(greatest, __shfl_xor_sync(0xFFFFFFFFu, greatest, 2));
          const float base = greatest == least() ? 0.0f : greatest;
          const float keep = exp2_approx(state.greatest[i][half] - base);
          state.greatest[i][half] = greatest;
          float total = 0.0f;
#pragma unroll
          for (int block = 0; block < KEY_BLOCKS; block++) {
            const float one = exp2_approx(scores[i][block][2 * half] - base);
            const float two = exp2_approx(scores[i][block][2 * half + 1] - base);
            total += one + two;
            weights[i][block][half] = pair_of(one, two, __half());
          }
          state.total[i][half] = state.total[i][half] * keep + total;
          if (keep != 1.0f) {
#pragma unroll
            for (int block = 0; block < DIM_BLOCKS; block++) {
              mixed[i][block][2 * half] *= keep;
              mixed[i][block][2 * half + 1] *= keep;
            }
          }
        }

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
            const uint32_t a[4] = {weights[i][2 * step][0], weights[i][2 * step][1], weights[i][2 * step + 1][0],
                                   weights[i][2 * step + 1][1]};
            mma_f16(mixed[i][block], a, one);
            mma_f16(mixed[i][block + 1], a, two);
          }
        }
      }
      __syncthreads();
    }
    // the next sequence: the first row that belongs to none of those before it
    for (begin++; begin < tokens; begin++) {
      bool is_new = true;
      for (int i = 0; i < begin; i++) is_new = is_new && sequences[i] != sequences[begin];
      if (is_new) break;
    }
  }

#pragma unroll
  for (int i = 0; i < FRAGMENTS; i++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float total = state.total[i][half];
      total += __shfl_xor_sync(0xFFFFFFFFu, total, 1);
      total += __shfl_xor_sync(0xFFFFFFFFu, total, 2);
      const int row = first_row + 16 * i + 8 * half + lane / 4, token = row / GROUP;
      if (token >= tokens) continue;
      const float inverse = 1.0f / total;
      const int64_t first_column = (kv_head * GROUP + row % GROUP) * HEAD_DIM + lane % 4 * 2;
#pragma unroll
      for (int block = 0; block < DIM_BLOCKS; block++) {
        const int64_t column = first_column + 8 * block;
        const float one = mixed[i][block][2 * half] * inverse, two = mixed[i][block][2 * half + 1] * inverse;
        if (TO_TILES) {
          const Target target{f.out, f.out_stride};
          unsigned* chunk = reinterpret_cast<unsigned*>(target.chunk<true>(first_token + token, column / CHUNK));
          chunk[lane % 4] = pair_of(one, two, __nv_bfloat16());
        } else {
          float* to = reinterpret_cast<float*>(f.out + (first_token + token) * f.out_stride) + column;
          *reinterpret_cast<float2*>(to) = make_float2(one, two);
        }
      }
    }
}

}  // namespace corral
