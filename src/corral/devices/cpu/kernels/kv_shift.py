"""Turns the keys of blocks to other positions, in place or on their way to other blocks.

Keys of a part stand a dimension a row, 32 tokens side by side, and all of a block turn by the same
angles: 16 tokens are turned at once, with one cosine and one sine for two rows.
"""

from dataclasses import dataclass

from corral.devices.cpu.kernels.columns import LANES, VECTOR, shared_runs
from corral.devices.cpu.kernels.kv_block import GROUP, Part, keys
from corral.devices.cpu.simd import (
    Kernel,
    Value,
    absolute,
    convert,
    f16,
    f32,
    fma,
    i8,
    i32,
    i64,
    maximum,
    round_half_even,
    select,
    splat,
    u8,
)
from corral.kv.spec import BLOCK_TOKENS
from corral.quant.types import DType
from corral.tensor.ops import RopePairs

FIELDS = (
    "state", "count", "rotations", "from_blocks", "to_blocks", "rotations_stride", "kv_heads",
)  # fmt: skip
"""Addresses of the layer's state, the i64 count of blocks, F32 rows of cosines, then sines, and
the i32 id of each block that is read and of the one that is written; bytes from a row of rotations
to the next; heads of a block."""

_ROW_BYTES = 4 * LANES
"""Of one dimension of the tokens that are turned at once."""


def kv_shift(
    k: Kernel,
    record: Value,
    thread: Value,
    threads: Value,
    *,
    head_dim: int,
    turned: int,
    pairs: str,
    dtype: str,
) -> None:
    """Turn the first `turned` dimensions of keys; `pairs` is a name of `RopePairs`.

    Values of a block that goes to another are copied.
    """
    a = k.fields(record, FIELDS)
    part, count = Part(DType[dtype], head_dim), k.load(i64, a.count)
    tokens = k.stack(head_dim * _ROW_BYTES)
    block_bytes = a.kv_heads * (2 * part.size_bytes)
    with shared_runs(k, count, a.kv_heads, thread, threads) as (row, first, last):
        source = a.state + convert(k.load(i32, a.from_blocks + row * 4), i64) * block_bytes
        target = a.state + convert(k.load(i32, a.to_blocks + row * 4), i64) * block_bytes
        turns = a.rotations + row * a.rotations_stride
        with k.range(first, last) as head:
            within = head * part.size_bytes
            with k.range(0, BLOCK_TOKENS, LANES) as column:
                some = _Tokens(k, part, tokens, column)
                some.load(source + within)
                some.turn(turns, turned // 2, RopePairs[pairs])
                some.store(target + within)
            values = a.kv_heads * part.size_bytes + within
            with k.when(target < source):
                _copy(k, source + values, target + values, part.size_bytes)
            with k.when(source < target):
                _copy(k, source + values, target + values, part.size_bytes)


@dataclass(frozen=True, slots=True)
class _Tokens:
    """16 tokens of a part of keys, as F32 rows of one dimension each."""

    kernel: Kernel
    part: Part
    rows: Value
    column: Value

    def load(self, address: Value) -> None:
        k, stored = self.kernel, keys(self.kernel, self.part, address, address)
        with k.range(0, self.part.head_dim) as dim:
            k.store(self.rows + dim * _ROW_BYTES, stored.load(dim, self.column))

    def turn(self, turns: Value, half: int, pairs: RopePairs) -> None:
        k, are_halves = self.kernel, pairs is RopePairs.HALVES
        with k.range(0, half) as pair:
            cosine = k.broadcast(VECTOR, turns + pair * 4)
            sine = k.broadcast(VECTOR, turns + pair * 4 + 4 * half)
            one = self.rows + (pair if are_halves else pair * 2) * _ROW_BYTES
            two = one + (half if are_halves else 1) * _ROW_BYTES
            x, y = k.load(VECTOR, one), k.load(VECTOR, two)
            k.store(one, fma(x, cosine, -(y * sine)))
            k.store(two, fma(y, cosine, x * sine))

    def store(self, address: Value) -> None:
        k, part = self.kernel, self.part
        if part.is_scaled:
            with k.range(0, part.head_dim, GROUP) as first:
                self._store_group(address, first)
            return
        with k.range(0, part.head_dim) as dim:
            values = k.load(VECTOR, self.rows + dim * _ROW_BYTES)
            at = address + (dim * BLOCK_TOKENS + self.column) * part.element.bytes
            k.store(at, convert(values, part.element))

    def _store_group(self, address: Value, first: Value) -> None:
        """Store the codes and scales of 32 dimensions, as `int8_codes` makes them of one token."""
        k, rows = self.kernel, self.rows + first * _ROW_BYTES
        greatest = k.variable(VECTOR, 0.0)
        with k.range(0, GROUP) as n:
            value = absolute(k.load(VECTOR, rows + n * _ROW_BYTES))
            greatest.value = maximum(greatest.value, value)
        scale = greatest.value / 127.0
        inverse = 1.0 / scale
        inverse = select(inverse < float("inf"), inverse, splat(k.constant(f32, 0.0), LANES))
        with k.range(0, GROUP) as n:
            code = round_half_even(k.load(VECTOR, rows + n * _ROW_BYTES) * inverse)
            at = address + (first + n) * BLOCK_TOKENS + self.column
            k.store(at, convert(convert(code, i32), i8))
        element = first // GROUP * BLOCK_TOKENS + self.column
        k.store(address + self.part.scales_offset + element * 2, convert(scale, f16))


def _copy(k: Kernel, source: Value, target: Value, size_bytes: int) -> None:
    """Copy bytes, a multiple of 16."""
    with k.range(0, size_bytes, LANES) as n:
        k.store(target + n, k.load(u8.x(LANES), source + n))
