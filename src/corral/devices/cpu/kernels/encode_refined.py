"""Q3_K: a signed scale for each 16 columns, found as `fit_refined` of `quant` does."""

from corral.devices.cpu.kernels.encode_parts import (
    BYTES,
    FLOATS,
    Parts,
    clipped,
    halved,
    nearest,
    runs_of_32,
    shares,
    spread,
    store_two_bits,
)
from corral.devices.cpu.kernels.encode_scales import LEAST_MAGNITUDE, first_widest, weigh
from corral.devices.cpu.simd import (
    Kernel,
    Value,
    Variable,
    absolute,
    convert,
    f32,
    i32,
    select,
    u8,
)

_MOST = 4
_REFINEMENTS = 5


def encode_refined(parts: Parts, out: list[Value]) -> None:
    """Fit, and store one block."""
    k = parts.kernel
    widest = weigh(parts)
    is_zero = absolute(widest) < LEAST_MAGNITUDE
    sums = k.variable(FLOATS), k.variable(FLOATS)
    _begin(parts, sums, float(-_MOST) / widest)
    with k.range(0, _REFINEMENTS), parts.each_column() as at:
        _refine(parts, sums, at)
    sum_xl, sum_l2 = (each.value for each in sums)
    scale = select(is_zero, 0.0, select(sum_l2 > 0.0, sum_xl / sum_l2, 0.0))
    block_scale = first_widest(scale)
    is_nothing = block_scale.equals(0.0)
    inverse = select(is_nothing, 0.0, -32.0 / block_scale)
    half, stored = halved(select(is_nothing, 0.0, 1.0 / inverse))
    whole = clipped(nearest(scale * spread([inverse])), -32, 31)
    whole = select(is_nothing, -32, whole)
    step = spread([stored]) * convert(whole, f32)
    _store_codes(parts, step, is_zero)
    _store(k, out[0], half, convert(whole + 32, u8), parts.coded_rows())


def _begin(parts: Parts, sums: tuple[Variable, Variable], inverse: Value) -> None:
    """Store the codes of the widest range, and add up what they are worth."""
    k, (sum_xl, sum_l2) = parts.kernel, sums
    with parts.each_column() as at:
        x, w = parts.value(at), parts.weight(at)
        codes = _signed(x * inverse)
        k.store(parts.codes + at, codes)
        sum_xl.value = sum_xl.value + w * x * codes
        sum_l2.value = sum_l2.value + w * codes * codes


def _refine(parts: Parts, sums: tuple[Variable, Variable], at: Value) -> None:
    """Change the codes of a column in the lanes where others fit better."""
    k = parts.kernel
    x, w, code = parts.value(at), parts.weight(at), k.load(FLOATS, parts.codes + at)
    sum_xl, sum_l2 = (each.value for each in sums)
    rest_xl, rest_l2 = sum_xl - w * x * code, sum_l2 - w * code * code
    new = _signed(x * rest_l2 / rest_xl)
    new_xl, new_l2 = rest_xl + w * x * new, rest_l2 + w * new * new
    is_better = (rest_xl > 0.0) & new.differs(code) & (new_l2 > 0.0)
    is_better = is_better & (new_xl * new_xl * sum_l2 > sum_xl * sum_xl * new_l2)
    k.store(parts.codes + at, select(is_better, new, code))
    for total, found in zip(sums, (new_xl, new_l2), strict=True):
        total.value = select(is_better, found, total.value)


def _signed(values: Value) -> Value:
    return convert(clipped(nearest(values), -_MOST, _MOST - 1), f32)


def _store_codes(parts: Parts, step: Value, is_zero: Value) -> None:
    """Store the bytes of codes in the tile in which they were refined, each after it was read."""
    k = parts.kernel
    with k.range(0, parts.columns) as column:
        at = column * FLOATS.bytes
        rounded = clipped(nearest(parts.value(at) / step), -_MOST, _MOST - 1) + _MOST
        kept = convert(k.load(FLOATS, parts.codes + at), i32) + _MOST
        kept = select(is_zero, 0, kept)
        codes = select(step.equals(0.0), kept, rounded)
        k.store(parts.codes + column * BYTES.bytes, convert(codes, u8))


def _store(k: Kernel, out: Value, half: Value, scales: Value, rows: list[Value]) -> None:
    """Store a block: tops, low bits, 12 bytes of scales, F16."""
    tops = [(run >> 2) << n for n, run in enumerate(runs_of_32(rows))]
    total = tops[0]
    for top in tops[1:]:
        total = total | top
    k.store(out, total)
    store_two_bits(k, out + 32, rows)
    low, high = shares(scales, 2)
    k.store(out + 96, (low & 15) | ((high & 15) << 4))
    four = [(each >> 4) << (2 * n) for n, each in enumerate(shares(scales, 4))]
    k.store(out + 104, four[0] | four[1] | four[2] | four[3])
    k.store(out + 108, half)
