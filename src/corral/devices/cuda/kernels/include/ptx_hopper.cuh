// Instructions of sm_90a: products of a warpgroup, registers moved between warpgroups.
//
// Elsewhere, kernels that use them are empty; there are others for every architecture.
// Source: PTX ISA 8.x.
#pragma once
#include "ptx.cuh"

#ifdef CORRAL_EMULATION
#include "ptx_hopper_emulation.hpp"
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define CORRAL_HAS_WGMMA 1
#else
#define CORRAL_HAS_WGMMA 0
#endif

// So many blocks of a kernel make a cluster.
#if CORRAL_HAS_WGMMA && !defined(CORRAL_EMULATION)
#define CORRAL_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#else
#define CORRAL_CLUSTER(blocks)
#endif

#if CORRAL_HAS_WGMMA && !defined(CORRAL_EMULATION)

namespace corral {

// Describes rows of 128 bytes that are the 16 columns' rows, not the result's columns: `panel`
// bytes further are the next 64 columns of the result.
__device__ __forceinline__ uint64_t rows_at(const void* shared, uint32_t panel) {
  const uint64_t eight_rows = 1024, swizzle_128 = 1;
  return (shared_address(shared) & 0x3FFFF) >> 4 | static_cast<uint64_t>(panel >> 4) << 16 |
         (eight_rows >> 4) << 32 | swizzle_128 << 62;
}

// Of the warpgroup that calls it: takes registers, or gives some away.
template <int Registers>
__device__ __forceinline__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

template <int Registers>
__device__ __forceinline__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

// Describes rows of 128 bytes in shared memory, 16-byte chunks swizzled among eight rows:
// tiles.cuh.
__device__ __forceinline__ uint64_t factor_at(const void* shared) {
  const uint64_t eight_rows = 1024, swizzle_128 = 1;
  return (shared_address(shared) & 0x3FFFF) >> 4 | 1ull << 16 | (eight_rows >> 4) << 32 |
         swizzle_128 << 62;
}

// The same by a whole warp, which the assembler is told: it needs to be known once.
__device__ __forceinline__ uint64_t common_factor_at(const void* shared) {
  return __shfl_sync(~0u, static_cast<uint32_t>(factor_at(shared)), 0);
}

// What lies so many bytes behind such a factor.
__device__ __forceinline__ uint64_t factor_behind(uint64_t factor, uint32_t bytes) {
  const uint32_t high = static_cast<uint32_t>(factor_at(nullptr) >> 32);
  return static_cast<uint32_t>(factor) + (bytes >> 4) | static_cast<uint64_t>(high) << 32;
}

// Orders the registers of sums before the products that follow.
__device__ __forceinline__ void products_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Keeps the compiler from moving what reads or writes sums over the instructions around it.
template <int Count>
__device__ __forceinline__ void settle(float (&sums)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; i++) asm volatile("" : "+f"(sums[i])::"memory");
}

template <int Pending>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

#define CORRAL_SUMS_8(i)                                                                      \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])

// d = a · bᵀ (+ d, unless `is_first`) for 64 rows of a and all of b, 16 columns of both. A warp has
// 16 rows of d, a lane the elements that mma gives it, block of 8 columns after block.
#define CORRAL_PRODUCT_256(TYPE)                                                         \
  asm volatile(                                                                          \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"                                      \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE                       \
      " {"                                                                               \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, " \
      "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
      "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, " \
      "%66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, " \
      "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, " \
      "%98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "     \
      "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, "   \
      "%124, %125, %126, %127"                                                           \
      "}, %128, %129, p, 1, 1, 0, 0;\n}"                                                 \
      : CORRAL_SUMS_8(0), CORRAL_SUMS_8(8), CORRAL_SUMS_8(16), CORRAL_SUMS_8(24),        \
        CORRAL_SUMS_8(32), CORRAL_SUMS_8(40), CORRAL_SUMS_8(48), CORRAL_SUMS_8(56),      \
        CORRAL_SUMS_8(64), CORRAL_SUMS_8(72), CORRAL_SUMS_8(80), CORRAL_SUMS_8(88),      \
        CORRAL_SUMS_8(96), CORRAL_SUMS_8(104), CORRAL_SUMS_8(112), CORRAL_SUMS_8(120)    \
      : "l"(a), "l"(b), "r"(static_cast<int>(!is_first)))

__device__ __forceinline__ void multiply_add(float (&d)[128], uint64_t a, uint64_t b, bool is_first,
                                             __nv_bfloat16) {
  CORRAL_PRODUCT_256("bf16");
}

__device__ __forceinline__ void multiply_add(float (&d)[128], uint64_t a, uint64_t b, bool is_first,
                                             __half) {
  CORRAL_PRODUCT_256("f16");
}

#define CORRAL_PRODUCT_128(TYPE)                                                         \
  asm volatile(                                                                          \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                       \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE                       \
      " {"                                                                               \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, " \
      "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
      "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"             \
      "}, %64, %65, p, 1, 1, 0, 0;\n}"                                                   \
      : CORRAL_SUMS_8(0), CORRAL_SUMS_8(8), CORRAL_SUMS_8(16), CORRAL_SUMS_8(24),        \
        CORRAL_SUMS_8(32), CORRAL_SUMS_8(40), CORRAL_SUMS_8(48), CORRAL_SUMS_8(56)       \
      : "l"(a), "l"(b), "r"(static_cast<int>(!is_first)))

__device__ __forceinline__ void multiply_add(float (&d)[64], uint64_t a, uint64_t b, bool is_first,
                                             __nv_bfloat16) {
  CORRAL_PRODUCT_128("bf16");
}

__device__ __forceinline__ void multiply_add(float (&d)[64], uint64_t a, uint64_t b, bool is_first,
                                             __half) {
  CORRAL_PRODUCT_128("f16");
}

// Whether the phase of this parity has completed; does not wait.
__device__ __forceinline__ bool barrier_is_done(uint64_t* barrier, uint32_t parity) {
  uint32_t is_done;
  asm volatile(
      "{\n .reg .pred p;\n"
      " mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      " selp.u32 %0, 1, 0, p;\n}"
      : "=r"(is_done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return is_done;
}

// d += a · b for a of 64 × 16 in registers, as mma has it, and 16 rows of b, which lie in shared
// memory row by row.
__device__ __forceinline__ void multiply_add_rows(float (&d)[64], const uint32_t* a, uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
      "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
      "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}"
      : CORRAL_SUMS_8(0), CORRAL_SUMS_8(8), CORRAL_SUMS_8(16), CORRAL_SUMS_8(24), CORRAL_SUMS_8(32),
        CORRAL_SUMS_8(40), CORRAL_SUMS_8(48), CORRAL_SUMS_8(56)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void multiply_add_rows(float (&d)[32], const uint32_t* a, uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"
      : CORRAL_SUMS_8(0), CORRAL_SUMS_8(8), CORRAL_SUMS_8(16), CORRAL_SUMS_8(24)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// d += a · bᵀ for a of 64 × 16 in registers, as mma has it, and N rows of b as `factor_at` describes
// them. A warp has 16 rows of d, a lane the elements that mma gives it, 8 columns after 8.
#define CORRAL_PRODUCT_OF_COLUMNS(N, D, A, B, ...)                                          \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"                                      \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" D "}, {" A "}, " B   \
               ", p, 1, 1, 0;\n}"                                                              \
               : __VA_ARGS__                                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

__device__ __forceinline__ void multiply_add_columns(float (&d)[8], const uint32_t (&a)[4],
                                                     uint64_t b) {
  CORRAL_PRODUCT_OF_COLUMNS(
      16,
      "%0, %1, %2, %3, %4, %5, %6, %7",
      "%8, %9, %10, %11", "%12", CORRAL_SUMS_8(0));
}

__device__ __forceinline__ void multiply_add_columns(float (&d)[16], const uint32_t (&a)[4],
                                                     uint64_t b) {
  CORRAL_PRODUCT_OF_COLUMNS(
      32,
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15",
      "%16, %17, %18, %19", "%20", CORRAL_SUMS_8(0), CORRAL_SUMS_8(8));
}

__device__ __forceinline__ void multiply_add_columns(float (&d)[32], const uint32_t (&a)[4],
                                                     uint64_t b) {
  CORRAL_PRODUCT_OF_COLUMNS(
      64,
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
      "%30, %31",
      "%32, %33, %34, %35", "%36", CORRAL_SUMS_8(0), CORRAL_SUMS_8(8), CORRAL_SUMS_8(16), CORRAL_SUMS_8(24));
}

__device__ __forceinline__ void multiply_add_columns(float (&d)[48], const uint32_t (&a)[4],
                                                     uint64_t b) {
  CORRAL_PRODUCT_OF_COLUMNS(
      96,
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
      "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
      "%44, %45, %46, %47",
      "%48, %49, %50, %51", "%52", CORRAL_SUMS_8(0), CORRAL_SUMS_8(8), CORRAL_SUMS_8(16), CORRAL_SUMS_8(24), CORRAL_SUMS_8(32), CORRAL_SUMS_8(40));
}

__device__ __forceinline__ void multiply_add_columns(float (&d)[64], const uint32_t (&a)[4],
                                                     uint64_t b) {
  CORRAL_PRODUCT_OF_COLUMNS(
      128,
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
      "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
      "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "
      "%58, %59, %60, %61, %62, %63",
      "%64, %65, %66, %67", "%68", CORRAL_SUMS_8(0), CORRAL_SUMS_8(8), CORRAL_SUMS_8(16), CORRAL_SUMS_8(24), CORRAL_SUMS_8(32), CORRAL_SUMS_8(40), CORRAL_SUMS_8(48), CORRAL_SUMS_8(56));
}

// A constant that the compiler keeps in a register.
__device__ __forceinline__ uint32_t in_register(uint32_t value) {
  uint32_t kept;
  asm volatile("mov.b32 %0, %1;" : "=r"(kept) : "r"(value));
  return kept;
}

// Barriers of all threads of a cluster, and the shared memory of its other blocks.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The address that something in this block's shared memory has in block `rank` of the cluster.
__device__ __forceinline__ uint32_t address_in_block(const void* shared, uint32_t rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(shared_address(shared)), "r"(rank));
  return address;
}

__device__ __forceinline__ void store_in_block(uint32_t address, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

}  // namespace corral

#endif
