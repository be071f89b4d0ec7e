"""Attention of a few queries to the blocks of one sequence, a block after the other.

A tile holds queries (rows × query heads) that share one kv head. For each query the order of
arithmetic is fixed: blocks in order, dimensions in order within a score, tokens in order within a
sum. So a query's result does not depend on the tile it is in, and masked tokens change nothing:
their weight is 0 and a query that sees none of a block keeps its sums bit by bit.

It knows addresses of parts, and neither tables nor threads.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from corral.devices.cpu.features import Target
from corral.devices.cpu.kernels.attention_sums import LEAST, Sums, Total
from corral.devices.cpu.kernels.columns import LANES, VECTOR
from corral.devices.cpu.kernels.kv_block import Matrix, Part, keys, values
from corral.devices.cpu.simd import (
    Kernel,
    Value,
    Variable,
    f32,
    fma,
    i32,
    i64,
    maximum,
    reduce_add,
    reduce_maximum,
    select,
)
from corral.devices.cpu.simd.functions import exp_non_positive, tanh
from corral.kv.spec import BLOCK_TOKENS
from corral.quant.types import DType

_STACK_BYTES = 60 << 10
_SCORE_BYTES = 4 * BLOCK_TOKENS
_MOST_QUERIES = 48
_ZMM_BUDGET = 24


@dataclass(frozen=True, slots=True)
class Shape:
    """What an attention kernel is specialized for."""

    head_dim: int
    group: int
    """Query heads that share a kv head."""
    dtype: DType
    windowed: bool
    capped: bool

    @property
    def part(self) -> Part:
        """The parts of the state."""
        return Part(self.dtype, self.head_dim)

    @property
    def capacity(self) -> int:
        """Queries of a tile that fit on the stack, a multiple of 4."""
        converted = BLOCK_TOKENS * 4 * self.head_dim
        each = 8 * self.head_dim + _SCORE_BYTES + 4 * LANES + 28
        fitting = (_STACK_BYTES - converted) // each
        return max(self.group, min(_MOST_QUERIES, fitting // 12 * 12))

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return max(1, self.capacity // self.group)

    def register_tile(self, target: Target, columns: int, *, direct: bool) -> tuple[int, int]:
        """Return (queries, vectors) of a register tile of a product with so many columns."""
        budget, vectors = vector_budget(target), columns // LANES
        if direct:
            queries = _divisor(self.group, budget)
            return queries, _divisor(vectors, budget // queries)
        wide = _divisor(vectors, 4 if budget == _ZMM_BUDGET else 1)
        return _divisor(self.capacity, budget // wide), wide

    def unit(self, target: Target) -> int:
        """Return what the queries of a tile are padded to a multiple of, unless it is direct."""
        columns = (BLOCK_TOKENS, self.head_dim)
        return math.lcm(*(self.register_tile(target, n, direct=False)[0] for n in columns))


def vector_budget(target: Target) -> int:
    """Return how many 16-lane sums fit in registers beside what they are made of."""
    if target.vector_bits == 512:
        return _ZMM_BUDGET
    return 6 if target.vector_bits == 256 or target.fused else 3


def _divisor(number: int, limit: int) -> int:
    return next(n for n in range(min(number, limit), 0, -1) if number % n == 0)


@dataclass(frozen=True, slots=True)
class Visible:
    """Which tokens of a block the tile may look at."""

    start: Value
    """Position of the block's first token, i32."""
    first: Value
    """First token of the block that any query sees, i64."""
    last: Value
    """One more than the last."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Addresses of the two parts of a block, and of those that will be read next."""

    keys: Value
    values: Value
    next_keys: Value
    next_values: Value


@dataclass(frozen=True, slots=True)
class Limits:
    """Run-time parameters of the scores."""

    window: Value
    """Positions a query sees, i32."""
    softcap: Value
    """F32."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Where the state of the queries lies; each array has `Shape.capacity` entries."""

    kernel: Kernel
    shape: Shape
    queries: Value
    """F32 (query, dim), already scaled."""
    scores: Value
    """F32 (query, token): scores, then weights."""
    mixed: Value
    """F32 (query, dim): weighted sums of values, not yet divided."""
    sums: Value
    """F32 (query, 16): sums of weights, by lane."""
    greatest: Value
    """F32 (query): greatest score of the blocks so far."""
    latest: Value
    """F32 (query): greatest score of this block, then of this and all before."""
    factors: Value
    """F32 (query): what the sums of the blocks before are multiplied by."""
    positions: Value
    """i32 (query)."""
    totals: Value
    """Two F32 (query): headers of the totals."""
    converted: Value
    """F32: a part, when it serves several register tiles."""

    @classmethod
    def on_stack(cls, k: Kernel, shape: Shape) -> "Tile":
        """Return a tile in the stack of the kernel."""
        dim, padded = shape.head_dim, -(-shape.capacity // LANES) * LANES
        words = {"queries": dim, "scores": BLOCK_TOKENS, "mixed": dim, "sums": LANES, "totals": 2}
        words |= dict.fromkeys(("greatest", "latest", "factors", "positions"), 1)
        areas = {name: k.stack(padded * 4 * size) for name, size in words.items()}
        for first in range(0, padded, LANES):
            # They are read 16 at a time, and arithmetic on arbitrary bits is slow if denormal.
            for name in ("greatest", "latest"):
                k.store(areas[name] + 4 * first, k.constant(VECTOR, LEAST))
        return cls(k, shape, converted=k.stack(BLOCK_TOKENS * 4 * dim), **areas)

    def load_query(self, query: Value, x: Value, scale: Value, position: Value) -> None:
        """Take up a query that lies at x."""
        k, dim = self.kernel, self.shape.head_dim
        k.store(self.positions + query * 4, position)
        with k.range(0, 4 * dim, 4 * LANES) as at:
            k.store(self.queries + query * (4 * dim) + at, k.load(VECTOR, x + at) * scale)

    def pad(self, first: Value, last: Value) -> None:
        """Make queries that see nothing."""
        k, dim = self.kernel, self.shape.head_dim
        with k.range(first, last) as query:
            k.store(self.positions + query * 4, k.constant(i32, -1))
            with k.range(0, 4 * dim, 4 * LANES) as at:
                k.store(self.queries + query * (4 * dim) + at, k.constant(VECTOR, 0.0))

    def segment(self, query: Value) -> Sums:
        """Return the sums of a query over the blocks since `clear`."""
        k, dim = self.kernel, self.shape.head_dim
        weight = reduce_add(k.load(VECTOR, self.sums + query * (4 * LANES)))
        greatest = k.load(f32, self.greatest + query * 4)
        return Sums(k, dim, greatest, weight, self.mixed + query * (4 * dim))

    def total(self, query: Value, out: Value) -> Total:
        """Return the total of a query, whose mixed values stand where the result is wanted."""
        return Total(self.kernel, self.shape.head_dim, self.totals + query * 8, out)

    def clear(self, count: Value) -> None:
        """Forget all blocks."""
        k, dim = self.kernel, self.shape.head_dim
        zero = k.constant(VECTOR, 0.0)
        with k.range(0, count) as query:
            k.store(self.greatest + query * 4, k.constant(f32, LEAST))
            k.store(self.sums + query * (4 * LANES), zero)
            for column in range(0, dim, LANES):
                k.store(self.mixed + query * (4 * dim) + 4 * column, zero)


def attend(
    tile: Tile,
    count: Value,
    parts: Parts,
    seen: Visible,
    limits: Limits,
    *,
    direct: bool,
) -> None:
    """Add a block to the state of `count` queries.

    Directly, all queries of a group read the stored parts themselves; otherwise parts are
    converted once, for any number of queries.
    """
    k, part = tile.kernel, tile.shape.part
    columns = tile.shape.head_dim
    matrix = keys(k, part, parts.keys, parts.next_keys)
    everything = k.constant(i64, 0), k.constant(i64, columns)
    stored = matrix if direct else _converted(tile, matrix, everything)
    _score(tile, count, stored, limits, direct)
    _weigh(tile, count, seen, limits)
    matrix = values(k, part, parts.values, parts.next_values)
    tokens = seen.first, seen.last
    _mix(tile, count, matrix if direct else _converted(tile, matrix, tokens), tokens, direct)


def _converted(tile: Tile, matrix: Matrix, rows: tuple[Value, Value]) -> Matrix:
    """Convert rows to F32 and return where they are."""
    k, columns = tile.kernel, matrix.columns
    if matrix.element == f32:
        return matrix
    with k.range(*rows) as row:
        matrix.fetch_next(row)
        for column in range(0, columns, LANES):
            value = matrix.load(row, k.constant(i64, column))
            k.store(tile.converted + row * (4 * columns) + 4 * column, value)
    return Matrix(k, f32, tile.converted, columns)


def _score(tile: Tile, count: Value, matrix: Matrix, limits: Limits, direct: bool) -> None:
    """Write queries · keys, capped."""
    k, dim = tile.kernel, tile.shape.head_dim
    zero, steps = k.constant(VECTOR, 0.0), (k.constant(i64, 0), k.constant(i64, dim))

    def start(query: Value, column: Value) -> Value:
        return zero

    def finish(query: Value, column: Value, value: Value) -> None:
        if tile.shape.capped:
            value = tanh(value / limits.softcap) * limits.softcap
        k.store(tile.scores + query * _SCORE_BYTES + column * 4, value)

    product = Product(matrix, tile.queries, 4 * dim, steps)
    size = tile.shape.register_tile(k.target, BLOCK_TOKENS, direct=direct)
    product.emit(size, count, start, finish)


def _mix(
    tile: Tile, count: Value, matrix: Matrix, tokens: tuple[Value, Value], direct: bool
) -> None:
    """Add weights · values to what was before, scaled down to the new greatest score."""
    k, row_bytes = tile.kernel, 4 * tile.shape.head_dim

    def start(query: Value, column: Value) -> Value:
        before = k.load(VECTOR, tile.mixed + query * row_bytes + column * 4)
        return before * k.load(f32, tile.factors + query * 4)

    def finish(query: Value, column: Value, value: Value) -> None:
        k.store(tile.mixed + query * row_bytes + column * 4, value)

    product = Product(matrix, tile.scores, _SCORE_BYTES, tokens)
    size = tile.shape.register_tile(k.target, matrix.columns, direct=direct)
    product.emit(size, count, start, finish)


@dataclass(frozen=True, slots=True)
class Product:
    """Rows of F32 at `left` times a matrix, over the rows of the matrix from … to `steps`."""

    matrix: Matrix
    left: Value
    left_bytes: int
    """Bytes from a row of `left` to the next."""
    steps: tuple[Value, Value]

    def emit(
        self,
        size: tuple[int, int],
        count: Value,
        start: Callable[[Value, Value], Value],
        finish: Callable[[Value, Value, Value], None],
    ) -> None:
        """Emit register tiles of `size` rows and vectors for at least `count` rows."""
        k, (rows, vectors) = self.matrix.kernel, size
        with (
            k.range(0, count, rows) as query,
            k.range(0, self.matrix.columns, vectors * LANES) as column,
        ):
            columns = [column + LANES * n for n in range(vectors)]
            sums = [
                [k.variable(VECTOR, start(query + row, at)) for at in columns]
                for row in range(rows)
            ]
            self._accumulate(query, columns, sums)
            for row, line in enumerate(sums):
                for at, total in zip(columns, line, strict=True):
                    finish(query + row, at, total.value)

    def _accumulate(self, query: Value, columns: list[Value], sums: list[list[Variable]]) -> None:
        k, first = self.matrix.kernel, self.left + query * self.left_bytes
        with k.range(*self.steps) as step:
            self.matrix.fetch_next(step)
            right = [self.matrix.load(step, at) for at in columns]
            for row, line in enumerate(sums):
                left = k.broadcast(VECTOR, first + step * 4 + row * self.left_bytes)
                for total, value in zip(line, right, strict=True):
                    total.value = fma(left, value, total.value)


def _weigh(tile: Tile, count: Value, seen: Visible, limits: Limits) -> None:
    """Turn scores into weights e^(score − greatest) and add the weights up."""
    k = tile.kernel
    with k.range(0, count) as query:
        scores = [score for _, score, _ in _scores(tile, query, seen, limits)]
        k.store(tile.latest + query * 4, reduce_maximum(maximum(*scores)))
    with k.range(0, count, LANES) as query:
        at = query * 4
        before = k.load(VECTOR, tile.greatest + at)
        greatest = maximum(k.load(VECTOR, tile.latest + at), before)
        k.store(tile.latest + at, greatest)
        k.store(tile.factors + at, exp_non_positive(before - greatest))
    with k.range(0, count) as query:
        greatest = k.load(f32, tile.latest + query * 4)
        k.store(tile.greatest + query * 4, greatest)
        weights = []
        for address, score, visible in _scores(tile, query, seen, limits):
            weights.append(select(visible, exp_non_positive(score - greatest), 0.0))
            k.store(address, weights[-1])
        sums, factor = tile.sums + query * (4 * LANES), k.load(f32, tile.factors + query * 4)
        k.store(sums, fma(k.load(VECTOR, sums), factor, weights[0] + weights[1]))


def _scores(
    tile: Tile, query: Value, seen: Visible, limits: Limits
) -> Iterator[tuple[Value, Value, Value]]:
    """Give the scores of a query, 16 at a time: address, scores, which are of tokens it sees.

    Scores of others are −∞, whatever the slots hold.
    """
    k = tile.kernel
    position = k.load(i32, tile.positions + query * 4)
    for first in range(0, BLOCK_TOKENS, LANES):
        numbers = k.constant(i32.x(LANES), [float(first + n) for n in range(LANES)])
        tokens = numbers + seen.start
        visible = tokens <= position
        if tile.shape.windowed:
            visible = visible & (tokens > position - limits.window)
        address = tile.scores + query * _SCORE_BYTES + 4 * first
        yield address, select(visible, k.load(VECTOR, address), float("-inf")), visible
