"""Products of a few tokens with one row block of float weights, in vector registers.

Even and odd columns have a total each, added at the end: one chain of additions would wait for
itself when there is one token.
"""

from collections.abc import Sequence

from corral.devices.cpu.features import Target
from corral.devices.cpu.kernels.matmul_tiles import Place, tile_sizes
from corral.devices.cpu.kernels.matmul_weights import AHEAD_BYTES, ROWS
from corral.devices.cpu.simd import Kernel, Value, Variable, bf16, convert, f16, f32, fma
from corral.quant.packed import PackedLayout

_TYPES = {"f32": f32, "f16": f16, "bf16": bf16}


class FloatProduct:
    """The arithmetic of one kernel: F32 activations and float weights."""

    scratch_bytes = 0

    def __init__(self, layout: PackedLayout, columns: int, target: Target) -> None:
        self.tile_tokens, self.small_tiles = tile_sizes(target)
        self.tile_tokens = self.tile_tokens * 3 // 4
        self.chunk_tokens = 16 * self.tile_tokens
        self.columns = columns
        self.type = _TYPES[layout.name].x(ROWS)

    def begin(self, k: Kernel) -> None:
        """Nothing must be prepared."""

    def end(self, k: Kernel) -> None:
        """Nothing must be undone."""

    def begin_chunk(self, k: Kernel, place: Place, count: Value) -> None:
        """Nothing must be known of the tokens."""

    def begin_block(self, k: Kernel, block: Value, scratch: Value) -> None:
        """Weights are read as they are."""

    def full_tile(self, k: Kernel, place: Place, block: Value) -> list[Value]:
        """Return the products of a full tile with the row block at an address."""
        return self.small_tile(k, self.tile_tokens, place, block)

    def small_tile(self, k: Kernel, size: int, place: Place, block: Value) -> list[Value]:
        """Return the products of `size` tokens with the row block at an address."""
        x = place.x + place.token * (4 * self.columns)
        totals = [[k.variable(f32.x(ROWS), 0.0) for _ in range(2)] for _ in range(size)]
        evens, odds = zip(*totals, strict=True)
        with k.range(0, self.columns // 2) as pair:
            for line in range(0, 2 * self.type.bytes, 64):
                k.prefetch(block + pair * (2 * self.type.bytes) + (AHEAD_BYTES + line), 2)
            self._column(k, evens, x + pair * 8, block + pair * (2 * self.type.bytes))
            self._column(k, odds, x + pair * 8 + 4, block + (pair * 2 + 1) * self.type.bytes)
        if self.columns % 2:
            last = self.columns - 1
            self._column(k, evens, x + 4 * last, block + last * self.type.bytes)
        return [even.value + odd.value for even, odd in totals]

    def _column(self, k: Kernel, totals: Sequence[Variable], x: Value, weights: Value) -> None:
        column = convert(k.load(self.type, weights), f32)
        for t, total in enumerate(totals):
            activation = k.broadcast(f32.x(ROWS), x + 4 * t * self.columns)
            total.value = fma(column, activation, total.value)
