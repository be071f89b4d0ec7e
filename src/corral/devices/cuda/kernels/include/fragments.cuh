// Packed weights as operands of tensor cores.
//
// A warp takes the 16 rows of a row block as the rows of a product. Lane 4g + c holds rows 2g and
// 2g + 1 (as rows g and g + 8 of the instruction), so that one load of 8 bytes gives it both, and
// of each group of 32 columns the columns 4c … 4c + 3 and 16 + 4c … 16 + 4c + 3.
//
// Codes with a zero that is half their range become signed bytes, value × 2^shift: flipping the
// top bit subtracts the zero for free, and the power of two is divided out at the end.
#pragma once

#include "ptx_mma.cuh"

namespace corral {

constexpr int kRows = 16;    // rows of a row block
constexpr int kGroup = 32;   // columns that share a scale of the activations
constexpr int kChunk = 256;  // columns of integer codes that are multiplied in one go

enum class ScaleKind { half, signed_byte, unsigned_byte };

struct Lane {
  int g, c;
  Lane() {
    const int lane = threadIdx.x & 31;
    g = lane >> 2;
    c = lane & 3;
  }
};

// A byte as a float, exact: put below the bits of 2^23. Signed bytes have their top bit flipped.
template <int Index, bool IsSigned>
inline float byte_to_float(uint32_t bytes) {
  const uint32_t word = __byte_perm(bytes, 0x4B000000u, 0x7540 + Index);
  return __uint_as_float(word) - (IsSigned ? 8388736.0f : 8388608.0f);
}

template <int Bits_, ScaleKind Kind, int ScaleColumns, bool HasOffset, int Zero>
struct IntWeights {
  static constexpr bool is_float = false;
  static constexpr int bits = Bits_;
  static constexpr bool has_offset = HasOffset;
  static constexpr bool has_spans = Kind != ScaleKind::half;
  static constexpr bool is_signed = Zero != 0;
  static constexpr int zero = Zero;
  static constexpr int parts = kGroup / ScaleColumns;
  static constexpr int columns = kChunk;
  static constexpr int groups = kChunk / kGroup;
  static constexpr int scale_bytes = (has_spans ? parts : 2) * kRows;
  static constexpr int head_bytes = scale_bytes * (HasOffset ? 2 : 1);
  static constexpr int group_bytes = head_bytes + kGroup * Bits_ / 8 * kRows;
  static constexpr int super_bytes = has_spans ? 2 * kRows * (HasOffset ? 2 : 1) : 0;
  static constexpr int chunk_bytes = super_bytes + groups * group_bytes;
  // Codes below 2 · Zero, moved to the top of a byte.
  static constexpr int shift = Zero == 128 ? 0 : Zero == 32 ? 2 : Zero == 16 ? 3 : Zero == 8 ? 4
                               : Zero == 4 ? 5 : 0;
  static constexpr float unit = 1.0f / (1 << shift);
  static_assert(!HasOffset || (Zero == 0 && parts == 1), "offsets stand for a group, without zero");
  static_assert(Zero == 0 || Zero << shift == 128, "a zero is half the range");

  static float2 halves(const uint8_t* at) {
    return __half22float2(*reinterpret_cast<const __half2*>(at));
  }

  // Scales and offsets of a span, for the lane's two rows.
  static float2 super_scale(const uint8_t* chunk, Lane lane) { return halves(chunk + 4 * lane.g); }
  static float2 super_offset(const uint8_t* chunk, Lane lane) {
    return halves(chunk + 2 * kRows + 4 * lane.g);
  }

  static float2 scale(const uint8_t* group, int part, Lane lane) {
    if constexpr (has_spans) {
      constexpr bool kSigned = Kind == ScaleKind::signed_byte;
      uint32_t two = *reinterpret_cast<const uint16_t*>(group + part * kRows + 2 * lane.g);
      if constexpr (kSigned) two ^= 0x8080u;
      return {byte_to_float<0, kSigned>(two), byte_to_float<1, kSigned>(two)};
    } else {
      return halves(group + 4 * lane.g);
    }
  }

  static float2 offset(const uint8_t* group, Lane lane) {
    if constexpr (has_spans) {
      const uint32_t two = *reinterpret_cast<const uint16_t*>(group + scale_bytes + 2 * lane.g);
      return {byte_to_float<0, false>(two), byte_to_float<1, false>(two)};
    } else {
      return halves(group + scale_bytes + 4 * lane.g);
    }
  }

  static uint2 words(const uint8_t* plane, int chunk, Lane lane) {
    return *reinterpret_cast<const uint2*>(plane + chunk * (4 * kRows) + 8 * lane.g);
  }

  static uint32_t moved(uint32_t word, int left) { return left < 0 ? word >> -left : word << left; }

  // The four registers of a 16×32 operand; raw ones are the codes as they are stored.
  template <bool IsRaw = false>
  static void codes(const uint8_t* group, Lane lane, uint32_t (&a)[4]) {
    constexpr int kLeft = IsRaw ? 0 : shift;
    const uint8_t* plane = group + head_bytes;
    const uint2 low = words(plane, lane.c, lane);
    if constexpr (Bits_ == 8) {
      const uint2 high = words(plane, 4 + lane.c, lane);
      a[0] = low.x, a[1] = low.y, a[2] = high.x, a[3] = high.y;
    } else {
      constexpr uint32_t kMask = 0x01010101u * (0xFF & (0x0F << kLeft));
      a[0] = moved(low.x, kLeft) & kMask;
      a[1] = moved(low.y, kLeft) & kMask;
      a[2] = moved(low.x, kLeft - 4) & kMask;
      a[3] = moved(low.y, kLeft - 4) & kMask;
    }
    if constexpr (Bits_ == 5) {
      constexpr int kTop = 4 + kLeft;
      constexpr uint32_t kMask = 0x01010101u << kTop;
      const uint2 top = words(plane + 4 * 4 * kRows, 0, lane);
      a[0] |= (top.x << (kTop - lane.c)) & kMask;
      a[1] |= (top.y << (kTop - lane.c)) & kMask;
      if constexpr (kTop == 4) {
        a[2] |= (top.x >> lane.c) & kMask;
        a[3] |= (top.y >> lane.c) & kMask;
      } else {
        a[2] |= (top.x << (kTop - 4 - lane.c)) & kMask;
        a[3] |= (top.y << (kTop - 4 - lane.c)) & kMask;
      }
    }
    if constexpr (Bits_ == 6) {
      constexpr int kTop = 4 + kLeft;
      constexpr uint32_t kMask = 0x03030303u << kTop;
      const uint2 first = words(plane + 4 * 4 * kRows, 0, lane);
      const uint2 second = words(plane + 4 * 4 * kRows, 1, lane);
      a[0] |= two_bits(first.x, kTop, lane) & kMask;
      a[1] |= two_bits(first.y, kTop, lane) & kMask;
      a[2] |= two_bits(second.x, kTop, lane) & kMask;
      a[3] |= two_bits(second.y, kTop, lane) & kMask;
    }
    if constexpr (is_signed && !IsRaw) {
#pragma unroll
      for (int i = 0; i < 4; i++) a[i] ^= 0x80808080u;
    }
  }

  // Bits 2c, 2c + 1 of each byte moved to bit `top`.
  static uint32_t two_bits(uint32_t word, int top, Lane lane) {
    return top == 4 ? word >> (2 * lane.c) << 4 : word << (top - 2 * lane.c);
  }
};

using Int4Half = IntWeights<4, ScaleKind::half, 32, false, 8>;
using Int4HalfOffset = IntWeights<4, ScaleKind::half, 32, true, 0>;
using Int5Half = IntWeights<5, ScaleKind::half, 32, false, 16>;
using Int5HalfOffset = IntWeights<5, ScaleKind::half, 32, true, 0>;
using Int8Half = IntWeights<8, ScaleKind::half, 32, false, 128>;
using Int4Signed16 = IntWeights<4, ScaleKind::signed_byte, 16, false, 4>;
using Int4UnsignedOffset = IntWeights<4, ScaleKind::unsigned_byte, 32, true, 0>;
using Int5UnsignedOffset = IntWeights<5, ScaleKind::unsigned_byte, 32, true, 0>;
using Int6Signed16 = IntWeights<6, ScaleKind::signed_byte, 16, false, 32>;

enum class FloatKind { f16, bf16, f32 };

// Float weights are multiplied in TF32, 8 columns at a time; both 16-bit types fit it exactly.
template <FloatKind Kind>
struct FloatWeights {
  static constexpr bool is_float = true;
  static constexpr bool has_offset = false;
  static constexpr bool has_spans = false;
  static constexpr int element_bytes = Kind == FloatKind::f32 ? 4 : 2;
  static constexpr int columns = Kind == FloatKind::f32 ? 64 : 128;
  static constexpr int groups = columns / 8;  // here a group is 8 columns
  static constexpr int group_bytes = 8 * kRows * element_bytes;
  static constexpr int super_bytes = 0;
  static constexpr int chunk_bytes = groups * group_bytes;
  static constexpr float unit = 1.0f;

  // Columns 2c and 2c + 1 of 8 serve as columns c and c + 4 of the instruction.
  static void values(const uint8_t* group, Lane lane, uint32_t (&a)[4]) {
    const uint8_t* first = group + 2 * lane.c * kRows * element_bytes + 2 * lane.g * element_bytes;
    pair(first, a[0], a[1]);
    pair(first + kRows * element_bytes, a[2], a[3]);
  }

 private:
  static void pair(const uint8_t* at, uint32_t& first, uint32_t& second) {
    if constexpr (Kind == FloatKind::f32) {
      const float2 two = *reinterpret_cast<const float2*>(at);
      first = to_tf32(two.x), second = to_tf32(two.y);
    } else if constexpr (Kind == FloatKind::f16) {
      const float2 two = __half22float2(*reinterpret_cast<const __half2*>(at));
      first = __float_as_uint(two.x), second = __float_as_uint(two.y);
    } else {
      const uint32_t two = *reinterpret_cast<const uint32_t*>(at);
      first = two << 16, second = two & 0xFFFF0000u;
    }
  }
};

using Float16 = FloatWeights<FloatKind::f16>;
using BFloat16 = FloatWeights<FloatKind::bf16>;
using Float32 = FloatWeights<FloatKind::f32>;

}  // namespace corral
