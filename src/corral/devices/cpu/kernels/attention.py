"""Attention over paged blocks: from rows and block tables to tiles, shared among threads.

Rows of one sequence at consecutive positions form a run, which one tile serves. A run looks at its
blocks in segments of fixed positions: a segment starts from nothing and is then folded into the
total. So segments may be computed apart, by several threads, without changing a bit: `attention`
leaves them in `partials` if there is room, and `attention_merge`, after a barrier, folds them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from corral.devices.cpu.kernels.attention_sums import Sums, Total, stored_bytes
from corral.devices.cpu.kernels.attention_tile import Limits, Parts, Shape, Tile, Visible, attend
from corral.devices.cpu.simd import (
    Fields,
    Kernel,
    Value,
    convert,
    f32,
    i32,
    i64,
    low_word,
    maximum,
    minimum,
    select,
)
from corral.devices.cpu.traits import SEGMENT_BLOCKS
from corral.kv.spec import BLOCK_TOKENS
from corral.quant.types import DType

FIELDS = (
    "q", "state", "out", "count", "positions", "sequences", "tables",
    "q_stride", "out_stride", "tables_stride", "kv_heads",
    "scale", "window", "softcap", "partials", "partials_bytes",
)  # fmt: skip
"""Addresses of F32 queries, the layer's state, the F32 result (no source), the i64 row count, i32
positions and sequences (rows of the tables) of each row and i32 tables of block ids; bytes from a
row to the next; kv heads; an F32 scale; positions a row sees; an F32 cap; scratch for segments and
its size, which may be 0."""


def partials_bytes(rows: int, heads: int, head_dim: int, blocks: int) -> int:
    """Return the scratch that lets threads share the segments of up to `rows` rows.

    `blocks` is the width of the block tables, `heads` the number of query heads.
    """
    return rows * heads * -(-blocks // SEGMENT_BLOCKS) * stored_bytes(head_dim)


def attention(
    k: Kernel,
    record: Value,
    thread: Value,
    threads: Value,
    *,
    head_dim: int,
    group: int,
    dtype: str,
    windowed: bool,
    capped: bool,
) -> None:
    """Write softmax(q · K · scale) · V of each row over its sequence up to its own position.

    `group` query heads share a kv head; `dtype` is the data type of the state.
    """
    shape = Shape(head_dim, group, DType[dtype], windowed, capped)
    batch = Batch.of(k, record, shape, threads)
    tile = Tile.on_stack(k, shape)
    cost = k.variable(i64)
    with batch.runs() as run:
        cost.value = cost.value + run.cost
    total = cost.value * batch.fields.kv_heads
    first, last = k.split(total, thread, threads)
    with k.range(0, batch.fields.kv_heads) as kv_head:
        done = k.variable(i64, cost.value * kv_head)
        with batch.runs() as run, batch.pieces(run) as piece:
            middle = done.value + piece.cost // 2
            done.value = done.value + piece.cost
            mine = (middle >= first) & (middle < last)
            with k.when(mine):
                _compute(batch, tile, run, piece, kv_head)


def attention_merge(
    k: Kernel,
    record: Value,
    thread: Value,
    threads: Value,
    *,
    head_dim: int,
    group: int,
    dtype: str,
    windowed: bool,
    capped: bool,
) -> None:
    """Fold the segments that `attention` left apart; does nothing if it left none.

    It takes the record, the parameters and the number of threads of `attention`.
    """
    shape = Shape(head_dim, group, DType[dtype], windowed, capped)
    batch = Batch.of(k, record, shape, threads)
    heads = batch.fields.kv_heads * group
    first, last = k.split(batch.rows * heads, thread, threads)
    header = k.stack(8)
    with k.when(batch.is_split), k.range(first, last) as n:
        row, head = n // heads, n % heads
        run = batch.run(row, k.constant(i64, 1))
        total = Total(k, head_dim, header, batch.out(row, head))
        total.clear()
        with k.range(run.first_block // SEGMENT_BLOCKS, run.last_segment) as segment:
            total.fold(Sums.load(k, head_dim, batch.partial(row, head, segment)))
        total.finish()


@dataclass(frozen=True, slots=True)
class Run:
    """Rows of one sequence at consecutive positions, and the blocks they look at."""

    row: Value
    rows: Value
    position: Value
    """Of the first row."""
    table: Value
    """Address of the sequence's block ids."""
    first_seen: Value
    """First position that any row sees."""
    first_block: Value
    last_block: Value
    """One more than the last."""
    weight: Value
    """Work a block."""

    @property
    def cost(self) -> Value:
        """Work for one kv head."""
        return (self.last_block - self.first_block) * self.weight

    @property
    def last_segment(self) -> Value:
        """One more than the last."""
        return (self.last_block + (SEGMENT_BLOCKS - 1)) // SEGMENT_BLOCKS


@dataclass(frozen=True, slots=True)
class Piece:
    """Segments of a run that one thread computes."""

    first_segment: Value
    last_segment: Value
    cost: Value


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of an evaluation."""

    kernel: Kernel
    shape: Shape
    fields: Fields
    rows: Value
    segments: Value
    """Of the longest possible sequence."""
    is_split: Value
    """Whether the segments of a run are computed apart."""

    @classmethod
    def of(cls, k: Kernel, record: Value, shape: Shape, threads: Value) -> "Batch":
        """Read the record."""
        fields = k.fields(record, FIELDS)
        rows = k.load(i64, fields.count)
        segments = (fields.tables_stride // 4 + (SEGMENT_BLOCKS - 1)) // SEGMENT_BLOCKS
        slots = rows * fields.kv_heads * shape.group * segments
        size = slots * stored_bytes(shape.head_dim)
        is_split = (size <= fields.partials_bytes) & (threads > 1)
        return cls(k, shape, fields, rows, segments, is_split)

    def out(self, row: Value, head: Value) -> Value:
        """Return the address of a head of the result."""
        return self.fields.out + row * self.fields.out_stride + head * (4 * self.shape.head_dim)

    def query(self, row: Value, head: Value) -> Value:
        """Return the address of a query."""
        return self.fields.q + row * self.fields.q_stride + head * (4 * self.shape.head_dim)

    def partial(self, row: Value, head: Value, segment: Value) -> Value:
        """Return the address where a segment's sums are left."""
        heads = self.fields.kv_heads * self.shape.group
        slot = (row * heads + head) * self.segments + segment
        return self.fields.partials + slot * stored_bytes(self.shape.head_dim)

    def parts(self, run: Run, block: Value, kv_head: Value) -> Parts:
        """Return where the parts of a block of a run are, by the number of the block."""
        size = self.shape.part.size_bytes
        following = minimum(block + 1, run.last_block - 1)
        keys = []
        for number in (block, following):
            block_id = self._index(run.table, number)
            keys.append(self.fields.state + (block_id * 2 * self.fields.kv_heads + kv_head) * size)
        heads_bytes = self.fields.kv_heads * size
        return Parts(keys[0], keys[0] + heads_bytes, keys[1], keys[1] + heads_bytes)

    def _index(self, address: Value, n: Value) -> Value:
        return convert(self.kernel.load(i32, address + n * 4), i64)

    @contextmanager
    def runs(self) -> Iterator[Run]:
        """Run the body for each run of at most a tile's rows."""
        k, f = self.kernel, self.fields
        row, size = k.variable(i64), k.variable(i64)
        with k.repeat_while(lambda: row.value < self.rows):
            first = row.value
            position, sequence = self._index(f.positions, first), self._index(f.sequences, first)
            size.value = 1

            def continues() -> Value:
                n = size.value
                here = minimum(first + n, self.rows - 1)
                inside = (n < self.shape.rows) & (first + n < self.rows)
                same = self._index(f.sequences, here).equals(sequence)
                return inside & same & self._index(f.positions, here).equals(position + n)

            with k.repeat_while(continues):
                size.value = size.value + 1
            yield self.run(first, size.value)
            row.value = first + size.value

    def run(self, row: Value, rows: Value) -> Run:
        """Describe rows that are known to form a run."""
        f = self.fields
        position = self._index(f.positions, row)
        table = f.tables + self._index(f.sequences, row) * f.tables_stride
        first_seen = self.kernel.constant(i64, 0)
        if self.shape.windowed:
            first_seen = maximum(position - f.window + 1, 0)
        last_block = (position + rows - 1) // BLOCK_TOKENS + 1
        weight = rows * self.shape.group + 4
        block = first_seen // BLOCK_TOKENS
        return Run(row, rows, position, table, first_seen, block, last_block, weight)

    @contextmanager
    def pieces(self, run: Run) -> Iterator[Piece]:
        """Run the body for each piece of a run: all of it, or one segment at a time."""
        first, last = run.first_block // SEGMENT_BLOCKS, run.last_segment
        step = select(self.is_split, 1, last)
        with self.kernel.range(first, last, step) as segment:
            end = minimum(segment + step, last)
            start = maximum(run.first_block, segment * SEGMENT_BLOCKS)
            stop = minimum(run.last_block, end * SEGMENT_BLOCKS)
            yield Piece(segment, end, (stop - start) * run.weight)


def _compute(batch: Batch, tile: Tile, run: Run, piece: Piece, kv_head: Value) -> None:
    """Compute the segments of a piece for the query heads of one kv head."""
    k, group = batch.kernel, batch.shape.group
    is_direct = run.rows.equals(1)
    queries = run.rows * group
    unit = tile.shape.unit(k.target)
    padded = select(is_direct, queries, (queries + (unit - 1)) // unit * unit)
    _load_queries(batch, tile, run, kv_head)
    tile.pad(queries, padded)
    with k.range(piece.first_segment, piece.last_segment) as segment:
        tile.clear(padded)
        start = maximum(run.first_block, segment * SEGMENT_BLOCKS)
        stop = minimum(run.last_block, (segment + 1) * SEGMENT_BLOCKS)
        with k.range(start, stop) as block:
            parts = batch.parts(run, block, kv_head)
            seen, limits = _visible(run, block), _limits(batch)
            with k.branch(is_direct) as (yes, no):
                with yes:
                    attend(tile, padded, parts, seen, limits, direct=True)
                with no:
                    attend(tile, padded, parts, seen, limits, direct=False)
        _leave(batch, tile, run, kv_head, segment)
    with k.when(~batch.is_split), _heads(batch, run, kv_head) as (row, head, query):
        tile.total(query, batch.out(row, head)).finish()


@contextmanager
def _heads(batch: Batch, run: Run, kv_head: Value) -> Iterator[tuple[Value, Value, Value]]:
    """Run the body for each query: (row, head, query of the tile)."""
    k, group = batch.kernel, batch.shape.group
    with k.range(0, run.rows) as n, k.range(0, group) as member:
        yield run.row + n, kv_head * group + member, n * group + member


def _load_queries(batch: Batch, tile: Tile, run: Run, kv_head: Value) -> None:
    k, scale = batch.kernel, low_word(batch.fields.scale, f32)
    with _heads(batch, run, kv_head) as (row, head, query):
        position = convert(run.position + (row - run.row), i32)
        tile.load_query(query, batch.query(row, head), scale, position)
        with k.when(~batch.is_split):
            tile.total(query, batch.out(row, head)).clear()


def _leave(batch: Batch, tile: Tile, run: Run, kv_head: Value, segment: Value) -> None:
    """Fold a segment into the total, or leave it for `attention_merge`."""
    k = batch.kernel
    with _heads(batch, run, kv_head) as (row, head, query), k.branch(batch.is_split) as (yes, no):
        with yes:
            tile.segment(query).store(batch.partial(row, head, segment))
        with no:
            tile.total(query, batch.out(row, head)).fold(tile.segment(query))


def _visible(run: Run, block: Value) -> Visible:
    start = block * BLOCK_TOKENS
    last = minimum(run.position + run.rows - start, BLOCK_TOKENS)
    return Visible(convert(start, i32), maximum(run.first_seen - start, 0), last)


def _limits(batch: Batch) -> Limits:
    fields = batch.fields
    return Limits(convert(fields.window, i32), low_word(fields.softcap, f32))
