// The functions that CUDA C++ has built in.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

inline void __syncthreads() { corral::emulation::sync_threads(); }
inline int __syncthreads_count(int p) { return corral::emulation::vote_threads(p, 0); }
inline int __syncthreads_and(int p) { return corral::emulation::vote_threads(p, 1); }
inline int __syncthreads_or(int p) { return corral::emulation::vote_threads(p, 2); }
inline void __syncwarp(unsigned mask = ~0u) { corral::emulation::sync_warp(mask); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) {}
[[noreturn]] inline void __trap() { corral::emulation::fail("__trap()"); }

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int lane = corral::emulation::lane_id();
  return corral::emulation::shuffle(mask, value, (lane & -width) | (source & (width - 1)), true);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = corral::emulation::lane_id(), source = lane - int(delta);
  return corral::emulation::shuffle(mask, value, source, source >= (lane & -width));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = corral::emulation::lane_id(), source = lane + int(delta);
  return corral::emulation::shuffle(mask, value, source, source < (lane & -width) + width);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const int lane = corral::emulation::lane_id(), source = lane ^ bits;
  return corral::emulation::shuffle(mask, value, source, source < (lane & -width) + width);
}

inline unsigned __ballot_sync(unsigned mask, int p) { return corral::emulation::ballot(mask, p); }
inline int __any_sync(unsigned mask, int p) { return corral::emulation::ballot(mask, p) != 0; }
inline int __all_sync(unsigned mask, int p) { return corral::emulation::ballot(mask, !p) == 0; }
template <class T>
T __reduce_add_sync(unsigned mask, T v) {
  return corral::emulation::reduce(mask, v, [](T a, T b) { return T(a + b); });
}
template <class T>
T __reduce_max_sync(unsigned mask, T v) {
  return corral::emulation::reduce(mask, v, [](T a, T b) { return a > b ? a : b; });
}
template <class T>
T __reduce_min_sync(unsigned mask, T v) {
  return corral::emulation::reduce(mask, v, [](T a, T b) { return a < b ? a : b; });
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned v) {
  return corral::emulation::reduce(mask, v, [](unsigned a, unsigned b) { return a & b; });
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned v) {
  return corral::emulation::reduce(mask, v, [](unsigned a, unsigned b) { return a | b; });
}

template <class T>
T __ldg(const T* p) { return *p; }
template <class T>
T __ldcs(const T* p) { return *p; }
template <class T>
T __ldcg(const T* p) { return *p; }
template <class T>
T __ldcv(const T* p) { return *p; }
template <class T>
T __ldca(const T* p) { return *p; }
template <class T>
T __ldlu(const T* p) { return *p; }
template <class T>
void __stcs(T* p, T v) { *p = v; }
template <class T>
void __stcg(T* p, T v) { *p = v; }
template <class T>
void __stwb(T* p, T v) { *p = v; }

inline int __dp4a(int a, int b, int c) {
  for (int e = 0; e < 4; e++) c += int(int8_t(a >> (8 * e))) * int(int8_t(b >> (8 * e)));
  return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int e = 0; e < 4; e++) c += unsigned(uint8_t(a >> (8 * e))) * uint8_t(b >> (8 * e));
  return c;
}

inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v ? __builtin_clz(v) : 32; }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s) {
  const uint64_t both = uint64_t(y) << 32 | x;
  unsigned result = 0;
  for (int e = 0; e < 4; e++) {
    const unsigned pick = s >> (4 * e);
    unsigned byte = unsigned(both >> (8 * (pick & 7))) & 255;
    if (pick & 8) byte = byte & 128 ? 255 : 0;
    result |= byte << (8 * e);
  }
  return result;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return unsigned((uint64_t(high) << 32 | low) >> (by & 31));
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return unsigned((uint64_t(high) << 32 | low) << (by & 31) >> 32);
}
namespace corral::emulation {
template <class F>
unsigned by_byte(unsigned a, unsigned b, F f) {
  unsigned result = 0;
  for (int e = 0; e < 4; e++) {
    result |= unsigned(uint8_t(f(int8_t(a >> (8 * e)), int8_t(b >> (8 * e))))) << (8 * e);
  }
  return result;
}
inline int clamp_byte(int v) { return v < -128 ? -128 : v > 127 ? 127 : v; }
template <class To, class From>
To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
}  // namespace corral::emulation
inline unsigned __vadd4(unsigned a, unsigned b) {
  return corral::emulation::by_byte(a, b, [](int x, int y) { return x + y; });
}
inline unsigned __vsub4(unsigned a, unsigned b) {
  return corral::emulation::by_byte(a, b, [](int x, int y) { return x - y; });
}
inline unsigned __vsubss4(unsigned a, unsigned b) {
  return corral::emulation::by_byte(
      a, b, [](int x, int y) { return corral::emulation::clamp_byte(x - y); });
}
inline int __umulhi(unsigned a, unsigned b) { return int(uint64_t(a) * b >> 32); }

inline float __uint_as_float(unsigned v) { return corral::emulation::bits<float>(v); }
inline float __int_as_float(int v) { return corral::emulation::bits<float>(v); }
inline unsigned __float_as_uint(float v) { return corral::emulation::bits<unsigned>(v); }
inline int __float_as_int(float v) { return corral::emulation::bits<int>(v); }
inline double __longlong_as_double(long long v) { return corral::emulation::bits<double>(v); }
inline long long __double_as_longlong(double v) { return corral::emulation::bits<long long>(v); }
inline int __float2int_rn(float v) { return int(std::nearbyint(v)); }
inline int __float2int_rz(float v) { return int(v); }
inline unsigned __float2uint_rn(float v) { return unsigned(std::nearbyint(v)); }
inline float __int2float_rn(int v) { return float(v); }
inline float __uint2float_rn(unsigned v) { return float(v); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __frsqrt_rn(float a) { return 1.0f / std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float a) { return std::exp(a); }
inline float __logf(float a) { return std::log(a); }
inline float __sinf(float a) { return std::sin(a); }
inline float __cosf(float a) { return std::cos(a); }
inline float __saturatef(float a) { return a < 0 ? 0 : a > 1 ? 1 : a; }
inline void sincospif(float a, float* sine, float* cosine) {
  *sine = float(std::sin(M_PI * a));
  *cosine = float(std::cos(M_PI * a));
}
inline double __dmul_rn(double a, double b) { return a * b; }
inline float rsqrtf(float a) { return float(1.0 / std::sqrt(double(a))); }
inline double rsqrt(double a) { return 1.0 / std::sqrt(a); }

template <class A, class B>
constexpr auto min(A a, B b) -> std::common_type_t<A, B> {
  using T = std::common_type_t<A, B>;
  return T(b) < T(a) ? T(b) : T(a);
}
template <class A, class B>
constexpr auto max(A a, B b) -> std::common_type_t<A, B> {
  using T = std::common_type_t<A, B>;
  return T(a) < T(b) ? T(b) : T(a);
}

template <class T, class V>
T atomicAdd(T* p, V v) { T old = *p; *p = T(old + T(v)); return old; }
template <class T, class V>
T atomicMax(T* p, V v) { T old = *p; *p = old < T(v) ? T(v) : old; return old; }
template <class T, class V>
T atomicMin(T* p, V v) { T old = *p; *p = T(v) < old ? T(v) : old; return old; }
template <class T, class V>
T atomicExch(T* p, V v) { T old = *p; *p = T(v); return old; }
template <class T, class V, class W>
T atomicCAS(T* p, V expected, W v) {
  T old = *p;
  if (old == T(expected)) *p = T(v);
  return old;
}

// Arithmetic that CUDA's headers leave to the device.
inline __half __hfma(__half a, __half b, __half c) {
  return __float2half_rn(std::fma(__half2float(a), __half2float(b), __half2float(c)));
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return __halves2half2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}
inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
  return __float2bfloat16_rn(
      std::fma(__bfloat162float(a), __bfloat162float(b), __bfloat162float(c)));
}
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
  return __halves2bfloat162(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}
