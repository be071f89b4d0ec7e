// Attention of prefill on sm_90a: wgmma, with a warpgroup of its own that brings keys and values.
//
// What is computed, and in which order, is as in attention_tiles.cu with tiles of kKeys. Two
// warpgroups have 64 of a block's 128 rows each. The third brings tiles ahead of them, whatever the
// cache stores, as F16 in panels of 64 columns, swizzled as tiles.cuh describes.
#include "include/prefill_attention.cuh"
#include "include/ptx_hopper.cuh"

namespace corral {

constexpr int kWgmmaThreads = 384;
constexpr int kRows = 128;
constexpr int kKeys = 128;
constexpr int kStages = 2;

template <int HeadDim>
struct Panels {
  static constexpr int kChunks = HeadDim / kChunk;
  static constexpr int kPanelBytes = kKeys * 128;  // 64 columns of all rows; as many rows as keys
  static constexpr int kTile = HeadDim / 64 * kPanelBytes;
  static constexpr int kBytes = (1 + 2 * kStages) * kTile;

  static __device__ __forceinline__ int at(int row, int chunk) {
    return chunk / 8 * kPanelBytes + row * 128 + ((chunk ^ row) & 7) * 16;
  }
};

#if CORRAL_HAS_WGMMA

struct Stages {
  uint64_t* full_keys;
  uint64_t* empty_keys;
  uint64_t* full_values;
  uint64_t* empty_values;
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// What a block works on.
template <int HeadDim, int Stored>
struct Task {
  using P = Panels<HeadDim>;
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
template <int HeadDim, int Stored>
struct Bring {
  using P = Panels<HeadDim>;
  static constexpr int kRowBytes = bytes_of<Stored>(HeadDim);
  static constexpr int kRowsAtOnce =
      128 / P::kChunks;  // a multiple of 8, so that all of a thread's rows swizzle alike
  static constexpr bool kIsStaged = Stored == kStoredQ80;

  static __device__ __forceinline__ int row() { return threadIdx.x / P::kChunks; }
  static __device__ __forceinline__ int chunk() { return threadIdx.x % P::kChunks; }
  static __device__ __forceinline__ bool is_present(const Step& s, int key) {
    return s.first + key >= s.low && s.first + key <= s.high;
  }

  // Starts the copies of a tile; F32 is converted on the way, Q8_0 comes to a place of its own.
  static __device__ __forceinline__ void start(const Step& s, const char* heads,
                                               int64_t block_bytes, const int* table) {
    if (!kIsStaged) barrier_wait(s.empty, s.parity ^ 1);
    unsigned char* to = s.to + P::at(row(), chunk());
#pragma unroll
    for (int part = 0; part < kKeys / kBlockTokens; part++) {
      const int first = s.first + part * kBlockTokens;
      const bool is_seen = first <= s.high && first + kBlockTokens > s.low;
      const char* block = heads + (is_seen ? table[first / kBlockTokens] : 0) * block_bytes;
      if (kIsStaged) {
        unsigned char* raw = s.raw + part * kBlockTokens * kRowBytes;
        if (is_seen)
          for (int i = threadIdx.x * 16; i < kBlockTokens * kRowBytes; i += 128 * 16)
            cp_async_16(raw + i, block + i);
        continue;
      }
      block += row() * kRowBytes + chunk() * (Stored == kStoredF32 ? 32 : 16);
#pragma unroll
      for (int key = 0; key < kBlockTokens; key += kRowsAtOnce) {
        const bool is_here = is_present(s, part * kBlockTokens + key + row());
        unsigned char* at = to + (part * kBlockTokens + key) * 128;
        if (Stored == kStoredF32)
          *reinterpret_cast<uint4*>(at) =
              is_here ? halves_of<kStoredF32>(block + key * kRowBytes, 0) : make_uint4(0, 0, 0, 0);
        else
          cp_async_16_or_zero(at, block + key * kRowBytes, is_here);
      }
    }
    cp_async_commit();
  }

  // Makes of what has come what wgmma reads, and says so. All but the Pending last copies have
  // come.
  template <int Pending>
  static __device__ __forceinline__ void finish(const Step& s) {
    cp_async_wait<Pending>();
    unsigned char* to = s.to + P::at(row(), chunk());
    if (kIsStaged) {
      named_barrier_sync(1, 128);  // the copies of all threads
      barrier_wait(s.empty, s.parity ^ 1);
    }
    if (kIsStaged || Stored == kStoredBf16) {
#pragma unroll 4
      for (int key = 0; key < kKeys; key += kRowsAtOnce) {
        uint4* at = reinterpret_cast<uint4*>(to + key * 128);
        if (Stored == kStoredBf16)
          *at = halves_of_bf16(*at);
        else
          *at = is_present(s, key + row())
                    ? halves_of<kStoredQ80>(
                          reinterpret_cast<const char*>(s.raw) + (key + row()) * kRowBytes, chunk())
                    : make_uint4(0, 0, 0, 0);
      }
    }
    async_fence();
    barrier_arrive(s.full);
    if (kIsStaged) named_barrier_sync(1, 128);  // the raw bytes are read
  }
};

template <int HeadDim, int Stored>
__device__ __forceinline__ void bring_all(const Attention& f, const Task<HeadDim, Stored>& task,
                                          Stages p) {
  using P = Panels<HeadDim>;
  using B = Bring<HeadDim, Stored>;
  const int64_t block_head_bytes = kBlockTokens * static_cast<int64_t>(B::kRowBytes);
  const int64_t half_bytes = f.kv_heads * block_head_bytes;
  const char* key_heads = f.state + task.kv_head * block_head_bytes;
  Step before{};
  Span span = span_after(-1, task.positions, task.sequences, task.tokens, task.window);
  while (span.sequence >= 0) {
    const int* table = reinterpret_cast<const int*>(f.tables + span.sequence * f.tables_stride);
    for (int tile = span.low / kKeys; tile <= span.high / kKeys; tile++) {
#pragma unroll
      for (int part = 0; part < 2; part++) {  // keys, then values
        const Step step{(part ? task.values : task.keys) + p.stage * P::kTile,
                        task.raw + part * kKeys * B::kRowBytes,
                        &(part ? p.full_values : p.full_keys)[p.stage],
                        &(part ? p.empty_values : p.empty_keys)[p.stage],
                        p.parity,
                        tile * kKeys,
                        span.low,
                        span.high};
        // what is under way must not wait for who waits for it
        if (!B::kIsStaged && before.full && !barrier_is_done(step.empty, step.parity ^ 1)) {
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
template <int HeadDim, int Stored>
struct Walk {
  const Task<HeadDim, Stored>& task;
  Span span;
  int tile;

  __device__ __forceinline__ explicit Walk(const Task<HeadDim, Stored>& of)
      : task(of),
        span(span_after(-1, of.positions, of.sequences, of.tokens, of.window)),
        tile(span.low / kKeys) {}

  // Goes to the next tile; false if there is none.
  __device__ __forceinline__ bool next() {
    if (++tile <= span.high / kKeys) return true;
    if (span.is_alone) return false;
    span = span_after(span.sequence, task.positions, task.sequences, task.tokens, task.window);
    tile = span.low / kKeys;
    return span.sequence >= 0;
  }
};

template <int HeadDim, int Group, int Stored, bool Windowed, bool Capped, int To>
__device__ __forceinline__ void attend(const Attention& f, const Task<HeadDim, Stored>& task,
                                       Stages p) {
  using P = Panels<HeadDim>;
  constexpr int kKeyBlocks = kKeys / 8, kDimBlocks = HeadDim / 8;
  const int part = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
  const int first_row = part * 64 + threadIdx.x / 32 % 4 * 16;
  const float scale = Capped ? f.scale.value / f.softcap.value : f.scale.value * kLog2E;
  const float limit = Capped ? f.softcap.value * kLog2E : 0.0f;
  Softmax softmax;
  softmax.reset();
  float mixed[HeadDim / 2] = {}, scores[kKeys / 2];
  uint32_t weights[2 * kKeyBlocks];
  float keep[2];

  const auto multiply_keys = [&]() {
    barrier_wait(&p.full_keys[p.stage], p.parity);
    settle(scores);
    products_begin();
#pragma unroll
    for (int step = 0; step < HeadDim / 16; step++) {
      const int panel = step / 4 * P::kPanelBytes, column = step % 4 * 2;
      multiply_add(scores, factor_at(task.queries + panel + part * 64 * 128) + column,
                   factor_at(task.keys + p.stage * P::kTile + panel) + column, step == 0, __half());
    }
    products_commit();
  };
  const auto multiply_values = [&](int stage, uint32_t parity) {
    barrier_wait(&p.full_values[stage], parity);
    products_begin();
#pragma unroll
    for (int step = 0; step < kKeys / 16; step++)
      multiply_add_rows(mixed, weights + 4 * step,
                        rows_at(task.values + stage * P::kTile + step * 16 * 128, P::kPanelBytes));
    products_commit();
  };
  const auto release = [&](uint64_t* empty) {
    if (threadIdx.x % 128 == 0) barrier_arrive(empty);
  };
  const auto weigh = [&](const Span& span, int first_key) {
    const bool sees_all = span.is_alone && first_key + kKeys - 1 <= span.nearest &&
                          (!Windowed || first_key > span.farthest - task.window);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int position = -1;
      if (!sees_all) {
        const int token = (first_row + 8 * half + lane / 4) / Group;
        if (token < task.tokens && task.sequences[token] == span.sequence)
          position = task.positions[token];
      }
      keep[half] = softmax.template fold<kKeyBlocks, Windowed, Capped>(
          scores, half, scale, limit, sees_all, position, first_key, task.window);
    }
  };

  // Scores of one tile are computed while the values of the one before are added and its weights
  // are no more needed.
  Walk<HeadDim, Stored> walk(task);
  multiply_keys();
  products_wait<0>();
  settle(scores);
  release(&p.empty_keys[p.stage]);
  weigh(walk.span, walk.tile * kKeys);
  pack_weights<kKeyBlocks>(weights, scores);
  settle(mixed);
  int stage = p.stage;
  uint32_t parity = p.parity;
  p.advance();
  while (walk.next()) {
    multiply_keys();
    multiply_values(stage, parity);
    products_wait<1>();
    settle(scores);
    release(&p.empty_keys[p.stage]);
    weigh(walk.span, walk.tile * kKeys);
    products_wait<0>();
    settle(mixed);
    release(&p.empty_values[stage]);
    stage = p.stage, parity = p.parity;
    p.advance();
#pragma unroll
    for (int block = 0; block < kDimBlocks; block++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        mixed[4 * block + 2 * half] *= keep[half];
        mixed[4 * block + 2 * half + 1] *= keep[half];
      }
    pack_weights<kKeyBlocks>(weights, scores);
    settle(mixed);
  }
  multiply_values(stage, parity);
  products_wait<0>();
  settle(mixed);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const float inverse = softmax.inverse(half);
    const int row = first_row + 8 * half + lane / 4, token = row / Group;
    if (token >= task.tokens) continue;
    const int64_t first_column = (task.kv_head * Group + row % Group) * HeadDim + lane % 4 * 2;
#pragma unroll
    for (int block = 0; block < kDimBlocks; block++)
      store_mixed<To>(f, task.first_token + token, first_column + 8 * block,
                      mixed[4 * block + 2 * half] * inverse,
                      mixed[4 * block + 2 * half + 1] * inverse);
  }
}

#endif

template <int HeadDim, int Group, int Stored, bool Windowed, bool Capped, int To>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    attention_wgmma(const __grid_constant__ Attention f) {
#if CORRAL_HAS_WGMMA
  using P = Panels<HeadDim>;
  constexpr int kTokens = kRows / Group;  // rows of the batch; Group heads of each stand together
  __shared__ int positions[kTokens], sequences[kTokens];
  __shared__ uint64_t barriers[4 * kStages];
  launch_dependents();
  unsigned char* queries = dynamic_shared();
  queries += (1024 - shared_address(queries) % 1024) % 1024;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; i++) {
      barrier_init(&barriers[i], 128);
      barrier_init(&barriers[kStages + i], 2);
      barrier_init(&barriers[2 * kStages + i], 128);
      barrier_init(&barriers[3 * kStages + i], 2);
    }
    barrier_init_fence();
  }
  wait_for_previous();
  const int64_t count = *f.count, tiles = (count + kTokens - 1) / kTokens;
  if (blockIdx.y >= tiles) return;
  const int64_t first_token = (tiles - 1 - blockIdx.y) * kTokens;  // the longest first
  const int tokens =
      count - first_token < kTokens ? static_cast<int>(count - first_token) : kTokens;
  const int64_t kv_head = blockIdx.x;
  for (int i = threadIdx.x; i < tokens; i += kWgmmaThreads) {
    positions[i] = f.positions[first_token + i];
    sequences[i] = f.sequences[first_token + i];
  }
#pragma unroll 4
  for (int i = threadIdx.x; i < kRows * P::kChunks; i += kWgmmaThreads) {
    const int row = i / P::kChunks, chunk = i % P::kChunks, token = row / Group;
    const uint4 q = token < tokens ? query_chunk<HeadDim>(f, first_token + token,
                                                          kv_head * Group + row % Group, chunk)
                                   : make_uint4(0, 0, 0, 0);
    *reinterpret_cast<uint4*>(queries + P::at(row, chunk)) = q;
  }
  async_fence();
  __syncthreads();
  const Task<HeadDim, Stored> task{queries,
                                   queries + P::kTile,
                                   queries + (1 + kStages) * P::kTile,
                                   queries + P::kBytes,
                                   positions,
                                   sequences,
                                   tokens,
                                   Windowed ? static_cast<int>(f.window) : 0,
                                   first_token,
                                   kv_head};
  const Stages stages{barriers, barriers + kStages, barriers + 2 * kStages, barriers + 3 * kStages};
  if (threadIdx.x < 128) {
    shrink_registers<72>();
    bring_all(f, task, stages);
  } else {
    grow_registers<216>();
    attend<HeadDim, Group, Stored, Windowed, Capped, To>(f, task, stages);
  }
#endif
}

}  // namespace corral
