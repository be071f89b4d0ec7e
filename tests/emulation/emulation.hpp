// Runs CUDA kernels on one thread of a CPU: every CUDA thread of a block is a fiber.
//
// Fibers switch only where threads meet (barriers, warp operations, waiting for a copy), so a block
// runs in one fixed order; odd blocks run it backwards, which makes many missing barriers visible.
// What it finds: threads that never meet (a deadlock on the device), accesses that are not aligned,
// indices past the end of an array, writes past dynamic shared memory, copies that nobody waited
// for (they happen as late as the program allows), and threads that never wait for earlier kernels.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <vector_types.h>
#include <vector_functions.h>

#undef __shared__
#undef __constant__
#undef __launch_bounds__
#undef __forceinline__
#undef __noinline__
#undef __grid_constant__
#define __shared__ static
#define __constant__ static const
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __grid_constant__
#define __builtin_assume(condition) ((void)0)

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace corral::emulation {

constexpr int kMostThreads = 1024, kWarp = 32, kSlotBytes = 64, kGuardBytes = 4096;
constexpr size_t kStackBytes = 256 << 10;

enum class State { Ready, Barrier, Warp, Polling, Exited };

struct Copy {
  void* to;
  const void* from;
  int bytes, present;
};

struct Snapshot {
  alignas(16) unsigned char slots[kWarp][kSlotBytes];
  int readers = 0;
};

struct Fiber {
  void* stack = nullptr;
  void* stack_pointer = nullptr;
  uint3 thread;
  int number = 0;
  State state = State::Exited;
  bool has_waited = false;
  // at a barrier
  int barrier = 0;
  // in a warp operation
  unsigned mask = 0;
  int operation = 0;
  alignas(16) unsigned char deposit[kSlotBytes];
  Snapshot* snapshot = nullptr;
  // polling
  const uint64_t* polled = nullptr;
  unsigned parity = 0;
  // cp.async
  std::vector<std::vector<Copy>> groups;
  std::vector<Copy> open;
};

struct NamedBarrier {
  int arrived = 0;
};

struct Warp {
  unsigned present = 0, exited = 0, waiting = 0;
  Snapshot snapshots[kWarp + 1];
};

struct Machine {
  Fiber fibers[kMostThreads];
  Warp warps[kMostThreads / kWarp];
  NamedBarrier barriers[16];
  int threads = 0, live = 0;
  Fiber* current = nullptr;
  void* scheduler = nullptr;
  bool failed = false;
  std::string message;
  unsigned char* shared = nullptr;
  size_t shared_bytes = 0;
  void (*body)(const void*) = nullptr;
  const void* argument = nullptr;
  int votes = 0, vote_result = 0, vote_all = 1;
};

inline Machine& machine() {
  static Machine* one = new Machine;
  return *one;
}

extern "C" void corral_switch(void** save, void* load);
#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
.type corral_switch, @function
corral_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size corral_switch, .-corral_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.p2align 4
.type corral_switch, @function
corral_switch:
  sub sp, sp, #176
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #176
  ret
.size corral_switch, .-corral_switch
)");
#else
#error "the emulator knows how to switch stacks on x86-64 and aarch64 only"
#endif

inline void leave() {
  Machine& m = machine();
  Fiber* self = m.current;
  corral_switch(&self->stack_pointer, m.scheduler);
}

// Ends the launch with an error; does not return.
[[noreturn]] inline void fail(const std::string& message) {
  Machine& m = machine();
  if (!m.failed) {
    char where[128];
    std::snprintf(where, sizeof where, " (block %u,%u,%u, thread %u,%u,%u)", blockIdx.x, blockIdx.y,
                  blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
    m.failed = true;
    m.message = message + where;
  }
  for (;;) leave();
}

inline void release_barrier(int number) {
  Machine& m = machine();
  for (int i = 0; i < m.threads; i++) {
    Fiber& f = m.fibers[i];
    if (f.state == State::Barrier && f.barrier == number) f.state = State::Ready;
  }
  m.barriers[number].arrived = 0;
}

inline void arrive(int number, int expected, bool wait) {
  Machine& m = machine();
  Fiber& self = *m.current;
  NamedBarrier& barrier = m.barriers[number];
  barrier.arrived++;
  if (barrier.arrived > expected) fail("more threads at a barrier than it expects");
  if (barrier.arrived == expected) {
    release_barrier(number);
  } else if (wait) {
    self.state = State::Barrier;
    self.barrier = number;
    leave();
  }
}

inline void sync_threads() { arrive(0, machine().live, true); }

inline int vote_threads(int predicate, int kind) {
  Machine& m = machine();
  sync_threads();
  if (m.votes == 0) m.vote_result = 0, m.vote_all = 1;
  m.votes++;
  m.vote_result += predicate != 0;
  m.vote_all &= predicate != 0;
  sync_threads();
  const int count = m.vote_result, all = m.vote_all;
  sync_threads();
  m.votes = 0;
  return kind == 0 ? count : kind == 1 ? all : count > 0;
}

// Meets the lanes of a mask; returns what each of them deposited. `done` follows.
inline Snapshot* meet(unsigned mask, int operation, const void* value, int bytes) {
  Machine& m = machine();
  Fiber& self = *m.current;
  const int lane = self.number % kWarp;
  Warp& warp = m.warps[self.number / kWarp];
  Fiber* lanes = m.fibers + self.number / kWarp * kWarp;
  mask &= warp.present;
  if (!(mask >> lane & 1)) fail("a lane calls a warp operation whose mask leaves it out");
  if (mask & warp.exited) fail("a warp operation waits for lanes that have returned");
  std::memcpy(self.deposit, value, bytes);
  self.mask = mask;
  self.operation = operation;
  warp.waiting |= 1u << lane;
  if ((warp.waiting & mask) != mask) {
    self.state = State::Warp;
    leave();
    return self.snapshot;
  }
  for (int i = 0; i < kWarp; i++) {
    if (!(mask >> i & 1)) continue;
    if (lanes[i].mask != mask) fail("lanes of a warp meet with different masks");
    if (lanes[i].operation != operation) fail("lanes of a warp meet in different operations");
  }
  Snapshot* snapshot = warp.snapshots;
  while (snapshot->readers) snapshot++;
  for (int i = 0; i < kWarp; i++) {
    if (!(mask >> i & 1)) continue;
    std::memcpy(snapshot->slots[i], lanes[i].deposit, bytes);
    lanes[i].snapshot = snapshot;
    lanes[i].state = State::Ready;
    snapshot->readers++;
  }
  warp.waiting &= ~mask;
  return snapshot;
}

inline void done(Snapshot* snapshot) { snapshot->readers--; }

inline int lane_id() { return machine().current->number % kWarp; }

enum Operation { kShuffle = 1, kVote, kReduce, kSync, kMatrices, kTranspose, kMultiply };

inline void sync_warp(unsigned mask) {
  char nothing = 0;
  done(meet(mask, kSync, &nothing, 1));
}

template <class T>
T shuffle(unsigned mask, T value, int source, bool in_range) {
  static_assert(sizeof(T) <= kSlotBytes, "too large to shuffle");
  Snapshot* all = meet(mask, kShuffle, &value, sizeof(T));
  const unsigned present = mask & machine().warps[machine().current->number / kWarp].present;
  T result = value;
  if (in_range) {
    if (!(present >> source & 1)) fail("a shuffle reads from a lane that its mask leaves out");
    std::memcpy(&result, all->slots[source], sizeof(T));
  }
  done(all);
  return result;
}

inline unsigned ballot(unsigned mask, int predicate) {
  predicate = predicate != 0;
  Snapshot* all = meet(mask, kVote, &predicate, sizeof predicate);
  const unsigned present = mask & machine().warps[machine().current->number / kWarp].present;
  unsigned result = 0;
  for (int i = 0; i < kWarp; i++) {
    if (present >> i & 1 && *reinterpret_cast<int*>(all->slots[i])) result |= 1u << i;
  }
  done(all);
  return result;
}

template <class T, class F>
T reduce(unsigned mask, T value, F fold) {
  Snapshot* all = meet(mask, kReduce, &value, sizeof(T));
  const unsigned present = mask & machine().warps[machine().current->number / kWarp].present;
  bool first = true;
  T result{};
  for (int i = 0; i < kWarp; i++) {
    if (!(present >> i & 1)) continue;
    const T other = *reinterpret_cast<T*>(all->slots[i]);
    result = first ? other : fold(result, other);
    first = false;
  }
  done(all);
  return result;
}

// An mbarrier as the emulator keeps it in its 8 bytes.
struct Transactions {
  uint16_t expected, pending;
  int32_t bytes_and_phase;  // bytes still to come × 2 + phase

  int bytes() const { return bytes_and_phase >> 1; }
  unsigned phase() const { return bytes_and_phase & 1; }
  void add(int more) { bytes_and_phase += 2 * more; }
  void settle() {
    if (pending == 0 && bytes() == 0) {
      pending = expected;
      bytes_and_phase ^= 1;
    }
  }
};
static_assert(sizeof(Transactions) == 8);

inline Transactions& transactions(void* barrier) { return *static_cast<Transactions*>(barrier); }

inline bool is_completed(const void* barrier, unsigned parity) {
  return static_cast<const Transactions*>(barrier)->phase() != (parity & 1);
}

inline void wait_phase(const void* barrier, unsigned parity) {
  Fiber& self = *machine().current;
  while (!is_completed(barrier, parity)) {
    self.state = State::Polling;
    self.polled = static_cast<const uint64_t*>(barrier);
    self.parity = parity;
    leave();
  }
}

inline void run_copies(std::vector<Copy>& copies) {
  for (const Copy& copy : copies) {
    if (copy.present) std::memcpy(copy.to, copy.from, copy.present);
    std::memset(static_cast<char*>(copy.to) + copy.present, 0, copy.bytes - copy.present);
  }
}

inline void exit_fiber() {
  Machine& m = machine();
  Fiber& self = *m.current;
  if (!self.has_waited) fail("a thread returns without wait_for_previous()");
  self.state = State::Exited;
  m.live--;
  Warp& warp = m.warps[self.number / kWarp];
  warp.exited |= 1u << self.number % kWarp;
  if (m.live && m.barriers[0].arrived == m.live) release_barrier(0);
  for (;;) leave();
}

inline void enter_fiber() {
  Machine& m = machine();
  m.body(m.argument);
  exit_fiber();
}

inline void prepare(Fiber& f) {
  if (!f.stack) {
    f.stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  void** top = reinterpret_cast<void**>(static_cast<char*>(f.stack) + kStackBytes);
#if defined(__x86_64__)
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(enter_fiber);  // where `ret` goes; the stack is then 8 mod 16
  for (int i = 0; i < 6; i++) *--top = nullptr;
#else
  top -= 22;
  std::memset(top, 0, 176);
  top[11] = reinterpret_cast<void*>(enter_fiber);
#endif
  f.stack_pointer = top;
}

inline void describe_deadlock() {
  Machine& m = machine();
  int barrier = 0, warp = 0, polling = 0, exited = 0;
  for (int i = 0; i < m.threads; i++) {
    const State s = m.fibers[i].state;
    barrier += s == State::Barrier, warp += s == State::Warp;
    polling += s == State::Polling, exited += s == State::Exited;
  }
  char text[256];
  std::snprintf(text, sizeof text,
                "deadlock in block %u,%u,%u: of %d threads %d wait at a barrier, %d in a warp "
                "operation, %d for a copy, %d have returned",
                blockIdx.x, blockIdx.y, blockIdx.z, m.threads, barrier, warp, polling, exited);
  m.failed = true;
  m.message = text;
}

inline void begin_block() {
  Machine& m = machine();
  m.threads = m.live = blockDim.x * blockDim.y * blockDim.z;
  m.votes = 0;
  for (NamedBarrier& b : m.barriers) b.arrived = 0;
  for (int w = 0; w < (m.threads + kWarp - 1) / kWarp; w++) {
    Warp& warp = m.warps[w];
    const int lanes = std::min(kWarp, m.threads - w * kWarp);
    warp.present = lanes == kWarp ? ~0u : (1u << lanes) - 1;
    warp.exited = warp.waiting = 0;
    for (Snapshot& s : warp.snapshots) s.readers = 0;
  }
  for (int i = 0; i < m.threads; i++) {
    Fiber& f = m.fibers[i];
    f.number = i;
    f.thread = make_uint3(i % blockDim.x, i / blockDim.x % blockDim.y,
                          i / (blockDim.x * blockDim.y));
    f.state = State::Ready;
    f.has_waited = false;
    f.groups.clear();
    f.open.clear();
    prepare(f);
  }
  std::memset(m.shared - kGuardBytes, 0xFF, m.shared_bytes + 2 * kGuardBytes);
}

inline void end_block() {
  Machine& m = machine();
  for (int i = 0; i < kGuardBytes && !m.failed; i++) {
    if (m.shared[-1 - i] != 0xFF || m.shared[m.shared_bytes + i] != 0xFF) {
      m.failed = true;
      m.message = "a block wrote outside of its dynamic shared memory";
    }
  }
}

inline void run_block(bool backwards) {
  Machine& m = machine();
  begin_block();
  while (m.live && !m.failed) {
    bool has_progress = false;
    for (int k = 0; k < m.threads && !m.failed; k++) {
      Fiber& f = m.fibers[backwards ? m.threads - 1 - k : k];
      if (f.state == State::Polling && is_completed(f.polled, f.parity)) f.state = State::Ready;
      if (f.state != State::Ready) continue;
      has_progress = true;
      m.current = &f;
      threadIdx = f.thread;
      corral_switch(&m.scheduler, f.stack_pointer);
    }
    if (!has_progress && !m.failed && m.live) describe_deadlock();
  }
  end_block();
}

// Runs all blocks; returns whether that went well.
inline bool launch(dim3 grid, dim3 block, size_t shared_bytes, void (*body)(const void*),
                   const void* argument) {
  Machine& m = machine();
  m.failed = false;
  m.message.clear();
  m.body = body;
  m.argument = argument;
  gridDim = grid;
  blockDim = block;
  if (block.x * block.y * block.z > unsigned(kMostThreads) || !(block.x * block.y * block.z)) {
    m.failed = true;
    m.message = "a block has 1 to 1024 threads";
    return false;
  }
  void* raw = std::aligned_alloc(4096, (shared_bytes + 4095) / 4096 * 4096 + 2 * kGuardBytes);
  m.shared = static_cast<unsigned char*>(raw) + kGuardBytes;
  m.shared_bytes = shared_bytes;
  for (unsigned z = 0; z < grid.z && !m.failed; z++) {
    for (unsigned y = 0; y < grid.y && !m.failed; y++) {
      for (unsigned x = 0; x < grid.x && !m.failed; x++) {
        blockIdx = make_uint3(x, y, z);
        run_block((x + y + z) & 1);
      }
    }
  }
  std::free(raw);
  return !m.failed;
}

template <class Fields>
bool run(void (*kernel)(Fields), dim3 grid, dim3 block, size_t shared_bytes, const void* words,
         size_t num_words) {
  if (num_words * 8 != sizeof(Fields)) {
    Machine& m = machine();
    m.failed = true;
    m.message = "the kernel takes " + std::to_string(sizeof(Fields) / 8) + " fields, got " +
                std::to_string(num_words);
    return false;
  }
  struct Call {
    void (*kernel)(Fields);
    Fields fields;
  } call{kernel, {}};
  std::memcpy(static_cast<void*>(&call.fields), words, sizeof(Fields));
  auto body = [](const void* argument) {
    const Call* c = static_cast<const Call*>(argument);
    c->kernel(c->fields);
  };
  return launch(grid, block, shared_bytes, body, &call);
}

}  // namespace corral::emulation

// Called by what -fsanitize=alignment,bounds inserts.
namespace corral::emulation {
struct SourceLocation {
  const char* file;
  uint32_t line, column;
};
[[noreturn]] inline void fail_at(const SourceLocation& at, const std::string& what) {
  fail(what + " at " + (at.file ? at.file : "?") + ":" + std::to_string(at.line));
}
}  // namespace corral::emulation

extern "C" __attribute__((visibility("hidden"), weak)) void __ubsan_handle_type_mismatch_v1(
    corral::emulation::SourceLocation* at, void* pointer) {
  char text[64];
  std::snprintf(text, sizeof text, "an access to %p that is not aligned", pointer);
  corral::emulation::fail_at(*at, text);
}

extern "C" __attribute__((visibility("hidden"), weak)) void __ubsan_handle_out_of_bounds(
    corral::emulation::SourceLocation* at, void* index) {
  corral::emulation::fail_at(*at, "index " + std::to_string(reinterpret_cast<intptr_t>(index)) +
                                      " is past the end of an array");
}

#include "builtins.hpp"
