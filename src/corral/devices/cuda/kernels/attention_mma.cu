// Attention of few rows on tensor cores, for caches of 16-bit floats and Q8_0.
//
// Parts and results are those of attention.cu. A warp takes whole blocks of the cache, 16 tokens at
// a time, and reads them straight into the registers of the matrix units: the order of dimensions
// (for q·K) and of tokens and dimensions (for p·V) inside a product is free, so that every lane can
// read 16 bytes side by side. Scores stand as tokens × heads, values as dimensions × heads: with 8
// heads nothing is wasted.
#include "include/attention.cuh"

namespace corral {

constexpr int kHeads = 8;    // columns of a product
constexpr int kTokens = 16;  // rows of a product

struct MultiplyF16 {
  static __device__ __forceinline__ void of(float (&d)[4], const uint32_t (&a)[4],
                                            const uint32_t (&b)[2]) {
    mma_f16(d, a, b);
  }
  static __device__ __forceinline__ uint32_t pair(float low, float high) {
    const __half2 both = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&both);
  }
};

struct MultiplyBF16 {
  static __device__ __forceinline__ void of(float (&d)[4], const uint32_t (&a)[4],
                                            const uint32_t (&b)[2]) {
    mma_bf16(d, a, b);
  }
  static __device__ __forceinline__ uint32_t pair(float low, float high) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&both);
  }
};

// Eight elements of a row as 16-bit floats.
struct TilesF16 {
  using Cache = CacheF16;
  using Multiply = MultiplyF16;
  static __device__ __forceinline__ uint4 load(const unsigned char* row, int dim) {
    return Cache::load(row, dim);
  }
};

struct TilesBF16 {
  using Cache = CacheBF16;
  using Multiply = MultiplyBF16;
  static __device__ __forceinline__ uint4 load(const unsigned char* row, int dim) {
    return Cache::load(row, dim);
  }
};

struct TilesQ8_0 {
  using Cache = CacheQ8_0;
  using Multiply = MultiplyF16;
  static __device__ __forceinline__ uint4 load(const unsigned char* row, int dim) {
    float v[8];
    Cache::floats(Cache::load(row, dim), v);
    return make_uint4(Multiply::pair(v[0], v[1]), Multiply::pair(v[2], v[3]),
                      Multiply::pair(v[4], v[5]), Multiply::pair(v[6], v[7]));
  }
};

__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// The greatest over the lanes that have the same heads.
__device__ __forceinline__ float most_of_tokens(float v) {
#pragma unroll
  for (int step = 4; step < kWarp; step *= 2) v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, step));
  return v;
}

__device__ __forceinline__ float sum_of_tokens(float v) {
#pragma unroll
  for (int step = 4; step < kWarp; step *= 2) v += __shfl_xor_sync(kAllLanes, v, step);
  return v;
}

// Keys and values of 16 tokens of a block of the cache in the registers of a warp.
template <class Tiles, int HeadDim, bool IsWindowed>
struct WarpTile {
  static constexpr int kEights = HeadDim / 8;
  static constexpr int kKeySteps = (kEights + 3) / 4;    // 32 dimensions each
  static constexpr int kValueSteps = (kEights + 7) / 8;  // 64 dimensions each
  static constexpr int64_t kRowBytes = Tiles::Cache::row_bytes(HeadDim);

  // Whether values come along with keys, or when scores are known: registers for large heads are
  // few.
  static constexpr bool kIsEarly = HeadDim <= 128;

  uint4 k[kKeySteps][2], v[kValueSteps][4];
  const unsigned char* mixed;
  int seen_from, seen_to;  // tokens of these that the row sees

  __device__ __forceinline__ bool is_seen(int token) const {
    return token < seen_to && (!IsWindowed || token >= seen_from);
  }

  // Tokens from `at` on, of which the row sees first … end − 1; the others are not read.
  __device__ __forceinline__ void load(const unsigned char* keys, const unsigned char* values,
                                       int at, int first, int end) {
    const int g = lane_id() / 4, t = lane_id() % 4;
    mixed = values, seen_from = first - at, seen_to = end - at;
#pragma unroll
    for (int j = 0; j < kKeySteps; j++) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        k[j][i] = make_uint4(0, 0, 0, 0);
        if (t + 4 * j < kEights && is_seen(g + 8 * i)) {
          k[j][i] = Tiles::load(keys + (g + 8 * i) * kRowBytes, 8 * (t + 4 * j));
        }
      }
    }
    if constexpr (kIsEarly) load_values();
  }

  __device__ __forceinline__ void load_values() {
    const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int j = 0; j < kValueSteps; j++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int token = 2 * t + i / 2 * 8 + i % 2;
        v[j][i] = make_uint4(0, 0, 0, 0);
        if (g + 8 * j < kEights && is_seen(token)) {
          v[j][i] = Tiles::load(mixed + token * kRowBytes, 8 * (g + 8 * j));
        }
      }
    }
  }
};

template <class Tiles, int HeadDim, int Heads, bool IsWindowed, bool IsCapped>
struct WarpAttention {
  using Multiply = typename Tiles::Multiply;
  using Tile = WarpTile<Tiles, HeadDim, IsWindowed>;
  static constexpr int kEights = Tile::kEights;
  static constexpr int kKeySteps = Tile::kKeySteps;
  static constexpr int kValueSteps = Tile::kValueSteps;

  uint32_t q[2 * kKeySteps][2];
  float values[4 * kValueSteps][4];
  Seen seen[2];  // of heads 2t and 2t + 1; sums are of this lane's tokens only
  int g, t;

  __device__ __forceinline__ void begin() {
    g = lane_id() / 4, t = lane_id() % 4;
    seen[0] = seen[1] = {-infinity(), 0.0f};
#pragma unroll
    for (int m = 0; m < 4 * kValueSteps; m++) {
#pragma unroll
      for (int e = 0; e < 4; e++) values[m][e] = 0.0f;
    }
  }

  __device__ __forceinline__ void load_queries(const AttentionFields& f, int64_t row,
                                               int64_t first_head) {
    const float* from = row_at(f.q, f.q_stride, row) + (first_head + g) * HeadDim;
    const float factor = IsCapped ? f.scale.value : f.scale.value * kLog2E;
#pragma unroll
    for (int j = 0; j < kKeySteps; j++) {
      const int eight = t + 4 * j;
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (g < Heads && eight < kEights) v = load4<true>(from + 8 * eight + 4 * i);
        v = scaled(v, factor);
        q[2 * j + i][0] = Multiply::pair(v.x, v.y);
        q[2 * j + i][1] = Multiply::pair(v.z, v.w);
      }
    }
  }

  // Takes in the tokens of a tile.
  __device__ __forceinline__ void add(const AttentionFields& f, Tile& tile) {
    float scores[4] = {}, others[4] = {};  // token g: heads 2t, 2t + 1; token g + 8: the same
#pragma unroll
    for (int s = 0; s < 2 * kKeySteps; s++) {
      const uint4 &low = tile.k[s / 2][0], &high = tile.k[s / 2][1];
      const uint32_t a[4] = {word_of(low, s % 2 * 2), word_of(high, s % 2 * 2),
                             word_of(low, s % 2 * 2 + 1), word_of(high, s % 2 * 2 + 1)};
      Multiply::of(s % 2 ? others : scores, a, q[s]);  // two sums, that none waits for the other
    }
#pragma unroll
    for (int i = 0; i < 4; i++) scores[i] += others[i];
    uint32_t weights[2];
    weigh(f, scores, tile.is_seen(g), tile.is_seen(g + 8), weights);
    if constexpr (!Tile::kIsEarly) tile.load_values();
#pragma unroll
    for (int m = 0; m < 4 * kValueSteps; m++) {
      const uint4(&rows)[4] = tile.v[m / 4];
      const uint32_t one = word_of(rows[0], m % 4), two = word_of(rows[1], m % 4);
      const uint32_t three = word_of(rows[2], m % 4), four = word_of(rows[3], m % 4);
      const uint32_t a[4] = {__byte_perm(one, two, 0x5410), __byte_perm(one, two, 0x7632),
                             __byte_perm(three, four, 0x5410), __byte_perm(three, four, 0x7632)};
      Multiply::of(values[m], a, weights);
    }
  }

  // Turns scores into weights as the product with values wants them: heads × tokens.
  __device__ __forceinline__ void weigh(const AttentionFields& f, float (&scores)[4], bool low,
                                        bool high, uint32_t (&weights)[2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
      for (int i = h; i < 4; i += 2) {
        if constexpr (IsCapped) {
          scores[i] = f.softcap.value * tanhf(scores[i] / f.softcap.value) * kLog2E;
        }
        if (!(i < 2 ? low : high)) scores[i] = -infinity();
      }
      const float now = most_of_tokens(fmaxf(scores[h], scores[h + 2]));
      const float most = fmaxf(seen[h].most, now);
      const float shrink = weight_of(seen[h].most, most);
      scores[h] = weight_of(scores[h], most);
      scores[h + 2] = weight_of(scores[h + 2], most);
      seen[h] = {most, seen[h].sum * shrink + (scores[h] + scores[h + 2])};
#pragma unroll
      for (int m = 0; m < 4 * kValueSteps; m++) {
        values[m][h] *= shrink;
        values[m][h + 2] *= shrink;
      }
    }
    weights[0] = transpose_matrix(Multiply::pair(scores[0], scores[1]));
    weights[1] = transpose_matrix(Multiply::pair(scores[2], scores[3]));
  }

  // Puts what all tokens gave where the block folds its warps.
  template <class Gathered>
  __device__ __forceinline__ void leave(Gathered& gathered) const {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int head = 2 * t + h;
      const float sum = sum_of_tokens(seen[h].sum);
      if (head >= Heads) continue;
      if (g == 0) gathered.seen[warp_id()][head] = {seen[h].most, sum};
#pragma unroll
      for (int m = 0; m < 4 * kValueSteps; m += 2) {
        const int eight = g + m / 4 * 8;
        if (eight >= kEights) continue;
        gathered.values[warp_id()][head][gathered.place(head, 2 * eight + m % 4 / 2)] =
            make_float4(values[m][h], values[m][h + 2], values[m + 1][h], values[m + 1][h + 2]);
      }
    }
  }
};

// The tiles of one warp: every `Warps`th of those that hold tokens first … end − 1.
template <class Tile, int Warps>
struct Tiling {
  static constexpr int kSteps = kBlockTokens / kTokens;  // of a block of the cache
  static constexpr int64_t kHeadBytes = kBlockTokens * Tile::kRowBytes;

  const AttentionFields& f;
  const int32_t* table;
  int64_t kv_head;
  int first, end, steps_end, step;

  __device__ __forceinline__ bool is_left() const { return step < steps_end; }
  // The block of the cache that has the tile so many tiles ahead.
  __device__ __forceinline__ int32_t block(int ahead) const {
    const int at = step + ahead * Warps;
    return at < steps_end ? table[at / kSteps] : 0;
  }
  __device__ __forceinline__ void load(Tile& tile, int32_t block) const {
    const int64_t head = static_cast<int64_t>(block) * 2 * f.kv_heads + kv_head;
    const unsigned char* keys =
        f.state + head * kHeadBytes + step % kSteps * kTokens * Tile::kRowBytes;
    tile.load(keys, keys + f.kv_heads * kHeadBytes, step * kTokens, first, end);
  }
};

// With many warps the tokens of a short part are taken in side by side; with few, several blocks
// fit a multiprocessor. `IsAhead`: the next tile is on its way while one is taken in, which needs
// registers for both. Before it waits, a warp reads of the cache what is older than this evaluation.
template <class Tiles, int HeadDim, int Heads, bool IsWindowed, bool IsCapped, int Warps,
          bool IsAhead>
__global__ void __launch_bounds__(kWarp * Warps)
    attention_mma(__grid_constant__ const AttentionFields f) {
  using Warp = WarpAttention<Tiles, HeadDim, Heads, IsWindowed, IsCapped>;
  using Tile = typename Warp::Tile;
  static_assert(Heads <= kHeads, "heads are the columns of one product");
  __shared__ Gathered<HeadDim, Heads, Warps> gathered;
  launch_dependents();
  const int64_t row = blockIdx.z, count = *f.count;
  const int position = f.positions[row];
  const int32_t sequence = f.sequences[row];
  const Parts parts = Parts::of<IsWindowed>(position, f.window, f.splits);
  const int split = blockIdx.y;
  if (row >= count || split >= parts.count) {
    wait_for_previous();
    return;
  }
  const int64_t first_head = static_cast<int64_t>(blockIdx.x) * Heads;
  const int first = parts.first_of(split), end = parts.end_of(split);
  const int64_t kv_head = first_head / (f.heads / f.kv_heads);
  const int32_t* table = row_at(f.tables, f.tables_stride, sequence);
  Tiling<Tile, Warps> tiles = {f,   table, kv_head, first,
                               end, (end + kTokens - 1) / kTokens, first / kTokens + warp_id()};
  // What earlier evaluations wrote is there: the stream has them end before this one begins. This
  // one writes a token a row, and no more than `row` rows before this one are of its sequence.
  const int old_steps = (position - static_cast<int>(row)) / kTokens;
  Warp warp;
  warp.begin();
  Tile tile, other;
  int32_t block = tiles.block(0);
  const bool is_early = Tile::kIsEarly && tiles.is_left() && tiles.step < old_steps;
  if (is_early) tiles.load(tile, block);
  wait_for_previous();
  warp.load_queries(f, row, first_head);
  if constexpr (IsAhead) {
    if (tiles.is_left() && !is_early) tiles.load(tile, block);
    // Takes in one tile while the other is on its way.
    const auto turn = [&](Tile& now, Tile& next) {
      block = tiles.block(1);
      tiles.step += Warps;
      if (tiles.is_left()) tiles.load(next, block);
      warp.add(f, now);
      return tiles.is_left();
    };
    if (tiles.is_left()) {
      while (turn(tile, other) && turn(other, tile)) {
      }
    }
  } else {
    for (bool is_here = is_early; tiles.is_left(); is_here = false) {
      if (!is_here) tiles.load(tile, block);
      block = tiles.block(1);
      warp.add(f, tile);
      tiles.step += Warps;
    }
  }
  warp.leave(gathered);
  __syncthreads();
  gathered.store(f, row, first_head, parts, split);
  fold_parts<HeadDim, Heads, Warps>(f, row, parts);
}

}  // namespace corral
