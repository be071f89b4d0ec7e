"""Rotary positions: the cosines and sines of a batch, and turning heads by them."""

from collections.abc import Iterator

from corral.devices.cpu.kernels.columns import shared_runs
from corral.devices.cpu.simd import (
    Kernel,
    Value,
    convert,
    f32,
    f64,
    fma,
    i32,
    i64,
    low_word,
    part,
    shuffle,
)
from corral.devices.cpu.simd.functions import cosine_and_sine
from corral.tensor.ops import RopePairs

ROTATIONS_FIELDS = (
    "positions", "count", "frequencies", "factors", "out", "out_stride", "pairs", "magnitude",
)  # fmt: skip
"""Addresses of i32 positions, the i64 row count, F64 frequencies, F32 factors (any word if there
are none) and F32 rows of cosines, then sines; bytes from a row to the next; how many of each; an
F32 factor of all of them."""

ROPE_FIELDS = (
    "x", "count", "rotations", "out", "x_stride", "rotations_stride", "out_stride", "heads",
)  # fmt: skip
"""Addresses of F32 rows, the i64 row count, the rotations of each row and the result, which may be
x; bytes from a row to the next; heads of a row."""

_DOUBLES = 8


def rotations(
    k: Kernel, record: Value, thread: Value, threads: Value, *, has_factors: bool
) -> None:
    """Write the cosines, then the sines, of position · frequency / factor, computed in F64."""
    a = k.fields(record, ROTATIONS_FIELDS)
    first, last = k.split(k.load(i64, a.count), thread, threads)
    magnitude = convert(low_word(a.magnitude, f32), f64)
    with k.range(first, last) as row:
        position = convert(k.load(i32, a.positions + row * 4), f64)
        cosines = a.out + row * a.out_stride
        with k.range(0, a.pairs, _DOUBLES) as pair:
            rest = a.pairs - pair
            angle = k.load_first(f64.x(_DOUBLES), a.frequencies + pair * 8, rest) * position
            if has_factors:
                factor = k.load_first(f32.x(_DOUBLES), a.factors + pair * 4, rest)
                angle = angle / convert(factor, f64)
            for n, value in enumerate(cosine_and_sine(angle)):
                at = cosines + (a.pairs * n + pair) * 4
                k.store_first(at, convert(value * magnitude, f32), rest)


def rope(
    k: Kernel,
    record: Value,
    thread: Value,
    threads: Value,
    *,
    head_dim: int,
    turned: int,
    pairs: str,
) -> None:
    """Turn the first `turned` dimensions of each head and copy the others.

    `pairs` is a name of `RopePairs`.
    """
    a = k.fields(record, ROPE_FIELDS)
    count, head_bytes = k.load(i64, a.count), 4 * head_dim
    turn = _turn_halves if RopePairs[pairs] is RopePairs.HALVES else _turn_neighbours
    with shared_runs(k, count, a.heads, thread, threads) as (row, first, last):
        turns = a.rotations + row * a.rotations_stride
        with k.range(first, last) as head:
            x = a.x + row * a.x_stride + head * head_bytes
            out = a.out + row * a.out_stride + head * head_bytes
            for start, lanes in _vectors(turned // 2):
                cosine = k.load(f32.x(lanes), turns + 4 * start)
                sine = k.load(f32.x(lanes), turns + 4 * (start + turned // 2))
                places = (start, turned // 2)
                turn(k, (x, out), places, (cosine, sine))
            for start, lanes in _vectors(head_dim - turned):
                at = 4 * (turned + start)
                k.store(out + at, k.load(f32.x(lanes), x + at))


def _vectors(columns: int) -> Iterator[tuple[int, int]]:
    """Cut columns into vectors of 16, then of smaller powers of two: (first, lanes)."""
    start = 0
    for lanes in (16, 8, 4, 2, 1):
        while columns - start >= lanes:
            yield start, lanes
            start += lanes


Pair = tuple[Value, Value]


def _turn_halves(k: Kernel, rows: Pair, places: tuple[int, int], turn: Pair) -> None:
    (x, out), (start, half), vector = rows, places, turn[0].type
    offsets = 4 * start, 4 * (start + half)
    turned = _turned(k.load(vector, x + offsets[0]), k.load(vector, x + offsets[1]), turn)
    for offset, value in zip(offsets, turned, strict=True):
        k.store(out + offset, value)


def _turn_neighbours(k: Kernel, rows: Pair, places: tuple[int, int], turn: Pair) -> None:
    (x, out), (start, _), lanes = rows, places, turn[0].type.lanes
    both = k.load(f32.x(2 * lanes), x + 8 * start)
    even, odd = (shuffle(both, list(range(n, 2 * lanes, 2))) for n in (0, 1))
    even, odd = _turned(even, odd, turn)
    mixed = shuffle(even, [n // 2 + n % 2 * lanes for n in range(2 * lanes)], odd)
    for n in (0, 1):
        k.store(out + (8 * start + 4 * lanes * n), part(mixed, n * lanes, lanes))


def _turned(one: Value, two: Value, turn: Pair) -> Pair:
    cosine, sine = turn
    return fma(one, cosine, -(two * sine)), fma(two, cosine, one * sine)
