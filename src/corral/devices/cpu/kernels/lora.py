"""What adapters add to products: A · x for the rows that have some, then B · (A · x).

Both walk over the spans of the batch: rows that one adapter counts for, with one scale. The rank is
padded to units of 8, with zeros. Threads share units × tiles of rows of A, and columns of the
result of B, never a sum: a row has the same bits whatever runs beside it.

    A  for each unit: F16 (columns of x, 8)             B  for each 16 rows of it: F16 (ranks, 16)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from corral.devices.cpu.simd import (
    Fields,
    Kernel,
    Value,
    convert,
    f16,
    f32,
    fma,
    i32,
    i64,
    low_word,
    splat,
)
from corral.tensor.attach import ADAPTER_WORDS, LANES, SPAN_WORDS, UNIT_RANKS

DOWN_FIELDS = ("x", "out", "x_stride", "out_stride", "columns", "spans", "adapters")
"""Addresses of F32 rows and of the result; bytes from a row to the next; columns of x; addresses of
the spans and of the weight's table (`tensor/attach.py`)."""
UP_FIELDS = ("y", "down", "y_stride", "down_stride", "columns", "spans", "adapters")
"""As DOWN_FIELDS, with rows `y` that are added to, and what LORA_DOWN gave; columns of y."""

_TILE = 4
"""Rows that share what is read of an adapter."""
_HALF_BYTES = 2
_CHAINS = 2
"""Sums that run side by side."""


@dataclass(frozen=True, slots=True)
class _Span:
    """A span, and its adapter's part for one weight."""

    number: Value
    first: Value
    end: Value
    unit: Value
    scale: Value
    a: Value
    b: Value
    units: Value


@contextmanager
def _each_span(k: Kernel, spans: Value, adapters: Value) -> Iterator[_Span]:
    """Run the body for every span whose adapter changes the weight."""
    with k.range(0, convert(k.load(i32, spans), i64)) as number:
        at = spans + (number + 1) * (4 * SPAN_WORDS)
        first, end, slot, unit = (convert(k.load(i32, at + 4 * word), i64) for word in range(4))
        table = adapters + slot * (8 * ADAPTER_WORDS)
        a, b, units, factor = (k.load(i64, table + 8 * word) for word in range(ADAPTER_WORDS))
        scale = k.load(f32, at + 16) * low_word(factor, f32)
        with k.when(units > 0):
            yield _Span(number, first, end, unit, scale, a, b, units)


def lora_down(k: Kernel, record: Value, thread: Value, threads: Value) -> None:
    """Write A · x of the rows that have adapters; others are left alone."""
    a = k.fields(record, DOWN_FIELDS)
    with _each_span(k, a.spans, a.adapters) as span:
        tiles = (span.end - span.first + (_TILE - 1)) // _TILE
        # The shares of spans begin with another thread each: one may have as many as one unit.
        share = (thread + span.number) % threads
        first, last = k.split(span.units * tiles, share, threads)
        with k.range(first, last) as item:
            unit, row = item // tiles, span.first + item % tiles * _TILE
            with k.branch(span.end - row >= _TILE) as (whole, rest):
                with whole:
                    _down(k, a, span, unit, row, _TILE)
                with rest, k.range(row, span.end) as lone:
                    _down(k, a, span, unit, lone, 1)


def _down(k: Kernel, a: Fields, span: _Span, unit: Value, row: Value, size: int) -> None:
    weights = span.a + unit * (a.columns * (UNIT_RANKS * _HALF_BYTES))
    x = a.x + row * a.x_stride
    totals = [[k.variable(f32.x(UNIT_RANKS), 0.0) for _ in range(_CHAINS)] for _ in range(size)]

    def add(column: Value, chain: int) -> None:
        halves = k.load(f16.x(UNIT_RANKS), weights + column * (UNIT_RANKS * _HALF_BYTES))
        ranks = convert(halves, f32)
        for t in range(size):
            activation = k.broadcast(f32.x(UNIT_RANKS), x + a.x_stride * t + column * 4)
            total = totals[t][chain]
            total.value = fma(ranks, activation, total.value)

    even = a.columns - a.columns % _CHAINS
    with k.range(0, even, _CHAINS) as column:
        for chain in range(_CHAINS):
            add(column + chain, chain)
    with k.range(even, a.columns) as column:
        add(column, 0)
    out = a.out + row * a.out_stride + (span.unit + unit) * (4 * UNIT_RANKS)
    for t, (evens, odds) in enumerate(totals):
        k.store(out + a.out_stride * t, evens.value + odds.value)


def lora_up(k: Kernel, record: Value, thread: Value, threads: Value) -> None:
    """Add B · (A · x), times the scale, to the rows that have adapters."""
    a = k.fields(record, UP_FIELDS)
    first, last = k.split((a.columns + (LANES - 1)) // LANES, thread, threads)
    with _each_span(k, a.spans, a.adapters) as span:
        tiles_end = span.end - (span.end - span.first) % _TILE
        with k.range(first, last) as block:
            with k.range(span.first, tiles_end, _TILE) as row:
                _up(k, a, span, block, row, _TILE)
            with k.range(tiles_end, span.end) as row:
                _up(k, a, span, block, row, 1)


def _up(k: Kernel, a: Fields, span: _Span, block: Value, row: Value, size: int) -> None:
    weights = span.b + block * (span.units * (UNIT_RANKS * LANES * _HALF_BYTES))
    down = a.down + row * a.down_stride + span.unit * (4 * UNIT_RANKS)
    totals = [[k.variable(f32.x(LANES), 0.0) for _ in range(_CHAINS)] for _ in range(size)]
    with k.range(0, span.units) as unit:
        for n in range(UNIT_RANKS):
            rank = unit * UNIT_RANKS + n
            halves = k.load(f16.x(LANES), weights + rank * (LANES * _HALF_BYTES))
            column = convert(halves, f32)
            for t in range(size):
                value = k.broadcast(f32.x(LANES), down + a.down_stride * t + rank * 4)
                total = totals[t][n % _CHAINS]
                total.value = fma(column, value, total.value)
    scale = splat(span.scale, LANES)
    for t, (evens, odds) in enumerate(totals):
        y = a.y + (row + t) * a.y_stride + block * (4 * LANES)
        count = a.columns - block * LANES
        before = k.load_first(f32.x(LANES), y, count)
        k.store_first(y, fma(evens.value + odds.value, scale, before), count)
