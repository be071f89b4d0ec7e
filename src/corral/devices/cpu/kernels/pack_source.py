"""Taking the blocks of the file apart, one at a time: codes as bytes, scales as they are stored.

The formats are those of `quant/legacy.py`, `quant/k_quants.py` and `quant/i_quants.py`, where each
is drawn.
"""

from collections.abc import Callable
from dataclasses import dataclass

from corral.devices.cpu.simd import Kernel, Value, concatenate, shuffle, u8, u16
from corral.quant.types import DType


@dataclass(frozen=True, slots=True)
class Source:
    """One block of the file."""

    codes: list[Value]
    """u8.x(32) for each group of 32 columns."""
    scale: Value
    """The F16 (as u16) or exponent (u8) of the block."""
    sub_scales: Value
    """Small scales of K-quants; meaningless without spans."""
    offset: Value
    """The F16 (as u16) added to each value; meaningless without offsets."""
    sub_offsets: Value


def _simple(codes: list[Value], scale: Value, offset: Value | None = None) -> Source:
    return Source(codes, scale, scale, scale if offset is None else offset, scale)


def _nibbles(k: Kernel, address: Value) -> Value:
    """Return 32 codes from 16 bytes: the low halves, then the high ones."""
    packed = k.load(u8.x(16), address)
    return concatenate(packed & 15, packed >> 4)


def _bits(k: Kernel, address: Value) -> Value:
    """Return the 32 bits of 4 bytes, one a lane."""
    packed = shuffle(k.load(u8.x(4), address), [n // 8 for n in range(32)])
    return packed >> k.constant(u8.x(32), [float(n % 8) for n in range(32)]) & 1


def _q4_0(k: Kernel, at: Value) -> Source:
    return _simple([_nibbles(k, at + 2)], k.load(u16, at))


def _q4_1(k: Kernel, at: Value) -> Source:
    return _simple([_nibbles(k, at + 4)], k.load(u16, at), k.load(u16, at + 2))


def _q5_0(k: Kernel, at: Value) -> Source:
    return _simple([_nibbles(k, at + 6) | _bits(k, at + 2) << 4], k.load(u16, at))


def _q5_1(k: Kernel, at: Value) -> Source:
    codes = _nibbles(k, at + 8) | _bits(k, at + 4) << 4
    return _simple([codes], k.load(u16, at), k.load(u16, at + 2))


def _q8_0(k: Kernel, at: Value) -> Source:
    return _simple([k.load(u8.x(32), at + 2) ^ 128], k.load(u16, at))


def _mxfp4(k: Kernel, at: Value) -> Source:
    return _simple([_nibbles(k, at + 1)], k.load(u8, at))


def _iq4_xs(k: Kernel, at: Value) -> Source:
    codes = [_nibbles(k, at + 8 + 16 * group) for group in range(8)]
    high = k.load(u16, at + 2)
    tops = shuffle(high.bits(u8.x(2)), [n // 4 for n in range(8)])
    tops = tops >> k.constant(u8.x(8), [float(2 * (n % 4)) for n in range(8)]) & 3
    low = shuffle(k.load(u8.x(4), at + 4), [n // 2 for n in range(8)])
    low = low >> k.constant(u8.x(8), [float(4 * (n % 2)) for n in range(8)]) & 15
    scale = k.load(u16, at)
    return Source(codes, scale, (low | tops << 4) - 32, scale, scale)


def _planes(k: Kernel, at: Value, run: int, bits: int, group: int) -> Value:
    """Return a group of codes: each run of bytes holds 8 / bits runs of codes, low bits first."""
    each = 8 // bits
    first = group * 32
    start, number = first // (run * each) * run, first % (run * each)
    packed = k.load(u8.x(32), at + (start + number % run))
    return packed >> (bits * (number // run)) & ((1 << bits) - 1)


def _negated(half: Value) -> Value:
    return half ^ 0x8000


def _with_minima(k: Kernel, at: Value, codes: list[Value]) -> Source:
    first, second, third = (k.load(u8.x(4), at + n) for n in (4, 8, 12))
    scales = concatenate(first & 63, third & 15 | first >> 2 & 48)
    minima = concatenate(second & 63, third >> 4 | second >> 2 & 48)
    return Source(codes, k.load(u16, at), scales, _negated(k.load(u16, at + 2)), minima)


def _q4_k(k: Kernel, at: Value) -> Source:
    return _with_minima(k, at, [_planes(k, at + 16, 32, 4, group) for group in range(8)])


def _q5_k(k: Kernel, at: Value) -> Source:
    codes = [
        _planes(k, at + 48, 32, 4, group) | _planes(k, at + 16, 32, 1, group) << 4
        for group in range(8)
    ]
    return _with_minima(k, at, codes)


def _q6_k(k: Kernel, at: Value) -> Source:
    codes = [
        _planes(k, at, 64, 4, group) | _planes(k, at + 128, 32, 2, group) << 4 for group in range(8)
    ]
    scale = k.load(u16, at + 208)
    return Source(codes, scale, k.load(u8.x(16), at + 192), scale, scale)


def _q2_k(k: Kernel, at: Value) -> Source:
    codes = [_planes(k, at + 16, 32, 2, group) for group in range(8)]
    parts = k.load(u8.x(16), at)
    offset = _negated(k.load(u16, at + 82))
    return Source(codes, k.load(u16, at + 80), parts & 15, offset, parts >> 4)


def _q3_k(k: Kernel, at: Value) -> Source:
    codes = [
        _planes(k, at + 32, 32, 2, group) | _planes(k, at, 32, 1, group) << 2 for group in range(8)
    ]
    low = k.load(u8.x(8), at + 96)
    tops = k.load(u8.x(4), at + 104)
    wide = concatenate(concatenate(tops, tops), concatenate(tops, tops))
    wide = wide >> k.constant(u8.x(16), [float(2 * (n // 4)) for n in range(16)]) & 3
    scales = concatenate(low & 15, low >> 4) | wide << 4
    scale = k.load(u16, at + 108)
    return Source(codes, scale, scales - 32, scale, scale)


SOURCES: dict[DType, Callable[[Kernel, Value], Source]] = {
    DType.Q4_0: _q4_0,
    DType.Q4_1: _q4_1,
    DType.Q5_0: _q5_0,
    DType.Q5_1: _q5_1,
    DType.Q8_0: _q8_0,
    DType.Q2_K: _q2_k,
    DType.Q3_K: _q3_k,
    DType.Q4_K: _q4_k,
    DType.Q5_K: _q5_k,
    DType.Q6_K: _q6_k,
    DType.IQ4_NL: _q4_0,
    DType.IQ4_XS: _iq4_xs,
    DType.MXFP4: _mxfp4,
}
"""How a block of each data type is taken apart."""
