// Attention of prefill on sm_90a: wgmma, with a warpgroup of its own that brings keys and values.
//
// What is computed, and in which order, is as in attention_tiles.cu with tiles of KEYS. Two warpgroups have 64 of a block's
// 128 rows each; while one does its softmax, the other one multiplies. The third brings tiles ahead of them, whatever the
// cache stores, as F16 in panels of 64 columns, swizzled as tiles.cuh describes.
#include "include/prefill_attention.cuh"
#include "include/ptx_hopper.cuh"

namespace corral {

constexpr int WGMMA_THREADS = 384;
constexpr int ROWS = 128;
constexpr int KEYS = 128;
constexpr int STAGES = 2;
#ifndef CORRAL_TURNS
#define CORRAL_TURNS 1
#endif
constexpr bool TURNS = CORRAL_TURNS;

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
  unsigned char* raw;  // two tiles as the cache stores them
  const int* positions;
  const int* sequences;
  int tokens, window;
  int64_t first_token, kv_head;
};

// A tile of keys or of values on its way.
struct Step {
  unsigned char* to;
  unsigned char* raw;
  uint64_t* full;
  uint64_t* empty;
  uint32_t parity;
  int first, low, high;  // positions: the tile's first one, and those that any row sees
};

// The warpgroup that brings: each thread has one chunk of every so many rows.
template <int HEAD_DIM, int STORED>
struct Bring {
  using P = Panels<HEAD_DIM>;
  static constexpr int ROW_BYTES = bytes_of<STORED>(HEAD_DIM);
  static constexpr int ROWS_AT_ONCE = 128 / P::CHUNKS;  // a multiple of 8, so that all of a thread's rows swizzle alike
  static constexpr bool IS_STAGED = STORED == STORED_Q8_0;

  static inline __device__ int row() { return threadIdx.x / P::CHUNKS; }
  static inline __device__ int chunk() { return threadIdx.x % P::CHUNKS; }
  static inline __device__ bool is_present(const Step& s, int key) { return s.first + key >= s.low && s.first + key <= s.high; }

  // Starts the copies of a tile; F32 is converted on the way, Q8_0 comes to a place of its own.
  static inline __device__ void start(const Step& s, const char* heads, int64_t block_bytes, const int* table) {
    if (!IS_STAGED) barrier_wait(s.empty, s.parity ^ 1);
    unsigned char* to = s.to + P::at(row(), chunk());
#pragma unroll
    for (int part = 0; part < KEYS / BLOCK_TOKENS; part++) {
      const int first = s.first + part * BLOCK_TOKENS;
      const bool is_seen = first <= s.high && first + BLOCK_TOKENS > s.low;
      const char* block = heads + (is_seen ? table[first / BLOCK_TOKENS] : 0) * block_bytes;
      if (IS_STAGED) {
        unsigned char* raw = s.raw + part * BLOCK_TOKENS * ROW_BYTES;
        if (is_seen)
          for (int i = threadIdx.x * 16; i < BLOCK_TOKENS * ROW_BYTES; i += 128 * 16) cp_async_16(raw + i, block + i);
        continue;
      }
      block += row() * ROW_BYTES + chunk() * (STORED == STORED_F32 ? 32 : 16);
#pragma unroll
      for (int key = 0; key < BLOCK_TOKENS; key += ROWS_AT_ONCE) {
        const bool is_here = is_present(s, part * BLOCK_TOKENS + key + row());
        unsigned char* at = to + (part * BLOCK_TOKENS + key) * 128;
        if (STORED == STORED_F32)
          *reinterpret_cast<uint4*>(at) = is_here ? halves_of<STORED_F32>(block + key * ROW_BYTES, 0) : make_uint4(0, 0, 0, 0);
        else
          cp_async_16_or_zero(at, block + key * ROW_BYTES, is_here);
      }
    }
    cp_async_commit();
  }

  // Makes of what has come what wgmma reads, and says so. All but the PENDING last copies have come.
  template <int PENDING>
  static inline __device__ void finish(const Step& s) {
    cp_async_wait<PENDING>();
    unsigned char* to = s.to + P::at(row(), chunk());
    if (IS_STAGED) {
      named_barrier_sync(1, 128);  // the copies of all threads
      barrier_wait(s.empty, s.parity ^ 1);
    }
    if (IS_STAGED || STORED == STORED_BF16) {
#pragma unroll 4
      for (int key = 0; key < KEYS; key += ROWS_AT_ONCE) {
        uint4* at = reinterpret_cast<uint4*>(to + key * 128);
        if (STORED == STORED_BF16)
          *at = halves_of_bf16(*at);
        else
          *at = is_present(s, key + row())
                    ? halves_of<STORED_Q8_0>(reinterpret_cast<const char*>(s.raw) + (key + row()) * ROW_BYTES, chunk())
                    : make_uint4(0, 0, 0, 0);
      }
    }
    async_fence();
    barrier_arrive(s.full);
    if (IS_STAGED) named_barrier_sync(1, 128);  // the raw bytes are read
  }
};

template <int HEAD_DIM, int STORED>
inline __device__ void bring_all(const Attention& f, const Task<HEAD_DIM, STORED>& task, Stages p) {
  using P = Panels<HEAD_DIM>;
  using B = Bring<HEAD_DIM, STORED>;
  const int64_t block_head_bytes = BLOCK_TOKENS * static_cast<int64_t>(B::ROW_BYTES);
  const int64_t half_bytes = f.kv_heads * block_head_bytes;
  const char* key_heads = f.state + task.kv_head * block_head_bytes;
  Step before{};
  Span span = span_after(-1, task.positions, task.sequences, task.tokens, task.window);
  while (span.sequence >= 0) {
    const int* table = reinterpret_cast<const int*>(f.tables + span.sequence * f.tables_stride);
    for (int tile = span.low / KEYS; tile <= span.high / KEYS; tile++) {
#pragma unroll
      for (int part = 0; part < 2; part++) {  // keys, then values
        const Step step{(part ? task.values : task.keys) + p.stage * P::TILE,
                        task.raw + part * KEYS * B::ROW_BYTES,
                        &(part ? p.full_values : p.full_keys)[p.stage],
                        &(part ? p.empty_values : p.empty_keys)[p.stage],
                        p.parity,
                        tile * KEYS,
                        span.low,
                        span.high};
        // what is under way must not wait for who waits for it
        if (!B::IS_STAGED && before.full && !barrier_is_done(step.empty, step.parity ^ 1)) {
          B::template finish<0>(before);
          before.full = nullptr;
        }
        B::start(step, key_heads + part * half_bytes, 2 * half_bytes, table);
        if (before.full) B::template finish<1>(before);
        before = step;
      }
      p.advance();
    }
    if (span.is_alone) break;
    span = span_after(span.sequence, task.positions, task.sequences, task.tokens, task.window);
  }
  if (before.full) B::template finish<0>(before);
}

// The tiles of keys that a block goes over: those of each sequence in turn.
template <int HEAD_DIM, int STORED>
struct Walk {
  const Task<HEAD_DIM, STORED>& task;
  Span span;
  int tile;

  inline __device__ explicit Walk(const Task<HEAD_DIM, STORED>& of)
      : task(of), span(span_after(-1, of.positions, of.sequences, of.tokens, of.window)), tile(span.low / KEYS) {}

  // Goes to the next tile; false if there is none.
  inline __device__ bool next() {
    if (++tile <= span.high / KEYS) return true;
    if (span.is_alone) return false;
    span = span_after(span.sequence, task.positions, task.sequences, task.tokens, task.window);
    tile = span.low / KEYS;
    return span.sequence >= 0;
  }
};

// The two warpgroups take turns in giving work to the tensor cores: while one does its softmax, the other one multiplies.
inline __device__ void wait_for_turn(int part) { named_barrier_sync(2 + part, 256); }
inline __device__ void give_turn(int part) { named_barrier_arrive(3 - part, 256); }

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
  float mixed[HEAD_DIM / 2] = {}, scores[KEYS / 2];
  uint32_t weights[2 * KEY_BLOCKS];
  float keep[2];

  const auto multiply_keys = [&]() {
    barrier_wait(&p.full_keys[p.stage], p.parity);
    settle(scores);
    products_begin();
#pragma unroll
    for (int step = 0; step < HEAD_DIM / 16; step++) {
      const int panel = step / 4 * P::PANEL_BYTES, column = step % 4 * 2;
      multiply_add(scores, factor_at(task.queries + panel + part * 64 * 128) + column,
                   factor_at(task.keys + p.stage * P::TILE + panel) + column, step == 0, __half());
    }
    products_commit();
  };
  const auto multiply_values = [&](int stage, uint32_t parity) {
    barrier_wait(&p.full_values[stage], parity);
    products_begin();
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++)
      multiply_add_rows(mixed, weights + 4 * step, rows_at(task.values + stage * P::TILE + step * 16 * 128, P::PANEL_BYTES));
    products_commit();
  };
  const auto release = [&](uint64_t* empty) {
    if (threadIdx.x % 128 == 0) barrier_arrive(empty);
  };
  const auto weigh = [&](const Span& span, int first_key) {
    const bool sees_all =
        span.is_alone && first_key + KEYS - 1 <= span.nearest && (!WINDOWED || first_key > span.farthest - task.window);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int position = -1;
      if (!sees_all) {
        const int token = (first_row + 8 * half + lane / 4) / GROUP;
        if (token < task.tokens && task.sequences[token] == span.sequence) position = task.positions[token];
      }
      keep[half] = softmax.template fold<KEY_BLOCKS, WINDOWED, CAPPED>(scores, half, scale, limit, sees_all, position,
                                                                      first_key, task.window);
    }
  };

  // Scores of one tile are computed while the values of the one before are added and its weights are no more needed.
  Walk<HEAD_DIM, STORED> walk(task);
  if (TURNS && part == 1) give_turn(part);
  if (TURNS) wait_for_turn(part);
  multiply_keys();
  if (TURNS) give_turn(part);
  products_wait<0>();
  settle(scores);
  release(&p.empty_keys[p.stage]);
  weigh(walk.span, walk.tile * KEYS);
  pack_weights<KEY_BLOCKS>(weights, scores);
  settle(mixed);
  int stage = p.stage;
  uint32_t parity = p.parity;
  p.advance();
  while (walk.next()) {
    if (TURNS) wait_for_turn(part);
    multiply_keys();
    multiply_values(stage, parity);
    if (TURNS) give_turn(part);
    products_wait<1>();
    settle(scores);
    release(&p.empty_keys[p.stage]);
    weigh(walk.span, walk.tile * KEYS);
    products_wait<0>();
    settle(mixed);
    release(&p.empty_values[stage]);
    stage = p.stage, parity = p.parity;
    p.advance();
#pragma unroll
    for (int block = 0; block < DIM_BLOCKS; block++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        mixed[4 * block + 2 * half] *= keep[half];
        mixed[4 * block + 2 * half + 1] *= keep[half];
      }
    pack_weights<KEY_BLOCKS>(weights, scores);
    settle(mixed);
  }
  if (TURNS && part == 0) wait_for_turn(part);
  multiply_values(stage, parity);
  products_wait<0>();
  settle(mixed);
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
  const Task<HEAD_DIM, STORED> task{queries, queries + P::TILE, queries + (1 + STAGES) * P::TILE, queries + P::BYTES,
                                    positions, sequences, tokens, WINDOWED ? static_cast<int>(f.window) : 0, first_token, kv_head};
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
