"""What quantized matrices live on: four unsigned times four signed bytes, summed in 32 bits.

Every variant is exact, so all of them give the same bits.
"""

from collections.abc import Callable

import llvmlite.binding as llvm

from corral.devices.cpu.features import Dot, Target
from corral.devices.cpu.simd.types import i8, i16, i32, u8, u16
from corral.devices.cpu.simd.value import Value, concatenate, part

_BYTE_OPERANDS = llvm.llvm_version_info[0] >= 22
"""LLVM 22 changed the operands of vpdpbusd from vectors of i32 to vectors of i8."""


def dot_u8_i8(sums: Value, unsigned: Value, signed: Value, code_bits: int = 8) -> Value:
    """Return `sums` plus, in each lane, the dot product of the lane's four bytes.

    `sums` is i32.x(n), `unsigned` u8.x(4n) with values below 2^code_bits, `signed` i8.x(4n);
    n is a power of two.
    """
    dot = RunningDot(sums, code_bits)
    dot.add(unsigned, signed)
    return dot.total()


class RunningDot:
    """A sum to which dot products are added, one after the other, as by `dot_u8_i8`.

    Instructions that multiply bytes into 16 bits are followed by one that widens them only when
    these might overflow. Codes of eight bits are then two of four, each with sums of its own.
    """

    def __init__(self, sums: Value, code_bits: int = 8) -> None:
        """Begin with `sums`, i32.x(n); codes are below 2^code_bits."""
        self._sums, self._bits = sums, code_bits
        self._is_paired = sums.kernel.target.dot in _PAIRED
        self._pairs: list[Value] = []
        """Sums in 16 bits of the low bits of codes and, if codes are cut in two, of the high."""
        self._left = 0
        """How many more dots these can take."""

    @staticmethod
    def sums(target: Target, code_bits: int) -> int:
        """Return how many sums a running dot keeps."""
        return 2 if target.dot in _PAIRED and code_bits > _UNCUT_BITS else 1

    def add(self, unsigned: Value, signed: Value) -> None:
        """Add the dot products of u8.x(4n) and i8.x(4n)."""
        sums = self._sums
        expected = (i32.x(sums.type.lanes), u8.x(4 * sums.type.lanes), i8.x(4 * sums.type.lanes))
        if (sums.type, unsigned.type, signed.type) != expected:
            raise TypeError(f"a dot takes {expected}, not {(sums, unsigned, signed)}")
        if not self._is_paired:
            self._sums = _at_once(sums, unsigned, signed, self._bits)
            return
        is_cut = self.sums(sums.kernel.target, self._bits) > 1
        parts = [unsigned & 15, unsigned >> 4] if is_cut else [unsigned]
        pairs = [_pairs(part, signed) for part in parts]
        if self._left == 0:
            self._sums, self._pairs = self.total(), []
            self._left = _dots_in_16_bits(_CUT_BITS if is_cut else self._bits)
        before = self._pairs
        self._pairs = (
            [old + new for old, new in zip(before, pairs, strict=True)] if before else pairs
        )
        self._left -= 1

    def total(self) -> Value:
        """Return the sum so far: i32.x(n)."""
        total = self._sums
        for number, pairs in enumerate(self._pairs):
            fours = _fours(pairs)
            total = total + (fours << _CUT_BITS if number else fours)
        return total


_UNCUT_BITS = 7
_CUT_BITS = 4


def _dots_in_16_bits(code_bits: int) -> int:
    """Return how many sums of two products are below 2^15, for any signed bytes."""
    return (2**15 - 1) // (2 * 2**7 * ((1 << code_bits) - 1))


Operation = Callable[[Value, Value, Value, int], Value]


def _at_once(sums: Value, unsigned: Value, signed: Value, code_bits: int) -> Value:
    kind = sums.kernel.target.dot
    if kind is Dot.NEON and code_bits == 8 and "+i8mm" not in sums.kernel.target.features:
        kind = Dot.PORTABLE
    operation, widest = _VARIANTS[kind]
    return _split(operation, widest, sums, unsigned, signed, code_bits)


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


_PAIRED = {Dot.MADD_512: 16, Dot.MADD_256: 8}
"""Variants that multiply into 16 bits, and their lanes of 32."""
_PAIRS = {
    16: "llvm.x86.avx512.pmaddubs.w.512",
    8: "llvm.x86.avx2.pmadd.ub.sw",
    4: "llvm.x86.ssse3.pmadd.ub.sw.128",
}
_FOURS = {
    16: "llvm.x86.avx512.pmaddw.d.512",
    8: "llvm.x86.avx2.pmadd.wd",
    4: "llvm.x86.sse2.pmadd.wd",
}


def _pairs(unsigned: Value, signed: Value) -> Value:
    """Return the sums of two products each: i16.x(2n) of bytes .x(4n)."""
    lanes = unsigned.type.lanes // 4
    if lanes > _PAIRED[unsigned.kernel.target.dot]:
        half = 2 * lanes
        return concatenate(
            *(_pairs(part(unsigned, at, half), part(signed, at, half)) for at in (0, half))
        )
    return unsigned.kernel.intrinsic(_PAIRS[lanes], i16.x(2 * lanes), [unsigned, signed])


def _fours(pairs: Value) -> Value:
    """Return the sums of two neighbours each: i32.x(n) of i16.x(2n)."""
    lanes = pairs.type.lanes // 2
    if lanes > _PAIRED[pairs.kernel.target.dot]:
        return concatenate(*(_fours(part(pairs, at, lanes)) for at in (0, lanes)))
    ones = Value(pairs.kernel, pairs.type, pairs.type.constant(1))
    return pairs.kernel.intrinsic(_FOURS[lanes], i32.x(lanes), [pairs, ones])


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
    Dot.NEON: (_neon, 4),
    Dot.PORTABLE: (_portable, 16),
}
