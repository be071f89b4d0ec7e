"""Products of a few tokens with one row block of quantized weights, in vector registers.

Two sources of weights, one arithmetic: a packed stream that is unpacked on the way, for few tokens;
and a panel in memory that was unpacked before, for full tiles.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from corral.devices.cpu.features import Target
from corral.devices.cpu.kernels.matmul_weights import (
    CHUNK_COLUMNS,
    ROWS,
    Group,
    each_group,
    load_group,
    shape_of,
    store_group,
)
from corral.devices.cpu.simd import (
    Kernel,
    Value,
    Variable,
    convert,
    dot_u8_i8,
    f32,
    fma,
    i8,
    i32,
    shuffle,
    u8,
)
from corral.quant.packed import GROUP, PackedLayout

INTERLEAVED = 8
"""Tokens whose dots are computed side by side, since each of them is one chain of waits."""
MINIMUM_CHAINS = 2
"""A lone token's dots are summed in as many parts as keep the processor busy; it is exact."""
_CHUNK_BYTES = 1 << 19
"""Activations that stay in the second-level cache while all row blocks pass."""
_LEAST_CHUNK = 32


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


@dataclass(frozen=True, slots=True)
class Activations:
    """Where a run of A8 rows lies; offsets between tokens are constants of the kernel."""

    columns: int
    codes: Value
    half_sums: Value | None

    @property
    def stride(self) -> int:
        """Bytes of a row."""
        return self.columns + self.columns // 4

    def code(self, k: Kernel, token: int, group: Value, chunk: int) -> Value:
        """Return four codes in every lane."""
        at = self.codes + group * GROUP + (token * self.stride + chunk * CHUNK_COLUMNS)
        return k.broadcast(i32.x(ROWS), at).bits(i8.x(4 * ROWS))

    def scale(self, k: Kernel, token: int, group: Value) -> Value:
        """Return a group's scale in every lane."""
        return self._float(k, token * self.stride + self.columns, group)

    def sums(self, k: Kernel, token: int, group: Value) -> list[Value]:
        """Return scale × Σ codes of a group, or of each half of it."""
        if self.half_sums is None:
            return [self._float(k, token * self.stride + self.columns * 9 // 8, group)]
        at = self.half_sums + group * 8 + token * half_sums_bytes(self.columns)
        return [k.broadcast(f32.x(ROWS), at), k.broadcast(f32.x(ROWS), at + 4)]

    def _float(self, k: Kernel, offset: int, group: Value) -> Value:
        return k.broadcast(f32.x(ROWS), self.codes + group * 4 + offset)


def half_sums_bytes(columns: int) -> int:
    """Return the bytes of one token's sums by half group."""
    return columns // GROUP * 8


def tile_sizes(target: Target) -> tuple[int, tuple[int, ...]]:
    """Return the tokens of a full tile, whose totals fit the registers, and of smaller ones."""
    if target.vector_bits == 512:
        return 16, (8, 4, 2, 1)
    return (4, (2, 1)) if target.vector_bits == 256 or not target.is_x86 else (2, (1,))


class QuantizedProduct:
    """The arithmetic of one kernel: A8 activations and one layout."""

    def __init__(self, layout: PackedLayout, columns: int, target: Target) -> None:
        self.tile_tokens, self.small_tiles = tile_sizes(target)
        self.layout, self.columns = layout, columns
        self.shape = shape_of(layout)
        self.groups = columns // GROUP
        self.needs_half_sums = self.shape.halves == 2 and self.shape.has_offsets
        self.stride = columns + columns // 4
        chunk = max(_CHUNK_BYTES // self.stride, _LEAST_CHUNK)
        self.chunk_tokens = chunk // self.tile_tokens * self.tile_tokens

    @property
    def panel_bytes(self) -> int:
        """Bytes of a row block that is unpacked."""
        return self.groups * self.shape.panel_bytes

    @property
    def scratch_bytes(self) -> int:
        """Bytes a thread needs: a panel, and sums by half group of a chunk of tokens."""
        return self.panel_bytes + self.half_sums_bytes

    @property
    def half_sums_bytes(self) -> int:
        """Bytes of the sums by half group of a chunk of tokens."""
        return half_sums_bytes(self.columns) * self.chunk_tokens if self.needs_half_sums else 0

    def begin(self, k: Kernel) -> None:
        """Prepare the thread for full tiles."""

    def end(self, k: Kernel) -> None:
        """Undo what `begin` did."""

    # A chunk of tokens

    def begin_chunk(self, k: Kernel, place: Place, count: Value) -> None:
        """Make what must be known of the tokens of a chunk."""
        if not self.needs_half_sums:
            return
        with k.range(0, count) as token, k.range(0, self.groups) as group:
            row = place.x + (place.chunk + token) * self.stride
            sums = _half_sums(k, k.load(i8.x(GROUP), row + group * GROUP))
            scale = k.load(f32, row + group * 4 + self.columns)
            to = place.scratch + token * half_sums_bytes(self.columns) + group * 8
            k.store(to + self.panel_bytes, sums * scale)

    def _activations(self, place: Place) -> Activations:
        codes = place.x + place.token * self.stride
        if not self.needs_half_sums:
            return Activations(self.columns, codes, None)
        offset = (place.token - place.chunk) * half_sums_bytes(self.columns)
        return Activations(self.columns, codes, place.scratch + self.panel_bytes + offset)

    # A row block

    def begin_block(self, k: Kernel, block: Value, scratch: Value) -> None:
        """Unpack the row block at an address to the panel."""
        with each_group(k, self.layout, block, self.columns) as (number, group):
            store_group(k, scratch + number * self.shape.panel_bytes, group)

    def full_tile(self, k: Kernel, place: Place, block: Value) -> list[Value]:
        """Return the products of a full tile with the panel; `block` only helps to look ahead."""
        x, totals = self._activations(place), totals_of(k, self.tile_tokens)
        with k.range(0, self.groups) as number:
            self._prefetch(k, block, number)
            group = load_group(k, self.shape, place.scratch + number * self.shape.panel_bytes)
            self._accumulate(k, totals, group, x, number)
        return [total.value for total in totals]

    def small_tile(self, k: Kernel, size: int, place: Place, block: Value) -> list[Value]:
        """Return the products of `size` tokens with the packed row block at an address."""
        x, totals = self._activations(place), totals_of(k, size)
        with each_group(k, self.layout, block, self.columns) as (number, group):
            self._accumulate(k, totals, group, x, number)
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
        self, k: Kernel, totals: Sequence[Variable], group: Group, x: Activations, number: Value
    ) -> None:
        for first in range(0, len(totals), INTERLEAVED):
            tokens = range(first, min(first + INTERLEAVED, len(totals)))
            for t, dots in zip(tokens, self._dots(k, group, x, tokens, number), strict=True):
                totals[t].value = finish(
                    totals[t].value,
                    scaled(dots, group.scales),
                    x.scale(k, t, number),
                    group.offsets,
                    x.sums(k, t, number) if group.offsets else [],
                )

    def _dots(
        self, k: Kernel, group: Group, x: Activations, tokens: Sequence[int], number: Value
    ) -> list[list[Value]]:
        """Return the dots of each token, by half. Several chains of additions run side by side."""
        halves, code_bits = self.shape.halves, self.shape.code_bits
        chains = max(halves, min(MINIMUM_CHAINS // len(tokens), len(group.codes)))
        dots = [[k.constant(i32.x(ROWS), 0)] * chains for _ in tokens]
        for c, code in enumerate(group.codes):
            chain = c * chains // len(group.codes)
            for dot, t in zip(dots, tokens, strict=True):
                dot[chain] = dot_u8_i8(dot[chain], code, x.code(k, t, number, c), code_bits)
        return [[_sum(dot[h * chains // halves : (h + 1) * chains // halves]) for h in range(halves)] for dot in dots]


def scaled(dots: Sequence[Value], scales: Sequence[Value]) -> Value:
    """Return Σ dot × scale over the halves of a group."""
    product = convert(dots[0], f32) * scales[0]
    for dot, scale in zip(dots[1:], scales[1:], strict=True):
        product = fma(convert(dot, f32), scale, product)
    return product


def finish(
    total: Value,
    product: Value,
    x_scale: Value,
    offsets: Sequence[Value],
    x_sums: Sequence[Value],
) -> Value:
    """Return the total with one more group: the order that every path keeps to."""
    total = fma(product, x_scale, total)
    for offset, x_sum in zip(offsets, x_sums, strict=True):
        total = fma(offset, x_sum, total)
    return total


def _sum(values: Sequence[Value]) -> Value:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def totals_of(k: Kernel, count: int) -> list[Variable]:
    """Return a zero total for each token of a tile."""
    return [k.variable(f32.x(ROWS), 0.0) for _ in range(count)]


def _half_sums(k: Kernel, codes: Value) -> Value:
    """Return the sums of the two halves of 32 codes, as f32.x(2)."""
    ones = k.constant(u8.x(GROUP), 1)
    sums = dot_u8_i8(k.constant(i32.x(GROUP // 4), 0), ones, codes, 1)
    while sums.type.lanes > 2:
        count = sums.type.lanes
        even = shuffle(sums, list(range(0, count, 2)))
        sums = even + shuffle(sums, list(range(1, count, 2)))
    return convert(sums, f32)
