// Packed weights to rows of 16-bit elements, plain or in tiles, for the products of prefill.
//
// value = scale × (code − zero) + offset, rounded to BF16. F16 and BF16 weights stay what they are. F32 weights become
// three matrices side by side, [high, high, low] with high + low = value to 16 bits, which meet rows of [high, low, high]:
// one product of three times the columns gives all terms that matter.
#include "include/ptx.cuh"
#include "include/tiles.cuh"

namespace corral {

struct Dequantize {
  const char* weights;
  char* out;
  int64_t rows;
  int64_t columns;
  int64_t stride;     // of the target: see Target
  int64_t first_row;  // of the target …
  int64_t spread;     // … where runs of 8 rows lie 8 · spread apart: two matrices can be interleaved
};

enum Scales { HALF = 0, SIGNED = 1, UNSIGNED = 2, EXPONENT = 3 };
enum Values { CODES = 0, IQ4 = 1, MXFP4 = 2 };

constexpr int INTERLEAVE = 16;
constexpr int DEQUANTIZE_THREADS = 256;
constexpr int BLOCK_COLUMNS = 256;

inline __device__ int64_t target_row(const Dequantize& f, int64_t row) {
  return f.first_row + row / 8 * 8 * f.spread + row % 8;
}

inline __device__ unsigned word_at(const char* p) { return __ldg(reinterpret_cast<const unsigned*>(p)); }

inline __device__ float half_at(const char* p) {
  return __half2float(__ushort_as_half(__ldg(reinterpret_cast<const unsigned short*>(p))));
}

// The layout of one group, as quant/packed.py describes it.
template <int BITS, int SCALES, int SCALE_COLUMNS, bool HAS_OFFSET, int ZERO, int VALUES>
struct Layout {
  static constexpr bool HAS_SPANS = SCALES == SIGNED || SCALES == UNSIGNED;
  static constexpr int PARTS = 32 / SCALE_COLUMNS;
  static constexpr int FIELD_BYTES = (SCALES == HALF ? 2 : PARTS) * INTERLEAVE;
  static constexpr int CODES_AT = FIELD_BYTES * (HAS_OFFSET ? 2 : 1);
  static constexpr int GROUP_BYTES = CODES_AT + 4 * BITS * INTERLEAVE;
  static constexpr int HEAD_BYTES = HAS_SPANS ? INTERLEAVE * (HAS_OFFSET ? 4 : 2) : 0;

  static inline __device__ int64_t group_at(int64_t group) {
    return HAS_SPANS ? (group / 8 + 1) * HEAD_BYTES + group * GROUP_BYTES : group * GROUP_BYTES;
  }

  static inline __device__ float small(const char* field, int row, int chunk) {
    const char* at = field + chunk * CHUNK / SCALE_COLUMNS * INTERLEAVE + row;
    const unsigned char byte = __ldg(reinterpret_cast<const unsigned char*>(at));
    return SCALES == SIGNED ? static_cast<float>(static_cast<signed char>(byte)) : static_cast<float>(byte);
  }

  static inline __device__ float scale(const char* head, const char* group, int row, int chunk) {
    if (SCALES == HALF) return half_at(group + 2 * row);
    if (SCALES == EXPONENT) {  // 2^(e − 128): its lowest two are subnormal
      const int e = __ldg(reinterpret_cast<const unsigned char*>(group + row));
      return e > 1 ? __uint_as_float(static_cast<unsigned>(e - 1) << 23) : __uint_as_float(0x200000u << e);
    }
    return half_at(head + 2 * row) * small(group, row, chunk);
  }

  static inline __device__ float offset(const char* head, const char* group, int row, int chunk) {
    if (!HAS_OFFSET) return 0.0f;
    if (SCALES == HALF) return half_at(group + FIELD_BYTES + 2 * row);
    const float small_offset = __ldg(reinterpret_cast<const unsigned char*>(
        group + FIELD_BYTES + chunk * CHUNK / SCALE_COLUMNS * INTERLEAVE + row));
    return half_at(head + 2 * INTERLEAVE + 2 * row) * small_offset;
  }

  // The codes of 8 columns of a row, one a byte.
  static inline __device__ void codes(unsigned (&out)[2], const char* codes, int row, int chunk) {
    const char* at = codes + 4 * row;
    if (BITS == 8) {
      out[0] = word_at(at + 2 * chunk * 4 * INTERLEAVE);
      out[1] = word_at(at + (2 * chunk + 1) * 4 * INTERLEAVE);
      return;
    }
    const int first = 2 * chunk & 3, shift = chunk / 2 * 4;
    out[0] = word_at(at + first * 4 * INTERLEAVE) >> shift & 0x0F0F0F0Fu;
    out[1] = word_at(at + (first + 1) * 4 * INTERLEAVE) >> shift & 0x0F0F0F0Fu;
    if (BITS == 5) {
      const unsigned top = word_at(at + 4 * 4 * INTERLEAVE);
      out[0] |= (top >> 2 * chunk & 0x01010101u) << 4;
      out[1] |= (top >> (2 * chunk + 1) & 0x01010101u) << 4;
    }
    if (BITS == 6) {
      const unsigned top = word_at(at + (4 + chunk / 2) * 4 * INTERLEAVE);
      out[0] |= (top >> 2 * first & 0x03030303u) << 4;
      out[1] |= (top >> (2 * first + 2) & 0x03030303u) << 4;
    }
  }
};

// The value of a 4-bit code from a table of 16 signed bytes.
template <int VALUES>
inline __device__ float looked_up(unsigned code) {
  const unsigned long long low = VALUES == IQ4 ? 0xf6eaddcfbfad9881ull : 0x0c08060403020100ull;
  const unsigned long long high = VALUES == IQ4 ? 0x7159453526190d01ull : 0xf4f8fafcfdfeff00ull;
  const unsigned long long half = code & 8 ? high : low;
  return static_cast<float>(static_cast<signed char>(half >> (code & 7) * 8));
}

// One block: 16 rows × 256 columns; one thread: 8 columns of two rows.
template <int BITS, int SCALES, int SCALE_COLUMNS, bool HAS_OFFSET, int ZERO, int VALUES, bool TILED>
__global__ void __launch_bounds__(DEQUANTIZE_THREADS)
dequantize(const __grid_constant__ Dequantize f) {
  using Packed = Layout<BITS, SCALES, SCALE_COLUMNS, HAS_OFFSET, ZERO, VALUES>;
  launch_dependents();
  wait_for_previous();
  const int64_t group = blockIdx.x * (BLOCK_COLUMNS / 32) + threadIdx.x / 32, groups = f.columns / 32;
  const int chunk = threadIdx.x % 4, first = threadIdx.x % 32 / 4;
  const Target target{f.out, f.stride};
  const char* block = f.weights + blockIdx.y * Packed::group_at(groups);
  if (Packed::HAS_SPANS) block = f.weights + blockIdx.y * (groups / 8 * (Packed::HEAD_BYTES + 8 * Packed::GROUP_BYTES));
  if (group >= groups) {
    if (!TILED || group >= (groups + 1) / 2 * 2) return;
#pragma unroll
    for (int row = first; row < INTERLEAVE; row += 8)
      *target.chunk<true>(target_row(f, blockIdx.y * INTERLEAVE + row), group * 4 + chunk) = make_uint4(0, 0, 0, 0);
    return;
  }
  const char* parts = block + Packed::group_at(group);
  const char* head = parts - group % 8 * Packed::GROUP_BYTES - Packed::HEAD_BYTES;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = first + 8 * half;
    const float scale = Packed::scale(head, parts, row, chunk);
    const float offset = Packed::offset(head, parts, row, chunk) - (VALUES == CODES ? ZERO * scale : 0.0f);
    unsigned codes[2];
    Packed::codes(codes, parts + Packed::CODES_AT, row, chunk);
    float v[CHUNK];
#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
      const unsigned code = codes[i / 4] >> i % 4 * 8 & 0xFF;
      const float number = VALUES == CODES ? static_cast<float>(code) : looked_up<VALUES>(code);
      v[i] = fmaf(scale, number, offset);
    }
    const int64_t at = blockIdx.y * INTERLEAVE + row;
    if (at < f.rows) *target.chunk<TILED>(target_row(f, at), group * 4 + chunk) = chunk_of<__nv_bfloat16>(v);
  }
}

// F16 and BF16 weights: columns of 16 rows become rows. One thread: 8 rows × 8 columns.
template <bool TILED>
__global__ void __launch_bounds__(DEQUANTIZE_THREADS)
transpose_halves(const __grid_constant__ Dequantize f) {
  launch_dependents();
  wait_for_previous();
  const int half = threadIdx.x % 2;
  const int64_t chunk = blockIdx.x * (DEQUANTIZE_THREADS / 2) + threadIdx.x / 2, chunks = (f.columns + 7) / 8;
  const Target target{f.out, f.stride};
  if (chunk >= (TILED ? (chunks + 7) / 8 * 8 : chunks)) return;
  const char* block = f.weights + blockIdx.y * f.columns * INTERLEAVE * 2 + half * 16;
  uint4 in[8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int64_t column = chunk * 8 + i;
    in[i] = column < f.columns ? __ldg(reinterpret_cast<const uint4*>(block + column * INTERLEAVE * 2)) : make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (int row = 0; row < 8; row++) {
    unsigned out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const unsigned low = (&in[2 * i].x)[row / 2], high = (&in[2 * i + 1].x)[row / 2];
      out[i] = __byte_perm(low, high, row % 2 ? 0x7632 : 0x5410);
    }
    const int64_t at = blockIdx.y * INTERLEAVE + half * 8 + row;
    if (at < f.rows) *target.chunk<TILED>(target_row(f, at), chunk) = make_uint4(out[0], out[1], out[2], out[3]);
  }
}

// F32 weights: [high, high, low], each padded to whole tiles. One thread: 8 columns of a row.
template <bool TILED>
__global__ void __launch_bounds__(DEQUANTIZE_THREADS)
split_floats(const __grid_constant__ Dequantize f) {
  launch_dependents();
  wait_for_previous();
  const int row = threadIdx.x % INTERLEAVE;
  const int64_t chunk = blockIdx.x * (DEQUANTIZE_THREADS / INTERLEAVE) + threadIdx.x / INTERLEAVE;
  const int64_t chunks = (f.columns + 63) / 64 * 8, at = blockIdx.y * INTERLEAVE + row;
  if (chunk >= chunks || at >= f.rows) return;
  const float* block = reinterpret_cast<const float*>(f.weights) + blockIdx.y * f.columns * INTERLEAVE + row;
  float v[CHUNK];
#pragma unroll
  for (int i = 0; i < CHUNK; i++) {
    const int64_t column = chunk * 8 + i;
    v[i] = column < f.columns ? __ldg(block + column * INTERLEAVE) : 0.0f;
  }
  const Target target{f.out, f.stride};
  const uint4 high = chunk_of<__nv_bfloat16>(v);
  keep_remainders(v);
  const int64_t to = target_row(f, at);
  *target.chunk<TILED>(to, chunk) = high;
  *target.chunk<TILED>(to, chunks + chunk) = high;
  *target.chunk<TILED>(to, 2 * chunks + chunk) = chunk_of<__nv_bfloat16>(v);
}

}  // namespace corral
