"""Q6_K: a signed scale for each 16 columns, found as `fit_scales` of `quant` does."""

from corral.devices.cpu.kernels.encode_parts import (
    FLOATS,
    LANES,
    Parts,
    clipped,
    halved,
    nearest,
    runs_of_32,
    spread,
)
from corral.devices.cpu.simd import (
    Kernel,
    Value,
    absolute,
    convert,
    f32,
    i8,
    minimum,
    select,
)

_MOST = 32
_TRIALS = 9
LEAST_MAGNITUDE = 1e-15
"""Parts whose values are all smaller count as zero."""


def encode_scales(parts: Parts, out: list[Value]) -> None:
    """Search, and store one block."""
    k = parts.kernel
    widest = weigh(parts)
    is_zero = absolute(widest) < LEAST_MAGNITUDE
    scale, inverse = _search(parts, widest)
    scale = select(is_zero, 0.0, scale)
    block_scale = first_widest(scale)
    is_nothing = absolute(block_scale) < LEAST_MAGNITUDE
    block_inverse = select(is_nothing, 0.0, -128.0 / block_scale)
    half, stored = halved(select(is_nothing, 0.0, 1.0 / block_inverse))
    whole = minimum(nearest(scale * spread([block_inverse])), 127)
    step = spread([stored]) * convert(whole, f32)
    is_kept = step.equals(0.0)

    def code(values: Value) -> Value:
        rounded = _signed(values / step)
        # A part whose step is nothing keeps the codes of its search, if that was any.
        kept = select(is_zero, -_MOST, _signed(values * inverse))
        found = select(is_kept, kept, rounded) + _MOST
        return select(is_nothing, 0, found)

    parts.store_codes(code)
    _store(k, out[0], half, convert(whole, i8), parts.coded_rows())


def _signed(values: Value) -> Value:
    return clipped(nearest(values), -_MOST, _MOST - 1)


def weigh(parts: Parts) -> Value:
    """Store the weights; return the first of the values of greatest magnitude."""
    k = parts.kernel
    widest, magnitude = k.variable(FLOATS), k.variable(FLOATS, -1.0)
    with parts.each_column() as at:
        x = parts.value(at)
        k.store(parts.weights + at, x * x)
        is_wider = absolute(x) > magnitude.value
        widest.value = select(is_wider, x, widest.value)
        magnitude.value = select(is_wider, absolute(x), magnitude.value)
    return widest.value


def _search(parts: Parts, widest: Value) -> tuple[Value, Value]:
    """Return the best scale of each part, and the inverse of the one that made its codes."""
    k = parts.kernel
    inverse = k.variable(FLOATS, float(-_MOST) / widest)
    sum_xl, sum_l2 = _moments(parts, inverse.value)
    scale = k.variable(FLOATS, select(sum_l2.differs(0.0), sum_xl / sum_l2, 0.0))
    best = k.variable(FLOATS, scale.value * sum_xl)
    with k.range(-_TRIALS, _TRIALS + 1) as trial, k.when(trial.differs(0)):
        tried = -(convert(trial, f32) * 0.1 + float(_MOST)) / widest
        sum_xl, sum_l2 = _moments(parts, tried)
        is_better = (sum_l2 > 0.0) & (sum_xl * sum_xl > best.value * sum_l2)
        fitting = sum_xl / sum_l2
        for variable, found in ((inverse, tried), (scale, fitting), (best, fitting * sum_xl)):
            variable.value = select(is_better, found, variable.value)
    return scale.value, inverse.value


def _moments(parts: Parts, inverse: Value) -> tuple[Value, Value]:
    """Return Σ w·x·l and Σ w·l² of the codes that a scale's inverse makes."""
    k = parts.kernel
    sum_xl, sum_l2 = k.variable(FLOATS), k.variable(FLOATS)
    with parts.each_column() as at:
        x, w = parts.value(at), parts.weight(at)
        codes = convert(_signed(x * inverse), f32)
        sum_xl.value = sum_xl.value + w * x * codes
        sum_l2.value = sum_l2.value + w * codes * codes
    return sum_xl.value, sum_l2.value


def first_widest(values: Value) -> Value:
    """Return the first of the lanes of greatest magnitude."""
    widest = values[0]
    for lane in range(1, LANES):
        each = values[lane]
        widest = select(absolute(each) > absolute(widest), each, widest)
    return widest


def _store(k: Kernel, out: Value, half: Value, sub_scales: Value, rows: list[Value]) -> None:
    """Store a block: low halves, tops, scales of the parts, F16."""
    runs = runs_of_32(rows)
    for n in range(2):
        four = runs[4 * n : 4 * n + 4]
        for side in range(2):
            low = (four[side] & 15) | (four[side + 2] << 4)
            k.store(out + 64 * n + 32 * side, low)
        tops = [(run >> 4) << (2 * m) for m, run in enumerate(four)]
        k.store(out + 128 + 32 * n, tops[0] | tops[1] | tops[2] | tops[3])
    k.store(out + 192, sub_scales)
    k.store(out + 208, half)
