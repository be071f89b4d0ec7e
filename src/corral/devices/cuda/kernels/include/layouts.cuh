// The packed layouts of quant/packed.py, by the names they have there.
//
// 16 rows stand side by side in a row block. value = scale × (code − zero) + offset.
#pragma once

#include "common.cuh"

namespace corral {

constexpr int kRows = 16;        // of a row block
constexpr int kGroupColumns = 32;
constexpr int kSpanColumns = 256;
constexpr int kChunkBytes = 4 * kRows;

enum class Scales { Half, Signed, Unsigned, Exponent };
enum class Values { Plain, IQ4, MXFP4 };

template <int Bits, Scales Kind, int ScaleColumns, bool HasOffset, int Zero,
          Values Table = Values::Plain>
struct Packed {
  static constexpr bool kIsFloat = false;
  static constexpr int kBits = Bits;
  static constexpr Scales kScales = Kind;
  static constexpr int kParts = kGroupColumns / ScaleColumns;
  static constexpr bool kHasOffset = HasOffset;
  static constexpr int kZero = Zero;
  static constexpr Values kValues = Table;
  static constexpr bool kHasSpans = Kind == Scales::Signed || Kind == Scales::Unsigned;
  static constexpr int kScaleBytes = Kind == Scales::Half ? 2 : 1;
  static constexpr int kScalesBytes = kScaleBytes * kParts * kRows;
  static constexpr int kHeadBytes = kScalesBytes * (HasOffset ? 2 : 1);  // of a group
  static constexpr int kGroupBytes = kHeadBytes + kGroupColumns * Bits / 8 * kRows;
  static constexpr int kSuperBytes = kHasSpans ? 2 * kRows * (HasOffset ? 2 : 1) : 0;
  static constexpr int kSpanBytes = kSuperBytes + kSpanColumns / kGroupColumns * kGroupBytes;
  // Chunks of the plane that every layout begins with: 8 of bytes, or 4 of nibbles.
  static constexpr int kChunks = Bits == 8 ? 8 : 4;

  static __host__ __device__ constexpr int64_t row_block_bytes(int64_t columns) {
    return kHasSpans ? columns / kSpanColumns * kSpanBytes : columns / kGroupColumns * kGroupBytes;
  }

  // Where a group of a row block begins, and where the span it is in does.
  static __device__ __forceinline__ const unsigned char* group(const unsigned char* block,
                                                               int64_t number) {
    if constexpr (kHasSpans) return span(block, number) + kSuperBytes + number % 8 * kGroupBytes;
    return block + number * kGroupBytes;
  }
  static __device__ __forceinline__ const unsigned char* span(const unsigned char* block,
                                                              int64_t number) {
    return block + number / 8 * kSpanBytes;
  }
};

template <class Element>
struct Plain {
  static constexpr bool kIsFloat = true;
  using Stored = Element;
  static __host__ __device__ constexpr int64_t row_block_bytes(int64_t columns) {
    return columns * kRows * static_cast<int64_t>(sizeof(Element));
  }
};

using f32 = Plain<float>;
using f16 = Plain<__half>;
using bf16 = Plain<__nv_bfloat16>;
using int4_half = Packed<4, Scales::Half, 32, false, 8>;
using int4_half_offset = Packed<4, Scales::Half, 32, true, 0>;
using int5_half = Packed<5, Scales::Half, 32, false, 16>;
using int5_half_offset = Packed<5, Scales::Half, 32, true, 0>;
using int8_half = Packed<8, Scales::Half, 32, false, 128>;
using int4_unsigned16_offset = Packed<4, Scales::Unsigned, 16, true, 0>;
using int4_signed16 = Packed<4, Scales::Signed, 16, false, 4>;
using int4_unsigned_offset = Packed<4, Scales::Unsigned, 32, true, 0>;
using int5_unsigned_offset = Packed<5, Scales::Unsigned, 32, true, 0>;
using int6_signed16 = Packed<6, Scales::Signed, 16, false, 32>;
using iq4_half = Packed<4, Scales::Half, 32, false, 0, Values::IQ4>;
using iq4_signed = Packed<4, Scales::Signed, 32, false, 0, Values::IQ4>;
using mxfp4_exponent = Packed<4, Scales::Exponent, 32, false, 0, Values::MXFP4>;

__device__ __forceinline__ float as_float(float v) { return v; }
__device__ __forceinline__ float as_float(__half v) { return __half2float(v); }
__device__ __forceinline__ float as_float(__nv_bfloat16 v) { return __bfloat162float(v); }

// Four nibbles, one a byte, looked up in a table of 16 bytes.
__device__ __forceinline__ uint32_t look_up(uint32_t codes, uint32_t t0, uint32_t t1, uint32_t t2,
                                            uint32_t t3) {
  const uint32_t low = codes & 0x07070707u;
  const uint32_t selector = (low & 7) | (low >> 4 & 0x70) | (low >> 8 & 0x700) |
                            (low >> 12 & 0x7000);
  const uint32_t first = __byte_perm(t0, t1, selector), second = __byte_perm(t2, t3, selector);
  const uint32_t is_second = (codes >> 3 & 0x01010101u) * 255u;
  return (first & ~is_second) | (second & is_second);
}

// Four codes, one a byte, as signed values with the zero taken off. The nibble types have codes of
// at most 6 bits, so that no byte borrows from the next.
template <class Layout>
__device__ __forceinline__ uint32_t signed_codes(uint32_t codes) {
  if constexpr (Layout::kValues == Values::IQ4) {
    // -127 -104 -83 -65, -49 -35 -22 -10, 1 13 25 38, 53 69 89 113
    return look_up(codes, 0xBFAD9881u, 0xF6EADDCFu, 0x26190D01u, 0x71594535u);
  } else if constexpr (Layout::kValues == Values::MXFP4) {
    // 0 1 2 3, 4 6 8 12, 0 -1 -2 -3, -4 -6 -8 -12
    return look_up(codes, 0x03020100u, 0x0C080604u, 0xFDFEFF00u, 0xF4F8FAFCu);
  } else if constexpr (Layout::kBits == 8) {
    return codes ^ 0x80808080u;
  } else if constexpr (Layout::kZero != 0) {
    return ((codes | 0x80808080u) - Layout::kZero * 0x01010101u) ^ 0x80808080u;
  } else {
    return codes;
  }
}

// The codes of one row in chunk c: columns 4c … 4c + 3, and for nibbles 16 + 4c … as well.
struct Codes {
  uint32_t low, high;
};

// `codes` is where the codes of the group begin. With bytes, `high` is 0.
template <class Layout>
__device__ __forceinline__ Codes take_codes(uint32_t word, uint32_t top0, uint32_t top1, int chunk) {
  if constexpr (Layout::kBits == 8) return {signed_codes<Layout>(word), 0};
  uint32_t low = word & 0x0F0F0F0Fu, high = word >> 4 & 0x0F0F0F0Fu;
  if constexpr (Layout::kBits == 5) {
    low |= (top0 >> chunk & 0x01010101u) << 4;
    high |= (top0 >> (4 + chunk) & 0x01010101u) << 4;
  }
  if constexpr (Layout::kBits == 6) {
    low |= (top0 >> (2 * chunk) & 0x03030303u) << 4;
    high |= (top1 >> (2 * chunk) & 0x03030303u) << 4;
  }
  return {signed_codes<Layout>(low), signed_codes<Layout>(high)};
}

// Scale or offset number `which` (0 or 1) of one row in part `part` of a group.
template <class Layout>
__device__ __forceinline__ float take_scale(const unsigned char* span, const unsigned char* group,
                                            int which, int part, int row) {
  const unsigned char* at =
      group + which * Layout::kScalesBytes + (part * kRows + row) * Layout::kScaleBytes;
  if constexpr (Layout::kScales == Scales::Half) {
    return __half2float(*reinterpret_cast<const __half*>(at));
  } else if constexpr (Layout::kScales == Scales::Exponent) {
    const uint32_t e = *at;  // 2^(e − 128); the two least are subnormal
    return __uint_as_float(e >= 2 ? (e - 1) << 23 : e == 1 ? 0x00400000u : 0x00200000u);
  } else {
    const float super = __half2float(
        reinterpret_cast<const __half*>(span)[which * kRows + row]);
    const bool is_signed = Layout::kScales == Scales::Signed && which == 0;
    return super * (is_signed ? static_cast<float>(static_cast<int8_t>(*at))
                              : static_cast<float>(*at));
  }
}

}  // namespace corral
