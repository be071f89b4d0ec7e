// What include/ptx_hopper.cuh wraps, in C++: products of weights in registers with rows in shared
// memory. Blocks run one after the other, so a cluster has one; products with both operands in shared
// memory are not here.
#pragma once

#include "ptx_emulation.hpp"

#define CORRAL_HAS_WGMMA 1

namespace corral {

// Whoever aligns shared memory looks at the low bits only.
inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pointer));
}

template <int Registers>
void grow_registers() {}
template <int Registers>
void shrink_registers() {}

// Rows are described by their address; rows of 128 bytes, 16-byte chunks swizzled among eight rows.
inline uint64_t factor_at(const void* shared) {
  if (reinterpret_cast<uintptr_t>(shared) % 1024) emulation::fail("a factor is not aligned");
  return reinterpret_cast<uintptr_t>(shared) >> 4;
}

inline uint64_t common_factor_at(const void* shared) { return factor_at(shared); }
inline uint64_t factor_behind(uint64_t factor, uint32_t bytes) { return factor + (bytes >> 4); }

inline void products_begin() {}
inline void products_commit() {}
template <int Pending>
void products_wait() {}
template <int Count>
void settle(float (&)[Count]) {}

namespace emulation {

// Element `column` of row `row` of the 16 columns that begin `step` bytes into a row.
inline float factor_element(uintptr_t factor, int row, int column) {
  const uintptr_t tile = factor / 1024 * 1024, step = factor % 1024;
  const int byte = int(step) + 2 * column, chunk = byte / 16 ^ row % 8;
  const uint16_t bits =
      *reinterpret_cast<const uint16_t*>(tile + row * 128 + chunk * 16 + byte % 16);
  return bf16_of(bits, 0);
}

}  // namespace emulation

template <int Count>
void multiply_add_columns(float (&d)[Count], const uint32_t (&a)[4], uint64_t b) {
  emulation::Snapshot* all = emulation::meet(~0u, emulation::kMultiply, a, sizeof a);
  const int g = emulation::lane_id() / 4, c = emulation::lane_id() % 4;
  float left[2][16];
  for (int half = 0; half < 2; half++) {
    for (int k = 0; k < 16; k++) {
      const auto* from = reinterpret_cast<const uint32_t*>(all->slots[g * 4 + k % 8 / 2]);
      left[half][k] = emulation::bf16_of(from[k / 8 * 2 + half], k % 2);
    }
  }
  emulation::done(all);
  for (int i = 0; i < Count; i++) {
    const int n = i / 4 * 8 + 2 * c + i % 2;
    double sum = 0;
    for (int k = 0; k < 16; k++) {
      sum += double(left[i / 2 % 2][k]) * emulation::factor_element(b << 4, n, k);
    }
    d[i] += float(sum);
  }
  emulation::sync_warp(~0u);  // whoever waits for a product waits for all lanes
}

inline uint32_t in_register(uint32_t value) { return value; }
inline void cluster_arrive() {}
inline void cluster_wait() {}
inline uint32_t address_in_block(const void*, uint32_t) {
  emulation::fail("a cluster has one block here");
  return 0;
}
inline void store_in_block(uint32_t, float) {}

}  // namespace corral
