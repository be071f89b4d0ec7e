// What include/ptx.cuh wraps, in C++: each function does what its instruction does.
#pragma once

#include "emulation.hpp"

#ifndef CORRAL_ARCH
#define CORRAL_ARCH 900
#endif

namespace corral {

inline unsigned char* dynamic_shared() { return emulation::machine().shared; }

inline void launch_dependents() {}
inline void wait_for_previous() { emulation::machine().current->has_waited = true; }

namespace emulation {

inline void queue_copy(void* to, const void* from, int bytes, int present) {
  if (reinterpret_cast<uintptr_t>(to) % bytes) fail("cp.async writes where it is not aligned");
  if (present && reinterpret_cast<uintptr_t>(from) % bytes) {
    fail("cp.async reads where it is not aligned");
  }
  machine().current->open.push_back({to, from, bytes, present});
}

template <bool Transposed, int N>
void load_matrices(uint32_t (&r)[N], const void* row) {
  if (reinterpret_cast<uintptr_t>(row) % 16) fail("ldmatrix reads a row that is not aligned");
  Snapshot* all = meet(~0u, kMatrices, &row, sizeof row);
  const int lane = lane_id();
  for (int j = 0; j < N; j++) {
    uint16_t pair[2];
    for (int e = 0; e < 2; e++) {
      const int y = Transposed ? lane % 4 * 2 + e : lane / 4;
      const int x = Transposed ? lane / 4 : lane % 4 * 2 + e;
      const uint16_t* from = *reinterpret_cast<const uint16_t**>(all->slots[j * 8 + y]);
      pair[e] = from[x];
    }
    r[j] = pair[0] | uint32_t(pair[1]) << 16;
  }
  done(all);
}

struct Fragments {
  uint32_t a[4], b[2];
};

// d[2] += rows of a times columns of b, `Per` elements a register; Get takes them apart.
template <int Per, class Sum, class D, class GetA, class GetB>
void multiply(D (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], GetA get_a, GetB get_b) {
  Fragments mine;
  std::memcpy(mine.a, a, sizeof mine.a);
  std::memcpy(mine.b, b, sizeof mine.b);
  Snapshot* all = meet(~0u, kMultiply, &mine, sizeof mine);
  const int g = lane_id() / 4, t = lane_id() % 4;
  for (int half = 0; half < 2; half++) {
    for (int column = 0; column < 2; column++) {
      Sum sum = 0;
      for (int side = 0; side < 2; side++) {
        for (int from = 0; from < 4; from++) {
          const auto* left = reinterpret_cast<Fragments*>(all->slots[g * 4 + from]);
          const auto* right = reinterpret_cast<Fragments*>(all->slots[(2 * t + column) * 4 + from]);
          for (int e = 0; e < Per; e++) {
            sum += Sum(get_a(left->a[2 * side + half], e)) * Sum(get_b(right->b[side], e));
          }
        }
      }
      d[2 * half + column] += D(sum);
    }
  }
  done(all);
}

inline float bf16_of(uint32_t pair, int e) {
  const uint32_t bits = e ? pair & 0xFFFF0000u : pair << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline float f16_of(uint32_t pair, int e) {
  const uint16_t bits = pair >> (16 * e);
  __half value;
  std::memcpy(&value, &bits, 2);
  return __half2float(value);
}

inline int s8_of(uint32_t four, int e) { return int8_t(four >> (8 * e)); }
inline int u8_of(uint32_t four, int e) { return uint8_t(four >> (8 * e)); }

}  // namespace emulation

template <int Bytes>
void cp_async(void* shared, const void* global) {
  emulation::queue_copy(shared, global, Bytes, Bytes);
}
inline void cp_async_16(void* shared, const void* global) { cp_async<16>(shared, global); }
inline void cp_async_16_or_zero(void* shared, const void* global, bool is_present) {
  emulation::queue_copy(shared, global, 16, is_present ? 16 : 0);
}
inline void cp_async_commit() {
  emulation::Fiber& self = *emulation::machine().current;
  self.groups.push_back(std::move(self.open));
  self.open.clear();
}
template <int Groups>
void cp_async_wait() {
  emulation::Fiber& self = *emulation::machine().current;
  while (self.groups.size() > size_t(Groups)) {
    emulation::run_copies(self.groups.front());
    self.groups.erase(self.groups.begin());
  }
}

template <int N>
void load_matrices(uint32_t (&r)[N], const void* row) {
  emulation::load_matrices<false>(r, row);
}
template <int N>
void load_matrices_transposed(uint32_t (&r)[N], const void* row) {
  emulation::load_matrices<true>(r, row);
}

inline uint32_t transpose_matrix(uint32_t row) {
  emulation::Snapshot* all = emulation::meet(~0u, emulation::kTranspose, &row, sizeof row);
  const int lane = emulation::lane_id();
  uint16_t pair[2];
  for (int e = 0; e < 2; e++) {
    const int y = lane % 4 * 2 + e, x = lane / 4;
    pair[e] = reinterpret_cast<const uint16_t*>(all->slots[y * 4 + x / 2])[x % 2];
  }
  emulation::done(all);
  return pair[0] | uint32_t(pair[1]) << 16;
}

inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emulation::multiply<2, double>(d, a, b, emulation::bf16_of, emulation::bf16_of);
}
inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emulation::multiply<2, double>(d, a, b, emulation::f16_of, emulation::f16_of);
}
inline void mma_s8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emulation::multiply<4, int>(d, a, b, emulation::s8_of, emulation::s8_of);
}
inline void mma_u8_s8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emulation::multiply<4, int>(d, a, b, emulation::u8_of, emulation::s8_of);
}
inline void mma_s8_u8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emulation::multiply<4, int>(d, a, b, emulation::s8_of, emulation::u8_of);
}
inline int32_t dp4a_u8_s8(uint32_t a, int32_t b, int32_t c) {
  for (int e = 0; e < 4; e++) c += emulation::u8_of(a, e) * emulation::s8_of(b, e);
  return c;
}

inline uint64_t evict_first_policy() { return 0; }
template <class T>
T load_once(const T* p, uint64_t = 0) {
  return *p;
}
inline void prefetch_l2(const void*) {}
inline void bulk_prefetch_l2(const void*, uint32_t) {}

inline void named_barrier_sync(int number, int threads) {
  emulation::arrive(number, threads, true);
}
inline void named_barrier_arrive(int number, int threads) {
  emulation::arrive(number, threads, false);
}
inline float exp2_approx(float x) { return std::exp2(x); }

#if CORRAL_ARCH >= 900
inline void barrier_init(uint64_t* barrier, uint32_t arrivals) {
  emulation::transactions(barrier) = {uint16_t(arrivals), uint16_t(arrivals), 0};
}
inline void barrier_init_fence() {}
inline void barrier_arrive_expect(uint64_t* barrier, uint32_t bytes) {
  emulation::Transactions& b = emulation::transactions(barrier);
  if (b.pending == 0) emulation::fail("more arrivals at a barrier than it expects");
  b.add(bytes);
  b.pending--;
  b.settle();
}
inline void barrier_arrive(uint64_t* barrier) { barrier_arrive_expect(barrier, 0); }
inline void barrier_wait(uint64_t* barrier, uint32_t parity) {
  emulation::wait_phase(barrier, parity);
}
inline void bulk_copy(void* shared, const void* global, uint32_t bytes, uint64_t* barrier,
                      uint64_t = 0) {
  const uintptr_t all = reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global);
  if ((all | bytes) % 16) emulation::fail("a bulk copy is not aligned");
  std::memcpy(shared, global, bytes);
  emulation::Transactions& b = emulation::transactions(barrier);
  b.add(-int(bytes));
  b.settle();
}
inline void async_fence() {}
#endif

}  // namespace corral
