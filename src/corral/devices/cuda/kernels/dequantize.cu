// Packed weights to rows of 16-bit elements, plain or in tiles, for the products of prefill.
//
// value = scale × (code − zero) + offset, rounded to BF16. F16 and BF16 weights stay what they are.
// F32 weights become three matrices side by side, [high, high, low] with high + low = value to 16
// bits, which meet rows of [high, low, high]: one product of three times the columns gives all
// terms that matter.
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
  int64_t spread;  // … where runs of 8 rows lie 8 · spread apart: two matrices can be interleaved
};

enum { kHalf = 0, kSigned = 1, kUnsigned = 2, kExponent = 3 };
enum { kCodes = 0, kIq4 = 1, kMxfp4 = 2 };

constexpr int kInterleave = 16;
constexpr int kDequantizeThreads = 256;
constexpr int kBlockColumns = 256;

__device__ __forceinline__ int64_t target_row(const Dequantize& f, int64_t row) {
  return f.first_row + row / 8 * 8 * f.spread + row % 8;
}

__device__ __forceinline__ unsigned word_at(const char* p) {
  return __ldg(reinterpret_cast<const unsigned*>(p));
}

__device__ __forceinline__ float half_at(const char* p) {
  return __half2float(__ushort_as_half(__ldg(reinterpret_cast<const unsigned short*>(p))));
}

// The layout of one group, as quant/packed.py describes it.
template <int Bits, int Scales, int ScaleColumns, bool HasOffset, int Zero, int Values>
struct Layout {
  static constexpr bool kHasSpans = Scales == kSigned || Scales == kUnsigned;
  static constexpr int kParts = 32 / ScaleColumns;
  static constexpr int kFieldBytes = (Scales == kHalf ? 2 : kParts) * kInterleave;
  static constexpr int kCodesAt = kFieldBytes * (HasOffset ? 2 : 1);
  static constexpr int kGroupBytes = kCodesAt + 4 * Bits * kInterleave;
  static constexpr int kHeadBytes = kHasSpans ? kInterleave * (HasOffset ? 4 : 2) : 0;

  static __device__ __forceinline__ int64_t group_at(int64_t group) {
    return kHasSpans ? (group / 8 + 1) * kHeadBytes + group * kGroupBytes : group * kGroupBytes;
  }

  static __device__ __forceinline__ float small(const char* field, int row, int chunk) {
    const char* at = field + chunk * kChunk / ScaleColumns * kInterleave + row;
    const unsigned char byte = __ldg(reinterpret_cast<const unsigned char*>(at));
    return Scales == kSigned ? static_cast<float>(static_cast<signed char>(byte))
                             : static_cast<float>(byte);
  }

  static __device__ __forceinline__ float scale(const char* head, const char* group, int row,
                                                int chunk) {
    if (Scales == kHalf) return half_at(group + 2 * row);
    if (Scales == kExponent) {  // 2^(e − 128): its lowest two are subnormal
      const int e = __ldg(reinterpret_cast<const unsigned char*>(group + row));
      return e > 1 ? __uint_as_float(static_cast<unsigned>(e - 1) << 23)
                   : __uint_as_float(0x200000u << e);
    }
    return half_at(head + 2 * row) * small(group, row, chunk);
  }

  static __device__ __forceinline__ float offset(const char* head, const char* group, int row,
                                                 int chunk) {
    if (!HasOffset) return 0.0f;
    if (Scales == kHalf) return half_at(group + kFieldBytes + 2 * row);
    const float small_offset = __ldg(reinterpret_cast<const unsigned char*>(
        group + kFieldBytes + chunk * kChunk / ScaleColumns * kInterleave + row));
    return half_at(head + 2 * kInterleave + 2 * row) * small_offset;
  }

  // The codes of 8 columns of a row, one a byte.
  static __device__ __forceinline__ void codes(unsigned (&out)[2], const char* codes, int row,
                                               int chunk) {
    const char* at = codes + 4 * row;
    if (Bits == 8) {
      out[0] = word_at(at + 2 * chunk * 4 * kInterleave);
      out[1] = word_at(at + (2 * chunk + 1) * 4 * kInterleave);
      return;
    }
    const int first = 2 * chunk & 3, shift = chunk / 2 * 4;
    out[0] = word_at(at + first * 4 * kInterleave) >> shift & 0x0F0F0F0Fu;
    out[1] = word_at(at + (first + 1) * 4 * kInterleave) >> shift & 0x0F0F0F0Fu;
    if (Bits == 5) {
      const unsigned top = word_at(at + 4 * 4 * kInterleave);
      out[0] |= (top >> 2 * chunk & 0x01010101u) << 4;
      out[1] |= (top >> (2 * chunk + 1) & 0x01010101u) << 4;
    }
    if (Bits == 6) {
      const unsigned top = word_at(at + (4 + chunk / 2) * 4 * kInterleave);
      out[0] |= (top >> 2 * first & 0x03030303u) << 4;
      out[1] |= (top >> (2 * first + 2) & 0x03030303u) << 4;
    }
  }
};

// The value of a 4-bit code from a table of 16 signed bytes.
template <int Values>
__device__ __forceinline__ float looked_up(unsigned code) {
  const unsigned long long low = Values == kIq4 ? 0xf6eaddcfbfad9881ull : 0x0c08060403020100ull;
  const unsigned long long high = Values == kIq4 ? 0x7159453526190d01ull : 0xf4f8fafcfdfeff00ull;
  const unsigned long long half = code & 8 ? high : low;
  return static_cast<float>(static_cast<signed char>(half >> (code & 7) * 8));
}

// One block: 16 rows × 256 columns; one thread: 8 columns of two rows.
template <int Bits, int Scales, int ScaleColumns, bool HasOffset, int Zero, int Values, bool Tiled>
__global__ void __launch_bounds__(kDequantizeThreads)
    dequantize(const __grid_constant__ Dequantize f) {
  using Packed = Layout<Bits, Scales, ScaleColumns, HasOffset, Zero, Values>;
  launch_dependents();
  wait_for_previous();
  const int64_t group = blockIdx.x * (kBlockColumns / 32) + threadIdx.x / 32,
                groups = f.columns / 32;
  const int chunk = threadIdx.x % 4, first = threadIdx.x % 32 / 4;
  const Target target{f.out, f.stride};
  const char* block = f.weights + blockIdx.y * Packed::group_at(groups);
  if (Packed::kHasSpans)
    block = f.weights + blockIdx.y * (groups / 8 * (Packed::kHeadBytes + 8 * Packed::kGroupBytes));
  if (group >= groups) {
    if (!Tiled || group >= (groups + 1) / 2 * 2) return;
#pragma unroll
    for (int row = first; row < kInterleave; row += 8)
      *target.chunk<true>(target_row(f, blockIdx.y * kInterleave + row), group * 4 + chunk) =
          make_uint4(0, 0, 0, 0);
    return;
  }
  const char* parts = block + Packed::group_at(group);
  const char* head = parts - group % 8 * Packed::kGroupBytes - Packed::kHeadBytes;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = first + 8 * half;
    const float scale = Packed::scale(head, parts, row, chunk);
    const float offset =
        Packed::offset(head, parts, row, chunk) - (Values == kCodes ? Zero * scale : 0.0f);
    unsigned codes[2];
    Packed::codes(codes, parts + Packed::kCodesAt, row, chunk);
    float v[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; i++) {
      const unsigned code = codes[i / 4] >> i % 4 * 8 & 0xFF;
      const float number = Values == kCodes ? static_cast<float>(code) : looked_up<Values>(code);
      v[i] = fmaf(scale, number, offset);
    }
    const int64_t at = blockIdx.y * kInterleave + row;
    if (at < f.rows)
      *target.chunk<Tiled>(target_row(f, at), group * 4 + chunk) = chunk_of<__nv_bfloat16>(v);
  }
}

// F16 and BF16 weights: columns of 16 rows become rows. One thread: 8 rows × 8 columns.
template <bool Tiled>
__global__ void __launch_bounds__(kDequantizeThreads)
    transpose_halves(const __grid_constant__ Dequantize f) {
  launch_dependents();
  wait_for_previous();
  const int half = threadIdx.x % 2;
  const int64_t chunk = blockIdx.x * (kDequantizeThreads / 2) + threadIdx.x / 2,
                chunks = (f.columns + 7) / 8;
  const Target target{f.out, f.stride};
  if (chunk >= (Tiled ? (chunks + 7) / 8 * 8 : chunks)) return;
  const char* block = f.weights + blockIdx.y * f.columns * kInterleave * 2 + half * 16;
  uint4 in[8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int64_t column = chunk * 8 + i;
    in[i] = column < f.columns
                ? __ldg(reinterpret_cast<const uint4*>(block + column * kInterleave * 2))
                : make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (int row = 0; row < 8; row++) {
    unsigned out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const unsigned low = (&in[2 * i].x)[row / 2], high = (&in[2 * i + 1].x)[row / 2];
      out[i] = __byte_perm(low, high, row % 2 ? 0x7632 : 0x5410);
    }
    const int64_t at = blockIdx.y * kInterleave + half * 8 + row;
    if (at < f.rows)
      *target.chunk<Tiled>(target_row(f, at), chunk) = make_uint4(out[0], out[1], out[2], out[3]);
  }
}

// F32 weights: [high, high, low], each padded to whole tiles. One thread: 8 columns of a row.
template <bool Tiled>
__global__ void __launch_bounds__(kDequantizeThreads)
    split_floats(const __grid_constant__ Dequantize f) {
  launch_dependents();
  wait_for_previous();
  const int row = threadIdx.x % kInterleave;
  const int64_t chunk = blockIdx.x * (kDequantizeThreads / kInterleave) + threadIdx.x / kInterleave;
  const int64_t chunks = (f.columns + 63) / 64 * 8, at = blockIdx.y * kInterleave + row;
  if (chunk >= chunks || at >= f.rows) return;
  const float* block =
      reinterpret_cast<const float*>(f.weights) + blockIdx.y * f.columns * kInterleave + row;
  float v[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; i++) {
    const int64_t column = chunk * 8 + i;
    v[i] = column < f.columns ? __ldg(block + column * kInterleave) : 0.0f;
  }
  const Target target{f.out, f.stride};
  const uint4 high = chunk_of<__nv_bfloat16>(v);
  keep_remainders(v);
  const int64_t to = target_row(f, at);
  *target.chunk<Tiled>(to, chunk) = high;
  *target.chunk<Tiled>(to, chunks + chunk) = high;
  *target.chunk<Tiled>(to, 2 * chunks + chunk) = chunk_of<__nv_bfloat16>(v);
}

}  // namespace corral
