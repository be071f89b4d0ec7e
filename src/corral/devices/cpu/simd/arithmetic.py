"""Arithmetic beyond operators: each function means the same, lane by lane, on every processor.

No result depends on the lane it is computed in nor on how many lanes there are.
"""

from collections.abc import Callable, Sequence

from corral.devices.cpu.simd.types import Type, i32, u8, u32
from corral.devices.cpu.simd.value import Value, concatenate, part, shuffle


def select(condition: Value, yes: Value | float, no: Value | float) -> Value:
    """Return `yes` in the lanes where `condition` holds, `no` elsewhere."""
    first, second = (yes, no) if isinstance(yes, Value) else (no, yes)
    if not isinstance(first, Value):
        raise TypeError("select() needs at least one value among its choices")
    other = first.like(second)
    a, b = (first, other) if isinstance(yes, Value) else (other, first)
    return a.kernel.emit(a.type, f"select {condition.typed}, {a.typed}, {b.typed}")


def minimum(a: Value, b: Value | float) -> Value:
    """Return the lesser of both; `b` where one of them is a NaN."""
    other = a.like(b)
    return select(a < other, a, other)


def maximum(a: Value, b: Value | float) -> Value:
    """Return the greater of both; `b` where one of them is a NaN."""
    other = a.like(b)
    return select(a > other, a, other)


def fma(a: Value, b: Value | float, c: Value | float) -> Value:
    """Return a × b + c, rounded once where the processor can (twice where it cannot)."""
    if isinstance(b, Value) and b.type.lanes and not a.type.lanes:
        a, b = b, a
    if isinstance(c, Value) and c.type.lanes and not a.type.lanes:
        a = c.like(a)
    x, y = a.like(b), a.like(c)
    if not a.kernel.target.fused:
        return a * x + y
    return a.kernel.intrinsic(f"llvm.fma.{a.type.mangled}", a.type, [a, x, y])


def absolute(a: Value) -> Value:
    """Return the magnitude."""
    if a.type.is_float:
        return a.kernel.intrinsic(f"llvm.fabs.{a.type.mangled}", a.type, [a])
    return select(a < 0, -a, a)


def sqrt(a: Value) -> Value:
    """Return the square root, rounded correctly."""
    return a.kernel.intrinsic(f"llvm.sqrt.{a.type.mangled}", a.type, [a])


def round_half_even(a: Value) -> Value:
    """Return the nearest whole number below 2²² in magnitude, ties to even, still as a float."""
    if a.kernel.target.fused:
        return a.kernel.intrinsic(f"llvm.roundeven.{a.type.mangled}", a.type, [a])
    return (a + _ROUND) - _ROUND  # without optimizations that reassociate, this rounds


_ROUND = 1.5 * 2.0**23
_LOG2_E = 1.44269504088896341
_LN2_HIGH = 0.693145751953125
_LN2_LOW = 1.42860682030941723e-6
_EXP_LEAST, _EXP_GREATEST = -87.3, 88.72
# e^r on |r| ≤ ln 2 / 2, highest power first: Taylor's, the last ones nudged for the interval.
_EXP = (1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0)


def exp(x: Value) -> Value:
    """Return e^x for F32 within 2 units of the last place.

    Results below the least normal number are 0, those above the greatest are infinite.
    """
    lanes = x.type.lanes
    clamped = select(x > _EXP_GREATEST, _EXP_GREATEST, select(x < _EXP_LEAST, _EXP_LEAST, x))
    shifted = fma(clamped, _LOG2_E, _ROUND)
    whole = shifted - _ROUND
    rest = fma(whole, -_LN2_LOW, fma(whole, -_LN2_HIGH, clamped))
    power = fma(rest, _EXP[0], _EXP[1])
    for coefficient in _EXP[2:]:
        power = fma(power, rest, coefficient)
    exponent = shifted.bits(u32.x(lanes)) << 23
    result = (power.bits(u32.x(lanes)) + exponent).bits(x.type)
    result = select(x < _EXP_LEAST, 0.0, result)
    return select(x > _EXP_GREATEST, float("inf"), result)


_LOOK_UPS = (
    (64, "llvm.x86.avx512.pshuf.b.512", "+avx512bw"),
    (32, "llvm.x86.avx2.pshuf.b", "+avx2"),
    (16, "llvm.x86.ssse3.pshuf.b.128", "+avx2"),
)


def look_up(table: Sequence[int], index: Value) -> Value:
    """Return table[i] for each i of a vector of u8 below 16; the table has 16 numbers."""
    lanes, target = index.type.lanes, index.kernel.target
    instructions = {size: name for size, name, needed in _LOOK_UPS if needed in target.features}
    if target.is_arm:
        instructions = {16: "llvm.aarch64.neon.tbl1.v16i8"}
    if lanes in instructions:
        numbers = [float(entry & 255) for entry in table] * (lanes // 16)
        entries = Value(index.kernel, index.type, u8.x(lanes).constant(numbers))
        return index.kernel.intrinsic(instructions[lanes], index.type, [entries, index])
    if lanes > 16:
        halves = [part(index, first, lanes // 2) for first in (0, lanes // 2)]
        return concatenate(look_up(table, halves[0]), look_up(table, halves[1]))
    result = index.like(table[0] & 255)
    for number, entry in enumerate(table[1:], 1):
        result = select(index.equals(number), entry & 255, result)
    return result


def _reduce(a: Value, combine: Callable[[Value, Value], Value]) -> Value:
    lanes = a.type.lanes
    while lanes > 1:
        lanes //= 2
        a = combine(shuffle(a, list(range(lanes))), shuffle(a, list(range(lanes, 2 * lanes))))
    return a[0]


def reduce_add(a: Value) -> Value:
    """Return the sum of the lanes (a power of two of them), halves added pairwise."""
    return _reduce(a, lambda x, y: x + y)


def reduce_maximum(a: Value) -> Value:
    """Return the greatest lane (of a power of two of them)."""
    return _reduce(a, maximum)


def first_lanes(count: Value, lanes: int) -> Value:
    """Return a mask that holds in the lanes below the i64 `count`."""
    kernel = count.kernel
    clamped = minimum(count, lanes)
    narrow = kernel.emit(i32, f"trunc {clamped.typed} to i32")
    numbers = Value(kernel, i32.x(lanes), i32.x(lanes).constant([float(n) for n in range(lanes)]))
    return numbers < narrow


def low_word(word: Value, of: Type) -> Value:
    """Return the low 32 bits of a 64-bit word as the 32-bit type `of` (F32 in records)."""
    return word.kernel.emit(u32, f"trunc {word.typed} to i32").bits(of)
