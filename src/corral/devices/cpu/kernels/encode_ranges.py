"""Q2_K, Q4_K and Q5_K: scale and minimum for each part, found as `fit_ranges` of `quant` does."""

from dataclasses import dataclass

from corral.devices.cpu.kernels.encode_parts import (
    FLOATS,
    Parts,
    clipped,
    halved,
    nearest,
    shares,
    spread,
    store_two_bits,
)
from corral.devices.cpu.simd import (
    Kernel,
    Value,
    Variable,
    absolute,
    convert,
    f32,
    i64,
    maximum,
    minimum,
    reduce_maximum,
    select,
    sqrt,
    u8,
)


@dataclass(frozen=True, slots=True)
class Ranges:
    """The candidates: `quant.search.Candidates` as numbers of a kernel."""

    most: int
    first: float
    step: float
    steps: int
    limit: int = 63
    """The greatest of the whole numbers that stand for scales and minima."""
    is_linear: bool = False
    """Whether an error counts as it is, and a value weighs as much as its magnitude."""


Q2_RANGES = Ranges(3, -0.5, 0.1, 15, limit=15, is_linear=True)
Q4_RANGES = Ranges(15, -1.0, 0.1, 20)
Q5_RANGES = Ranges(31, -0.5, 0.1, 15)


def encode_ranges(parts: Parts, out: list[Value], ranges: Ranges) -> None:
    """Search, and store the blocks."""
    k = parts.kernel
    least, greatest, sum_w, sum_x = _weigh(parts, ranges)
    search = _Search(parts, ranges, least, greatest, (sum_w, sum_x))
    with k.range(0, ranges.steps + 1) as number:
        numerator = k.constant(f32, ranges.first) + convert(number, f32) * ranges.step
        search.attempt(numerator + float(ranges.most))
    is_flat = greatest.equals(least)
    scale = select(is_flat, 0.0, search.scale.value)
    minimum_ = -select(is_flat, least, search.least.value)
    halves, step, base, packed = _shared(scale, minimum_, len(out), ranges.limit)
    inverse, start = search.inverse.value, search.start.value

    def code(values: Value) -> Value:
        rounded = nearest((values + base) / step)
        # A part whose step is nothing keeps the codes of its search, if that was any.
        kept = clipped(nearest((values - start) * inverse), 0, ranges.most)
        kept = select(is_flat, 0, kept)
        return select(step.equals(0.0), kept, clipped(rounded, 0, ranges.most))

    parts.store_codes(code)
    rows = parts.coded_rows()
    if ranges.most == 3:
        _store_two_bits(k, out[0], halves[0], packed[0], rows)
        return
    for n, address in enumerate(out):
        _store(k, address, halves[n], packed[n], rows[8 * n : 8 * n + 8], ranges.most)


def _weigh(parts: Parts, ranges: Ranges) -> tuple[Value, Value, Value, Value]:
    """Store the weights; return least and greatest values, Σ w and Σ w·x."""
    k = parts.kernel
    squares = k.variable(FLOATS)
    least, greatest = (k.variable(FLOATS, parts.value(k.constant(i64, 0))) for _ in range(2))
    with parts.each_column() as at:
        x = parts.value(at)
        squares.value = squares.value + x * x
        least.value = minimum(least.value, x)
        greatest.value = maximum(greatest.value, x)
    mean = sqrt(squares.value / float(parts.columns))
    sum_w, sum_x = k.variable(FLOATS), k.variable(FLOATS)
    with parts.each_column() as at:
        x = parts.value(at)
        w = absolute(x) if ranges.is_linear else mean + absolute(x)
        k.store(parts.weights + at, w)
        sum_w.value = sum_w.value + w
        sum_x.value = sum_x.value + w * x
    return minimum(least.value, 0.0), greatest.value, sum_w.value, sum_x.value


class _Search:
    """The best fit so far, and what its codes were made with: they are made again at the end."""

    def __init__(
        self,
        parts: Parts,
        ranges: Ranges,
        least: Value,
        greatest: Value,
        sums: tuple[Value, Value],
    ) -> None:
        k = parts.kernel
        self._parts, self._ranges, self._greatest, self._sums = parts, ranges, greatest, sums
        inverse = float(ranges.most) / (greatest - least)
        self.inverse, self.start = k.variable(FLOATS, inverse), k.variable(FLOATS, least)
        self.scale, self.least = k.variable(FLOATS, 1.0 / inverse), k.variable(FLOATS, least)
        self._error = k.variable(FLOATS)
        with parts.each_column() as at:
            x = parts.value(at)
            codes = self._codes(x, inverse, least)
            self._add_error(self._error, at, x, codes, (self.scale.value, least))

    def attempt(self, numerator: Value) -> None:
        """Try the codes of another range, and keep the fit in the lanes where it is better."""
        parts, k = self._parts, self._parts.kernel
        start = self.least.value
        inverse = numerator / (self._greatest - start)
        scale, least, is_fit = self._fit(inverse, start)
        error = k.variable(FLOATS)
        with parts.each_column() as at:
            codes = k.load(FLOATS, parts.codes + at)
            self._add_error(error, at, parts.value(at), codes, (scale, least))
        is_better = is_fit & (error.value < self._error.value)
        for best, found in (
            (self._error, error.value),
            (self.inverse, inverse),
            (self.start, start),
            (self.scale, scale),
            (self.least, least),
        ):
            best.value = select(is_better, found, best.value)

    def _fit(self, inverse: Value, start: Value) -> tuple[Value, Value, Value]:
        """Store codes; return the scale and minimum that fit them best, and whether any do."""
        parts, k = self._parts, self._parts.kernel
        sum_l, sum_l2, sum_xl = (k.variable(FLOATS) for _ in range(3))
        with parts.each_column() as at:
            x = parts.value(at)
            codes = self._codes(x, inverse, start)
            k.store(parts.codes + at, codes)
            weighted = parts.weight(at) * codes
            sum_l.value = sum_l.value + weighted
            sum_l2.value = sum_l2.value + weighted * codes
            sum_xl.value = sum_xl.value + weighted * x
        (w, x), l1, l2, xl = self._sums, sum_l.value, sum_l2.value, sum_xl.value
        divisor = w * l2 - l1 * l1
        scale, least = (w * xl - x * l1) / divisor, (l2 * x - l1 * xl) / divisor
        is_above = least > 0.0
        scale = select(is_above, xl / l2, scale)
        return scale, select(is_above, 0.0, least), divisor > 0.0

    def _codes(self, x: Value, inverse: Value, start: Value) -> Value:
        return convert(clipped(nearest((x - start) * inverse), 0, self._ranges.most), f32)

    def _add_error(
        self, total: Variable, at: Value, x: Value, codes: Value, fit: tuple[Value, Value]
    ) -> None:
        scale, least = fit
        apart = codes * scale + least - x
        counted = absolute(apart) if self._ranges.is_linear else apart * apart
        total.value = total.value + self._parts.weight(at) * counted


def _shared(
    scale: Value, minimum_: Value, blocks: int, limit: int
) -> tuple[list[tuple[Value, Value]], Value, Value, list[tuple[Value, Value]]]:
    """Split the scales and minima of 16 parts into two F16 a block and whole numbers a part.

    Returns the F16 of each block, the steps and bases of the parts, and their numbers.
    """
    halves, wide, bits = [], [], []
    for values in (scale, minimum_):
        greatest = [maximum(reduce_maximum(each), 0.0) for each in shares(values, blocks)]
        inverse = spread([select(g > 0.0, float(limit) / g, 0.0) for g in greatest])
        whole = minimum(nearest(inverse * values) & 255, limit)
        stored = [halved(g / float(limit)) for g in greatest]
        halves.append([half for half, _ in stored])
        wide.append(spread([left for _, left in stored]) * convert(whole, f32))
        bits.append(shares(convert(whole, u8), blocks))
    (scales, minima), (step, base), (scale_bits, minimum_bits) = halves, wide, bits
    pairs = list(zip(scales, minima, strict=True))
    return pairs, step, base, list(zip(scale_bits, minimum_bits, strict=True))


def _store(
    k: Kernel,
    out: Value,
    halves: tuple[Value, Value],
    packed: tuple[Value, Value],
    rows: list[Value],
    most: int,
) -> None:
    """Store a block: two F16, 12 bytes of scales and minima, perhaps the tops, and nibbles."""
    for n, half in enumerate(halves):
        k.store(out + 2 * n, half)
    low, high = zip(*(shares(each, 2) for each in packed), strict=True)
    for n in range(2):
        k.store(out + 4 + 4 * n, low[n] | ((high[n] >> 4) << 6))
    k.store(out + 12, (high[0] & 15) | ((high[1] & 15) << 4))
    at = out + 16
    if most > 15:
        tops = rows[0] >> 4
        for n, row in enumerate(rows[1:], 1):
            tops = tops | ((row >> 4) << n)
        k.store(at, tops)
        at = at + 32
    for n in range(4):
        k.store(at + 32 * n, (rows[2 * n] & 15) | (rows[2 * n + 1] << 4))


def _store_two_bits(
    k: Kernel,
    out: Value,
    halves: tuple[Value, Value],
    packed: tuple[Value, Value],
    rows: list[Value],
) -> None:
    """Store a block of Q2_K: scales and minima, codes, two F16."""
    scales, minima = packed
    k.store(out, scales | (minima << 4))
    store_two_bits(k, out + 16, rows)
    for n, half in enumerate(halves):
        k.store(out + 80 + 2 * n, half)
