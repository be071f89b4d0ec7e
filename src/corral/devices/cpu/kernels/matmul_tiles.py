"""Products of a few tokens with one row block of quantized weights, in vector registers.

Two sources of weights, one arithmetic: a packed stream that is unpacked on the way, for few tokens;
and a panel in memory that was unpacked before, for full tiles.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from corral.devices.cpu.features import Target
from corral.devices.cpu.kernels.matmul_dots import Activations, Sums, joined, lift, scaled
from corral.devices.cpu.kernels.matmul_weights import (
    CHUNK_COLUMNS,
    CHUNKS,
    ROWS,
    Group,
    each_group,
    load_group,
    shape_of,
    store_group,
)
from corral.devices.cpu.simd import Kernel, RunningDot, Value, Variable, f32, i32
from corral.devices.cpu.traits import CPU_TRAITS
from corral.quant.packed import GROUP, PackedLayout

_INTERLEAVED = {512: 8, 256: 4}
"""Sums of dots that grow side by side, by bits of a vector: each is a chain of waits, and takes a
register."""
MINIMUM_CHAINS = 2
"""A lone token's dots are summed in as many parts as keep the processor busy; it is exact."""
_CHUNK_BYTES = 1 << 19
"""Activations that stay in the second-level cache while all row blocks pass."""
_LEAST_CHUNK = 64
"""Tokens that must share the work of unpacking, where rows are long."""
_MARGIN_BYTES = 1 << 13
"""Of scratch, for what subclasses keep there and for alignment."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tile of tokens stands."""

    x: Value
    """Address of all activations."""
    scratch: Value
    """Address of the thread's scratch."""
    chunk: Value
    """First token of the chunk; what scratch holds of tokens is counted from it."""
    token: Value
    """First token of the tile."""


def tile_sizes(target: Target) -> tuple[int, tuple[int, ...]]:
    """Return the tokens of a full tile, whose totals fit the registers, and of smaller ones."""
    if target.vector_bits == 512:
        return 16, (8, 4, 2, 1)
    return (4, (2, 1)) if target.vector_bits == 256 or not target.is_x86 else (2, (1,))


class QuantizedProduct:
    """The arithmetic of one kernel: A8 (one plane) or A16 (two) activations and one layout."""

    def __init__(self, layout: PackedLayout, columns: int, planes: int, target: Target) -> None:
        self.tile_tokens, self.small_tiles = tile_sizes(target)
        self.layout, self.columns = layout, columns
        self.shape = shape_of(layout)
        self.groups = columns // GROUP
        self.planes = planes
        self.sums = Sums(self.shape, self.groups, planes, lift(target))
        self.stride = planes * columns + columns // 4
        self.chunk_tokens = self._chunk_tokens()

    def _chunk_tokens(self) -> int:
        """Return how many tokens pass all row blocks together: many, but their sums must fit."""
        tokens = max(_CHUNK_BYTES // self.stride, _LEAST_CHUNK)
        if self.sums.token_bytes:
            traits = CPU_TRAITS
            limit = traits.workspace_bytes + self.columns * traits.workspace_bytes_per_column
            room = limit - self.panel_bytes - _MARGIN_BYTES
            tokens = min(tokens, room // self.sums.token_bytes)
        return tokens // self.tile_tokens * self.tile_tokens

    @property
    def panel_bytes(self) -> int:
        """Bytes of a row block that is unpacked."""
        return self.groups * self.shape.panel_bytes

    @property
    def scratch_bytes(self) -> int:
        """Bytes a thread needs: a panel, and sums of a chunk of tokens."""
        return self.panel_bytes + self.sums.token_bytes * self.chunk_tokens

    def begin(self, k: Kernel) -> None:
        """Prepare the thread for full tiles."""

    def end(self, k: Kernel) -> None:
        """Undo what `begin` did."""

    # A chunk of tokens

    def begin_chunk(self, k: Kernel, place: Place, count: Value) -> None:
        """Make what must be known of the tokens of a chunk."""
        if not self.sums.token_bytes:
            return
        with k.range(0, count) as token:
            codes = place.x + (place.chunk + token) * self.stride
            to = place.scratch + token * self.sums.token_bytes + self.panel_bytes
            self.sums.store(k, codes, to)

    def activations(self, k: Kernel, place: Place) -> Activations:
        """Return the activations of a tile."""
        codes = place.x + place.token * self.stride
        at = place.scratch + (place.token - place.chunk) * self.sums.token_bytes + self.panel_bytes
        return Activations(k, self.columns, codes, self.sums, at)

    # A row block

    def begin_block(self, k: Kernel, block: Value, scratch: Value) -> None:
        """Unpack the row block at an address to the panel."""
        with each_group(k, self.layout, block, self.columns) as (number, group):
            store_group(k, scratch + number * self.shape.panel_bytes, group)

    def full_tile(self, k: Kernel, place: Place, block: Value) -> list[Value]:
        """Return the products of a full tile with the panel; `block` only helps to look ahead."""
        x, totals = self.activations(k, place), totals_of(k, self.tile_tokens)
        with k.range(0, self.groups) as number:
            self._prefetch(k, block, number)
            group = load_group(k, self.shape, place.scratch + number * self.shape.panel_bytes)
            self._accumulate(totals, group, x, number)
        return [total.value for total in totals]

    def small_tile(self, k: Kernel, size: int, place: Place, block: Value) -> list[Value]:
        """Return the products of `size` tokens with the packed row block at an address."""
        x, totals = self.activations(k, place), totals_of(k, size)
        with each_group(k, self.layout, block, self.columns) as (number, group):
            self._accumulate(totals, group, x, number)
        return [total.value for total in totals]

    def _prefetch(self, k: Kernel, block: Value, number: Value) -> None:
        """Ask for the next row block, a little with each group."""
        size = self.layout.row_block_bytes(self.columns)
        lines = -(-size // (64 * self.groups))
        at = block + size + number * (64 * lines)
        for line in range(lines):
            k.prefetch(at + 64 * line, 2)

    # A group

    def _accumulate(
        self, totals: Sequence[Variable], group: Group, x: Activations, number: Value
    ) -> None:
        target = x.k.target
        sums = self.planes * RunningDot.sums(target, self.shape.code_bits)
        together = max(_INTERLEAVED.get(target.vector_bits, 8) // sums, 1)
        for first in range(0, len(totals), together):
            tokens = range(first, min(first + together, len(totals)))
            for half, scale in enumerate(group.scales):
                dots = self._dots(group, x, tokens, number, half)
                for t, planes in zip(tokens, dots, strict=True):
                    product = joined([scaled(dot, scale, lifted=True) for dot in planes])
                    x.add(totals[t], product, t, number)
            for t in tokens:
                x.add_offsets(totals[t], group.offsets, t, number)

    def _dots(
        self, group: Group, x: Activations, tokens: Sequence[int], number: Value, half: int
    ) -> list[list[Value]]:
        """Return the dots of each token, by plane.

        All of them are chains of additions that run side by side. If they are too few to keep the
        processor busy, each is summed in parts: integers are exact in any order.
        """
        chunks, bits = CHUNKS // self.shape.halves, self.shape.code_bits
        parts = max(MINIMUM_CHAINS // (len(tokens) * self.planes * self.shape.halves), 1)
        zero = x.k.constant(i32.x(ROWS), 0)
        chains = {
            (t, p, n): RunningDot(zero if n else x.start(t, number, p, half), bits)
            for t in tokens
            for p in range(self.planes)
            for n in range(parts)
        }
        for c in range(chunks):
            # Chunks that share bytes follow each other; the order is nothing to an integer.
            turn = c if self.shape.halves > 1 else (c % 2) * (chunks // 2) + c // 2
            chunk, part = half * chunks + turn, c * parts // chunks
            code = group.code(chunk)
            for t, p in itertools.product(tokens, range(self.planes)):
                activation = x.code(t, number, p * self.columns + chunk * CHUNK_COLUMNS)
                chains[t, p, part].add(code, activation)
        return [
            [_sum([chains[t, p, n].total() for n in range(parts)]) for p in range(self.planes)]
            for t in tokens
        ]


def _sum(values: Sequence[Value]) -> Value:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def totals_of(k: Kernel, count: int) -> list[Variable]:
    """Return a zero total for each token of a tile."""
    return [k.variable(f32.x(ROWS), 0.0) for _ in range(count)]
