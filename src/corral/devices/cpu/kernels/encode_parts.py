"""Sixteen parts of blocks on their way from F32 to codes: a part is a lane, a column a vector."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from corral.devices.cpu.simd import (
    Kernel,
    Value,
    concatenate,
    convert,
    f16,
    f32,
    i32,
    maximum,
    minimum,
    part,
    shuffle,
    u8,
)

LANES = 16
FLOATS = f32.x(LANES)
BYTES = u8.x(LANES)
TILE_BYTES = 32 * FLOATS.bytes
"""Of a tile of the stack: a vector for each of up to 32 columns."""

_SHIFT = 12_582_912.0  # 1.5 × 2²³: what is added to it loses its fraction


@dataclass(frozen=True, slots=True)
class Parts:
    """Sixteen parts of 16 or 32 columns in tiles of the stack."""

    kernel: Kernel
    columns: int
    values: Value
    """Address of the values, column by column."""
    weights: Value
    """Address of what each of them weighs."""
    codes: Value
    """Address for codes: F32 while they are tried, bytes at the end."""

    def load(self, blocks: list[Value]) -> None:
        """Fetch the values of blocks at addresses, turned."""
        k = self.kernel
        parts_each = LANES // len(blocks)
        for first in range(0, self.columns, LANES):
            rows = [
                k.load(FLOATS, block + 4 * (self.columns * n + first))
                for block in blocks
                for n in range(parts_each)
            ]
            for column, vector in enumerate(turned(rows), first):
                k.store(self.values + column * FLOATS.bytes, vector)

    @contextmanager
    def each_column(self) -> Iterator[Value]:
        """Run the body for each column with the offset of its vector in the tiles."""
        with self.kernel.range(0, self.columns) as column:
            yield column * FLOATS.bytes

    def value(self, at: Value) -> Value:
        """Return the values of a column."""
        return self.kernel.load(FLOATS, self.values + at)

    def weight(self, at: Value) -> Value:
        """Return the weights of a column."""
        return self.kernel.load(FLOATS, self.weights + at)

    def store_codes(self, code: Callable[[Value], Value]) -> None:
        """Store the bytes that `code` makes of each column's values."""
        k = self.kernel
        with k.range(0, self.columns) as column:
            whole = code(self.value(column * FLOATS.bytes))
            k.store(self.codes + column * BYTES.bytes, convert(whole, u8))

    def coded_rows(self) -> list[Value]:
        """Return the bytes of each part: a vector of all its columns."""
        k, halves = self.kernel, []
        for first in range(0, self.columns, LANES):
            at = self.codes + first * BYTES.bytes
            halves.append(turned([k.load(BYTES, at + n * BYTES.bytes) for n in range(LANES)]))
        if len(halves) == 1:
            return halves[0]
        return [concatenate(low, high) for low, high in zip(*halves, strict=True)]


def turned(rows: list[Value]) -> list[Value]:
    """Return the columns of a square of vectors, as many as each has lanes."""
    size = len(rows)
    step = size // 2
    while step:
        # Exchange the upper right and the lower left quarter of all squares of 2 × step.
        low = [n if n & step == 0 else size + n - step for n in range(size)]
        high = [n + step if n & step == 0 else size + n for n in range(size)]
        for n in [n for n in range(size) if n & step == 0]:
            a, b = rows[n], rows[n + step]
            rows[n], rows[n + step] = shuffle(a, low, b), shuffle(a, high, b)
        step //= 2
    return rows


def nearest(values: Value) -> Value:
    """Return the nearest whole numbers as i32; beyond 2²² the nonsense of `quant/search.py`."""
    return ((values + _SHIFT).bits(i32.x(values.type.lanes)) & 0x7FFFFF) - 0x400000


def clipped(whole: Value, least: int, most: int) -> Value:
    """Return whole numbers within bounds."""
    return maximum(minimum(whole, most), least)


def halved(value: Value) -> tuple[Value, Value]:
    """Return an F32 as an F16, and what is left of it."""
    half = convert(value, f16)
    return half, convert(half, f32)


def spread(scalars: list[Value]) -> Value:
    """Return a vector in which every scalar fills its share of the lanes."""
    vectors = [FLOATS.element.x(LANES // len(scalars)) for _ in scalars]
    kernel = scalars[0].kernel
    filled = [
        Value(kernel, of, of.constant(0)).like(scalar)
        for of, scalar in zip(vectors, scalars, strict=True)
    ]
    return filled[0] if len(filled) == 1 else concatenate(*filled)


def shares(vector: Value, count: int) -> list[Value]:
    """Return a vector cut in `count` equal parts."""
    lanes = vector.type.lanes // count
    return [part(vector, n * lanes, lanes) for n in range(count)]


def runs_of_32(rows: list[Value]) -> list[Value]:
    """Return the bytes of parts of 16 columns by 32 columns."""
    return [concatenate(rows[n], rows[n + 1]) for n in range(0, len(rows), 2)]


def store_two_bits(k: Kernel, at: Value, rows: list[Value]) -> None:
    """Store codes of two bits: four runs of 32 columns a byte."""
    runs = runs_of_32(rows)
    for n in range(2):
        low = [(run & 3) << (2 * m) for m, run in enumerate(runs[4 * n : 4 * n + 4])]
        k.store(at + 32 * n, low[0] | low[1] | low[2] | low[3])
