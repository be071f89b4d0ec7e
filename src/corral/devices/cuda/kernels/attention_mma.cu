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

template <class Tiles, int HeadDim, int Heads, bool IsWindowed, bool IsCapped>
struct WarpAttention {
  using Multiply = typename Tiles::Multiply;
  static constexpr int kEights = HeadDim / 8;
  static constexpr int kKeySteps = (kEights + 3) / 4;    // 32 dimensions each
  static constexpr int kValueSteps = (kEights + 7) / 8;  // 64 dimensions each
  // Whether values are on their way while scores are computed: registers for large heads are few.
  static constexpr bool kIsEarly = HeadDim <= 128;
  static constexpr int64_t kRowBytes = Tiles::Cache::row_bytes(HeadDim);

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
      for (int i = 0; i < 4; i++) {
        float2 v = make_float2(0.0f, 0.0f);
        if (g < Heads && eight < kEights) {
          v = make_float2(from[8 * eight + 2 * i], from[8 * eight + 2 * i + 1]);
        }
        q[2 * j + i / 2][i % 2] = Multiply::pair(v.x * factor, v.y * factor);
      }
    }
  }

  template <class IsSeen>
  __device__ __forceinline__ void load_values(const unsigned char* mixed, IsSeen is_seen,
                                              uint4 (&v)[kValueSteps][4]) {
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

  // Takes in 16 tokens of a block of the cache; those outside of first … end − 1 are not read.
  // `meanwhile` is called while they are on their way.
  template <class Meanwhile>
  __device__ __forceinline__ void add(const AttentionFields& f, const unsigned char* keys,
                                      const unsigned char* mixed, int at, int first, int end,
                                      Meanwhile meanwhile) {
    const auto is_seen = [&](int token) {
      return at + token < end && (!IsWindowed || at + token >= first);
    };
    uint4 k[kKeySteps][2], v[kValueSteps][4];
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
    if constexpr (kIsEarly) load_values(mixed, is_seen, v);
    meanwhile();
    float scores[4] = {}, others[4] = {};  // token g: heads 2t, 2t + 1; token g + 8: the same
#pragma unroll
    for (int s = 0; s < 2 * kKeySteps; s++) {
      const uint4 &low = k[s / 2][0], &high = k[s / 2][1];
      const uint32_t a[4] = {word_of(low, s % 2 * 2), word_of(high, s % 2 * 2),
                             word_of(low, s % 2 * 2 + 1), word_of(high, s % 2 * 2 + 1)};
      Multiply::of(s % 2 ? others : scores, a, q[s]);  // two sums, that none waits for the other
    }
#pragma unroll
    for (int i = 0; i < 4; i++) scores[i] += others[i];
    uint32_t weights[2];
    weigh(f, scores, is_seen(g), is_seen(g + 8), weights);
    if constexpr (!kIsEarly) load_values(mixed, is_seen, v);
#pragma unroll
    for (int m = 0; m < 4 * kValueSteps; m++) {
      const uint4(&rows)[4] = v[m / 4];
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
};

// With many warps the tokens of a short part are taken in side by side; with few, several blocks
// fit a multiprocessor.
template <class Tiles, int HeadDim, int Heads, bool IsWindowed, bool IsCapped, int Warps>
__global__ void __launch_bounds__(kWarp * Warps)
    attention_mma(__grid_constant__ const AttentionFields f) {
  using Warp = WarpAttention<Tiles, HeadDim, Heads, IsWindowed, IsCapped>;
  static_assert(Heads <= kHeads, "heads are the columns of one product");
  constexpr int kSteps = kBlockTokens / kTokens;  // of a block of the cache
  __shared__ Seen all_seen[Warps][kHeads];
  __shared__ float all_values[Warps][kHeads][HeadDim];
  launch_dependents();
  const int64_t row = blockIdx.z;
  const bool is_inside = row < *f.count;
  const Parts parts = Parts::of<IsWindowed>(f.positions[row], f.window, f.splits);
  const int split = blockIdx.y;
  if (!is_inside || split >= parts.count) {
    wait_for_previous();
    return;
  }
  const int first = parts.first_of(split), end = parts.end_of(split);
  const int64_t first_head = static_cast<int64_t>(blockIdx.x) * Heads;
  const int64_t kv_head = first_head / (f.heads / f.kv_heads);
  const int32_t* table = row_at(f.tables, f.tables_stride, f.sequences[row]);
  const int64_t head_bytes = kBlockTokens * Warp::kRowBytes;

  const int steps_end = (end + kTokens - 1) / kTokens;
  int step = first / kTokens + warp_id(), number = step < steps_end ? table[step / kSteps] : 0;
  wait_for_previous();
  Warp warp;
  warp.begin();
  const auto add = [&](auto meanwhile) {
    const int64_t head = static_cast<int64_t>(number) * 2 * f.kv_heads + kv_head;
    const unsigned char* keys =
        f.state + head * head_bytes + step % kSteps * kTokens * Warp::kRowBytes;
    const unsigned char* mixed = keys + f.kv_heads * head_bytes;
    if (step + Warps < steps_end) number = table[(step + Warps) / kSteps];
    warp.add(f, keys, mixed, step * kTokens, first, end, meanwhile);
    step += Warps;
  };
  if (step < steps_end) add([&] { warp.load_queries(f, row, first_head); });
  while (step < steps_end) add([] {});

  const int g = warp.g, t = warp.t;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const float sum = sum_of_tokens(warp.seen[h].sum);
    if (g == 0) all_seen[warp_id()][2 * t + h] = {warp.seen[h].most, sum};
#pragma unroll
    for (int m = 0; m < 4 * Warp::kValueSteps; m++) {
      const int eight = g + m / 4 * 8, d = 8 * eight + m % 4 * 2;
      if (eight >= Warp::kEights) continue;
      all_values[warp_id()][2 * t + h][d] = warp.values[m][h];
      all_values[warp_id()][2 * t + h][d + 1] = warp.values[m][h + 2];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < Heads * HeadDim; i += Warps * kWarp) {
    const int h = i / HeadDim, d = i % HeadDim;
    Seen whole = {-infinity(), 0.0f};
    float value = 0.0f;
#pragma unroll
    for (int w = 0; w < Warps; w++) whole.most = fmaxf(whole.most, all_seen[w][h].most);
#pragma unroll
    for (int w = 0; w < Warps; w++) {
      const float weight = weight_of(all_seen[w][h].most, whole.most);
      whole.sum += weight * all_seen[w][h].sum;
      value += weight * all_values[w][h][d];
    }
    store_value<HeadDim>(f, row, first_head + h, parts, split, d, whole, value);
  }
  fold_parts<HeadDim, Heads, Warps>(f, row, parts);
}

}  // namespace corral
