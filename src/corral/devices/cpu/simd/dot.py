"""What quantized matrices live on: four unsigned times four signed bytes, summed in 32 bits.

Every variant is exact, so all of them give the same bits.
"""

from collections.abc import Callable

import llvmlite.binding as llvm

from corral.devices.cpu.features import Dot
from corral.devices.cpu.simd.types import i8, i16, i32, u8, u16
from corral.devices.cpu.simd.value import Value, concatenate, part

_BYTE_OPERANDS = llvm.llvm_version_info[0] >= 22
"""LLVM 22 changed the operands of vpdpbusd from vectors of i32 to vectors of i8."""


def dot_u8_i8(sums: Value, unsigned: Value, signed: Value, code_bits: int = 8) -> Value:
    """Return `sums` plus, in each lane, the dot product of the lane's four bytes.

    `sums` is i32.x(n), `unsigned` u8.x(4n) with values below 2^code_bits, `signed` i8.x(4n);
    n is a power of two.
    """
    expected = (i32.x(sums.type.lanes), u8.x(4 * sums.type.lanes), i8.x(4 * sums.type.lanes))
    if (sums.type, unsigned.type, signed.type) != expected:
        raise TypeError(f"dot_u8_i8 takes {expected}, not {(sums, unsigned, signed)}")
    kind = sums.kernel.target.dot
    if kind is Dot.NEON and code_bits == 8 and "+i8mm" not in sums.kernel.target.features:
        kind = Dot.PORTABLE
    operation, widest = _VARIANTS[kind]
    return _split(operation, widest, sums, unsigned, signed, code_bits)


Operation = Callable[[Value, Value, Value, int], Value]


def _split(
    operation: Operation, widest: int, sums: Value, unsigned: Value, signed: Value, code_bits: int
) -> Value:
    lanes = sums.type.lanes
    if lanes <= widest:
        return operation(sums, unsigned, signed, code_bits)
    half = lanes // 2
    halves = [
        _split(
            operation,
            widest,
            part(sums, first, half),
            part(unsigned, 4 * first, 4 * half),
            part(signed, 4 * first, 4 * half),
            code_bits,
        )
        for first in (0, half)
    ]
    return concatenate(*halves)


def _vnni(sums: Value, unsigned: Value, signed: Value, code_bits: int) -> Value:
    lanes = sums.type.lanes
    operands = [unsigned, signed]
    if not _BYTE_OPERANDS:
        operands = [value.bits(i32.x(lanes)) for value in operands]
    name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
    return sums.kernel.intrinsic(name, sums.type, [sums, *operands])


_MADD = {
    16: ("llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512"),
    8: ("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"),
    4: ("llvm.x86.ssse3.pmadd.ub.sw.128", "llvm.x86.sse2.pmadd.wd"),
}


def _madd(sums: Value, unsigned: Value, signed: Value, code_bits: int) -> Value:
    """Sum pairs in 16 bits, which 7-bit codes cannot overflow: an eighth bit goes separately."""
    kernel, lanes = sums.kernel, sums.type.lanes
    pairs_name, fours_name = _MADD[lanes]
    words = i16.x(2 * lanes)

    def add(sums: Value, unsigned: Value, weight: int) -> Value:
        pairs = kernel.intrinsic(pairs_name, words, [unsigned, signed])
        weights = Value(kernel, words, words.constant(weight))
        return sums + kernel.intrinsic(fours_name, sums.type, [pairs, weights])

    if code_bits < 8:
        return add(sums, unsigned, 1)
    return add(add(sums, unsigned & 127, 1), unsigned >> 7, 128)


def _neon(sums: Value, unsigned: Value, signed: Value, code_bits: int) -> Value:
    name = "usdot" if code_bits == 8 else "sdot"
    operands = [sums, unsigned, signed]
    return sums.kernel.intrinsic(f"llvm.aarch64.neon.{name}.v4i32.v16i8", sums.type, operands)


def _portable(sums: Value, unsigned: Value, signed: Value, code_bits: int) -> Value:
    lanes = sums.type.lanes
    u, s = unsigned.bits(u16.x(2 * lanes)), signed.bits(i16.x(2 * lanes))
    even = (u & 255).bits(s.type) * ((s << 8) >> 8)
    odd = (u >> 8).bits(s.type) * (s >> 8)
    for products in (even, odd):  # each fits 16 bits, their sums do not
        pair = products.bits(sums.type)
        sums = sums + ((pair << 16) >> 16) + (pair >> 16)
    return sums


_VARIANTS: dict[Dot, tuple[Operation, int]] = {
    Dot.VNNI_512: (_vnni, 16),
    Dot.VNNI_256: (_vnni, 8),
    Dot.MADD_512: (_madd, 16),
    Dot.MADD_256: (_madd, 8),
    Dot.NEON: (_neon, 4),
    Dot.PORTABLE: (_portable, 16),
}
