// Attention of prefill on sm_90a: wgmma, with a warpgroup of its own that brings keys and values.
//
// What is computed, and in which order, is as in attention_tiles.cu with tiles of KEYS. Two warpgroups have 64 of a block's
// 128 rows each; while one does its softmax, the other one multiplies. The third brings tiles ahead of them, whatever the
// cache stores, as F16 in panels of 64 columns, swizzled as tiles.cuh describes.
#include "include/attention.cuh"
#include "include/ptx_hopper.cuh"

namespace corral {

constexpr int WGMMA_THREADS = 384;
constexpr int ROWS = 128;
constexpr int KEYS = 128;
constexpr int STAGES = 2;

template <int HEAD_DIM>
struct Panels {
  static constexpr int CHUNKS = HEAD_DIM / CHUNK;
  static constexpr int PANEL_BYTES = KEYS * 128;  // 64 columns of all rows; as many rows as keys
  static constexpr int TILE = HEAD_DIM / 64 * PANEL_BYTES;
  static constexpr int BYTES = (1 + 2 * STAGES) * TILE;

  static inline __device__ int at(int row, int chunk) {
    return chunk / 8 * PANEL_BYTES + row * 128 + ((chunk ^ row) & 7) * 16;
  }
};

#if CORRAL_ARCH >= 900

struct Stages {
  uint64_t* full_keys;
  uint64_t* empty_keys;
  uint64_t* full_values;
  uint64_t* empty_values;
  int stage = 0;
  uint32_t parity = 0;

  inline __device__ void advance() {
    if (++stage == STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// What a block works on.
template <int HEAD_DIM, int STORED>
struct Task {
  using P = Panels<HEAD_DIM>;
  unsigned char* queries;
  unsigned char* keys;
  unsigned char* values;
  const int* positions;
  const int* sequences;
  int tokens, window;
  int64_t first_token, kv_head;
};

// Brings one tile: zeros for keys outside of [low, high].
template <int HEAD_DIM, int STORED>
inline __device__ void fetch(unsigned char* to, const char* heads, int64_t block_bytes, const int* table, int first,
                             const Span& span) {
  using P = Panels<HEAD_DIM>;
  constexpr int ROW_BYTES = bytes_of<STORED>(HEAD_DIM);
#pragma unroll(STORED == STORED_F16 ? 4 : 2)
  for (int i = threadIdx.x; i < KEYS * P::CHUNKS; i += 128) {
    const int key = i / P::CHUNKS, chunk = i % P::CHUNKS, at = first + key;
    const bool is_present = at >= span.low && at <= span.high;
    const char* row = heads;
    if (is_present) row += __ldg(table + at / BLOCK_TOKENS) * block_bytes + at % BLOCK_TOKENS * ROW_BYTES;
    if (STORED == STORED_F16)
      cp_async_16_or_zero(to + P::at(key, chunk), row + chunk * 16, is_present);
    else
      *reinterpret_cast<uint4*>(to + P::at(key, chunk)) = is_present ? halves_of<STORED>(row, chunk) : make_uint4(0, 0, 0, 0);
  }
  cp_async_commit();
}

template <int HEAD_DIM, int STORED>
inline __device__ void bring_all(const Attention& f, const Task<HEAD_DIM, STORED>& task, Stages p) {
  using P = Panels<HEAD_DIM>;
  const int64_t block_head_bytes = BLOCK_TOKENS * static_cast<int64_t>(bytes_of<STORED>(HEAD_DIM));
  const int64_t half_bytes = f.kv_heads * block_head_bytes;
  const char* key_heads = f.state + task.kv_head * block_head_bytes;
  uint64_t* before = nullptr;  // whose copies are under way
  Span span = span_after(-1, task.positions, task.sequences, task.tokens, task.window);
  while (span.sequence >= 0) {
    const int* table = reinterpret_cast<const int*>(f.tables + span.sequence * f.tables_stride);
    for (int tile = span.low / KEYS; tile <= span.high / KEYS; tile++) {
#pragma unroll
      for (int part = 0; part < 2; part++) {  // keys, then values
        barrier_wait(&(part ? p.empty_values : p.empty_keys)[p.stage], p.parity ^ 1);
        fetch<HEAD_DIM, STORED>((part ? task.values : task.keys) + p.stage * P::TILE, key_heads + part * half_bytes,
                                2 * half_bytes, table, tile * KEYS, span);
        cp_async_wait<1>();
        async_fence();
        if (before) barrier_arrive(before);
        before = &(part ? p.full_values : p.full_keys)[p.stage];
      }
      p.advance();
    }
    if (span.is_alone) break;
    span = span_after(span.sequence, task.positions, task.sequences, task.tokens, task.window);
  }
  cp_async_wait<0>();
  async_fence();
  if (before) barrier_arrive(before);
}

template <int HEAD_DIM, int GROUP, int STORED, bool WINDOWED, bool CAPPED, int TO>
inline __device__ void attend(const Attention& f, const Task<HEAD_DIM, STORED>& task, Stages p) {
  using P = Panels<HEAD_DIM>;
  constexpr int KEY_BLOCKS = KEYS / 8, DIM_BLOCKS = HEAD_DIM / 8;
  const int part = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
  const int first_row = part * 64 + threadIdx.x / 32 % 4 * 16;
  const float scale = CAPPED ? f.scale.value / f.softcap.value : f.scale.value * LOG2_E;
  const float limit = CAPPED ? f.softcap.value * LOG2_E : 0.0f;
  Softmax softmax;
  softmax.reset();
  float mixed[HEAD_DIM / 2] = {};
  Span span = span_after(-1, task.positions, task.sequences, task.tokens, task.window);
  while (span.sequence >= 0) {
    for (int tile = span.low / KEYS; tile <= span.high / KEYS; tile++) {
      const int first_key = tile * KEYS;
      float scores[KEYS / 2];
      barrier_wait(&p.full_keys[p.stage], p.parity);
      products_begin();
#pragma unroll
      for (int step = 0; step < HEAD_DIM / 16; step++) {
        const int panel = step / 4 * P::PANEL_BYTES, column = step % 4 * 2;
        multiply_add(scores, factor_at(task.queries + panel + part * 64 * 128) + column,
                     factor_at(task.keys + p.stage * P::TILE + panel) + column, step == 0, __half());
      }
      products_commit();
      products_wait<0>();
      settle(scores);
      if (threadIdx.x % 128 == 0) barrier_arrive(&p.empty_keys[p.stage]);

      const bool sees_all =
          span.is_alone && first_key + KEYS - 1 <= span.nearest && (!WINDOWED || first_key > span.farthest - task.window);
      uint32_t weights[2 * KEY_BLOCKS];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int position = -1;
        if (!sees_all) {
          const int token = (first_row + 8 * half + lane / 4) / GROUP;
          if (token < task.tokens && task.sequences[token] == span.sequence) position = task.positions[token];
        }
        const float keep = softmax.template fold<KEY_BLOCKS, WINDOWED, CAPPED>(scores, weights, half, scale, limit, sees_all,
                                                                              position, first_key, task.window);
#pragma unroll
        for (int block = 0; block < DIM_BLOCKS; block++) {
          mixed[4 * block + 2 * half] *= keep;
          mixed[4 * block + 2 * half + 1] *= keep;
        }
      }

      barrier_wait(&p.full_values[p.stage], p.parity);
      settle(mixed);
      products_begin();
#pragma unroll
      for (int step = 0; step < KEYS / 16; step++)
        multiply_add_rows(mixed, weights + 4 * step,
                          rows_at(task.values + p.stage * P::TILE + step * 16 * 128, P::PANEL_BYTES));
      products_commit();
      products_wait<0>();
      settle(mixed);
      if (threadIdx.x % 128 == 0) barrier_arrive(&p.empty_values[p.stage]);
      p.advance();
    }
    if (span.is_alone) break;
    span = span_after(span.sequence, task.positions, task.sequences, task.tokens, task.window);
  }
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const float inverse = softmax.inverse(half);
    const int row = first_row + 8 * half + lane / 4, token = row / GROUP;
    if (token >= task.tokens) continue;
    const int64_t first_column = (task.kv_head * GROUP + row % GROUP) * HEAD_DIM + lane % 4 * 2;
#pragma unroll
    for (int block = 0; block < DIM_BLOCKS; block++)
      store_mixed<TO>(f, task.first_token + token, first_column + 8 * block, mixed[4 * block + 2 * half] * inverse,
                            mixed[4 * block + 2 * half + 1] * inverse);
  }
}

#endif

template <int HEAD_DIM, int GROUP, int STORED, bool WINDOWED, bool CAPPED, int TO>
__global__ void __launch_bounds__(WGMMA_THREADS, 1)
attention_wgmma(const __grid_constant__ Attention f) {
#if CORRAL_ARCH >= 900
  using P = Panels<HEAD_DIM>;
  constexpr int TOKENS = ROWS / GROUP;  // rows of the batch; GROUP heads of each stand together
  __shared__ int positions[TOKENS], sequences[TOKENS];
  __shared__ uint64_t barriers[4 * STAGES];
  launch_dependents();
  unsigned char* queries = dynamic_shared();
  queries += (1024 - shared_address(queries) % 1024) % 1024;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      barrier_init(&barriers[i], 128);
      barrier_init(&barriers[STAGES + i], 2);
      barrier_init(&barriers[2 * STAGES + i], 128);
      barrier_init(&barriers[3 * STAGES + i], 2);
    }
    barrier_init_fence();
  }
  wait_for_previous();
  const int64_t count = *f.count, tiles = (count + TOKENS - 1) / TOKENS;
  if (blockIdx.y >= tiles) return;
  const int64_t first_token = (tiles - 1 - blockIdx.y) * TOKENS;  // the longest first
  const int tokens = count - first_token < TOKENS ? static_cast<int>(count - first_token) : TOKENS;
  const int64_t kv_head = blockIdx.x;
  for (int i = threadIdx.x; i < tokens; i += WGMMA_THREADS) {
    positions[i] = f.positions[first_token + i];
    sequences[i] = f.sequences[first_token + i];
  }
#pragma unroll 4
  for (int i = threadIdx.x; i < ROWS * P::CHUNKS; i += WGMMA_THREADS) {
    const int row = i / P::CHUNKS, chunk = i % P::CHUNKS, token = row / GROUP;
    const uint4 q = token < tokens ? query_chunk<HEAD_DIM>(f, first_token + token, kv_head * GROUP + row % GROUP, chunk)
                                   : make_uint4(0, 0, 0, 0);
    *reinterpret_cast<uint4*>(queries + P::at(row, chunk)) = q;
  }
  async_fence();
  __syncthreads();
  const Task<HEAD_DIM, STORED> task{queries, queries + P::TILE, queries + (1 + STAGES) * P::TILE, positions, sequences,
                                    tokens, WINDOWED ? static_cast<int>(f.window) : 0, first_token, kv_head};
  const Stages stages{barriers, barriers + STAGES, barriers + 2 * STAGES, barriers + 3 * STAGES};
  if (threadIdx.x < 128) {
    shrink_registers<72>();
    bring_all(f, task, stages);
  } else {
    grow_registers<216>();
    attend<HEAD_DIM, GROUP, STORED, WINDOWED, CAPPED, TO>(f, task, stages);
  }
#endif
}

}  // namespace corral
