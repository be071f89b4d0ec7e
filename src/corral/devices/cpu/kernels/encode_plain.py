"""Types with one obvious rounding: F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1.

The bytes are those of `quant/legacy.py`. A block is two vectors of 16 columns, or, of a type
without blocks, each value is one.
"""

from corral.devices.cpu.kernels.columns import LANES, VECTOR, Columns, each_vector
from corral.devices.cpu.simd import (
    Kernel,
    Value,
    absolute,
    bf16,
    convert,
    f16,
    f32,
    i8,
    i32,
    maximum,
    minimum,
    reduce_maximum,
    select,
    u8,
    u16,
    u32,
)
from corral.quant.types import DType

_FLOATS = {DType.F16: f16, DType.BF16: bf16}
_ZERO = {DType.Q4_0: 8, DType.Q5_0: 16}
_MOST = {DType.Q4_1: 15, DType.Q5_1: 31}
_HALF_GREATEST = 65504.0

PLAIN = {
    DType.F16: _HALF_GREATEST,
    DType.BF16: 3e38,
    DType.Q8_0: 127 * _HALF_GREATEST,
    DType.Q4_0: 8 * _HALF_GREATEST,
    DType.Q5_0: 16 * _HALF_GREATEST,
    DType.Q4_1: _HALF_GREATEST,
    DType.Q5_1: _HALF_GREATEST,
}
"""The types, and the magnitude up to which F16 certainly holds what a block needs."""


def encode_floats(
    k: Kernel, values: Value, out: Value, share: tuple[Value, Value], of: DType
) -> None:
    """Round the values of a share to a floating-point type."""
    kind = _FLOATS[of]

    def round_some(columns: Columns) -> None:
        rounded = convert(columns.load(values), kind)
        at = out + columns.first * kind.bytes
        if columns.rest is None:
            k.store(at, rounded)
        else:
            k.store_first(at, rounded.bits(u16.x(LANES)), columns.rest)

    each_vector(k, *share, round_some)


def encode_block(k: Kernel, values: Value, out: Value, of: DType) -> None:
    """Encode 32 values."""
    columns = [k.load(VECTOR, values + 4 * LANES * n) for n in range(2)]
    if of is DType.Q8_0:
        _encode_bytes(k, columns, out)
    elif of in _ZERO:
        _encode_symmetric(k, columns, out, _ZERO[of])
    else:
        _encode_range(k, columns, out, _MOST[of])


def _encode_bytes(k: Kernel, columns: list[Value], out: Value) -> None:
    greatest = reduce_maximum(maximum(absolute(columns[0]), absolute(columns[1])))
    scale = greatest / 127.0
    inverse = _inverse(scale)
    inverse = select(_is_finite(inverse), inverse, 0.0)
    k.store(out, convert(scale, f16))
    for n, x in enumerate(columns):
        exact = x * inverse
        whole = convert(exact, i32)
        is_half = absolute(exact - convert(whole, f32)) >= 0.5
        away = select(exact < 0.0, -1, whole * 0 + 1)
        k.store(out + 2 + LANES * n, convert(whole + select(is_half, away, 0), i8))


def _encode_symmetric(k: Kernel, columns: list[Value], out: Value, zero: int) -> None:
    sizes = [absolute(x) for x in columns]
    greatest = reduce_maximum(maximum(*sizes))
    is_negative = _first_sign(k, columns, [size.equals(greatest) for size in sizes])
    widest = select(is_negative, -greatest, greatest) + 0.0  # not −0, whose sign would show
    scale = widest / float(-zero)
    codes = _rounded(columns, scale, zero + 0.5, 2 * zero - 1)
    k.store(out, convert(scale, f16))
    _store_codes(k, out + 2, codes, 2 * zero - 1)


def _encode_range(k: Kernel, columns: list[Value], out: Value, most: int) -> None:
    greatest = _first(k, columns, reduce_maximum(maximum(*columns)))
    least = _first(k, columns, -reduce_maximum(maximum(-columns[0], -columns[1])))
    scale = (greatest - least) / float(most)
    codes = _rounded([x - least for x in columns], scale, 0.5, most)
    k.store(out, convert(scale, f16))
    k.store(out + 2, convert(least, f16))
    _store_codes(k, out + 4, codes, most)


def _rounded(columns: list[Value], scale: Value, more: float, most: int) -> list[Value]:
    """Return the whole parts of value / scale + more; all 0 where 1 / scale is beyond F32."""
    inverse = _inverse(scale)
    is_usable = _is_finite(inverse)
    factor = select(is_usable, inverse, 0.0)
    codes = [minimum(convert(x * factor + more, i32), most) for x in columns]
    return [convert(select(is_usable, each, 0), u8) for each in codes]


def _inverse(scale: Value) -> Value:
    return select(scale.equals(0.0), 0.0, 1.0 / scale)


def _is_finite(value: Value) -> Value:
    return absolute(value) < float("inf")


def _first(k: Kernel, columns: list[Value], value: Value) -> Value:
    """Return the first element that equals `value`: of zeros, the one with its sign."""
    is_negative = _first_sign(k, columns, [x.equals(value) for x in columns])
    return select(value.equals(0.0), select(is_negative, k.constant(f32, -0.0), 0.0), value)


def _first_sign(k: Kernel, columns: list[Value], where: list[Value]) -> Value:
    """Whether the first of the elements where a condition holds has its sign bit set."""
    numbers = []
    for n, (x, holds) in enumerate(zip(columns, where, strict=True)):
        order = [-2.0 * (n * LANES + lane) for lane in range(LANES)]
        signs = _signs(x)
        numbers.append(select(holds, k.constant(i32.x(LANES), order) - signs, -1000))
    return (reduce_maximum(maximum(*numbers)) & 1).differs(0)


def _signs(x: Value) -> Value:
    """Return 1 where the sign bit is set, else 0."""
    return (x.bits(u32.x(LANES)) >> 31).bits(i32.x(LANES))


def _store_codes(k: Kernel, at: Value, codes: list[Value], most: int) -> None:
    """Store codes of 4 bits, or of 5 with their tops before them."""
    if most > 15:
        for n, each in enumerate(codes):
            k.store(at + 2 * n, (each > 15).bits(u16))
        at = at + 4
    low, high = (each & 15 for each in codes)
    k.store(at, low | (high << 4))
