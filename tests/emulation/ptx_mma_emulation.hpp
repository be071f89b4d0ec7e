// What include/ptx_mma.cuh wraps, in C++.
#pragma once

#include "ptx_emulation.hpp"

namespace corral {

template <bool IsSigned>
void mma_k32(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, int32_t start) {
  const uint32_t b[2] = {b0, b1};
  for (int32_t& value : d) value = start;
  emulation::multiply<4, int>(d, a, b, IsSigned ? emulation::s8_of : emulation::u8_of,
                              emulation::s8_of);
}

template <bool IsSigned>
void mma_k32_more(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t b[2] = {b0, b1};
  emulation::multiply<4, int>(d, a, b, IsSigned ? emulation::s8_of : emulation::u8_of,
                              emulation::s8_of);
}

template <bool IsSigned>
void mma_k16(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t b, int32_t start) {
  const uint32_t a[4] = {a0, a1, 0, 0};
  mma_k32<IsSigned>(d, a, b, 0, start);
}

inline void mma_half(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t b[2] = {b0, b1};
  mma_f16(d, a, b);
}

namespace emulation {
inline float f32_of(uint32_t one, int) {
  const uint32_t bits = one & 0xFFFFE000u;  // TF32 has 10 bits after the point
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
}  // namespace emulation

inline void mma_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t b[2] = {b0, b1};
  emulation::multiply<1, double>(d, a, b, emulation::f32_of, emulation::f32_of);
}

inline void mma_tf32_k4(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  const uint32_t a[4] = {a0, a1, 0, 0};
  mma_tf32(d, a, b, 0);
}

inline uint32_t to_tf32(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return (bits + 0x1000u) & 0xFFFFE000u;
}

}  // namespace corral
