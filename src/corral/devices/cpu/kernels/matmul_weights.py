"""Reading packed weights into registers: the 32 columns × 16 rows of a group at a time.

It knows `quant/packed.py` and nothing of activations. All layouts come out in one form, with
unsigned codes:

    weight = scale × (code − zero) + offset
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from corral.devices.cpu.simd import (
    Kernel,
    Value,
    convert,
    f16,
    f32,
    i8,
    i32,
    look_up,
    select,
    u8,
    u32,
)
from corral.quant.packed import CPU_INTERLEAVE, GROUP, SPAN, PackedLayout, Scales

ROWS = CPU_INTERLEAVE
CHUNK_COLUMNS = 4
CHUNK_BYTES = CHUNK_COLUMNS * ROWS
CHUNKS = GROUP // CHUNK_COLUMNS
FLOATS_BYTES = 4 * ROWS
AHEAD_BYTES = 6144
"""How far ahead in a stream of weights to ask memory for what comes."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group in registers."""

    code: Callable[[int], Value]
    """Chunk c, u8.x(64): columns 4c … 4c+3 of each row; read where this is called."""
    scales: list[Value]
    """f32.x(16) each: one for all columns, or one for each half of them."""
    offsets: list[Value]
    """Likewise; none if weights are plain products."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a layout's groups look like in registers."""

    halves: int
    """1, or 2 if a scale serves 16 columns."""
    has_offset: bool
    zero: int
    """Subtracted from each code; never together with an offset."""
    code_bits: int
    """Bits of the unsigned codes."""

    @property
    def panel_bytes(self) -> int:
        """Bytes of a group that is unpacked to memory: codes, scales, offsets."""
        floats = self.halves * (2 if self.has_offset else 1)
        return CHUNKS * CHUNK_BYTES + floats * FLOATS_BYTES


def shape_of(layout: PackedLayout) -> Shape:
    """Return what the groups of a layout look like in registers."""
    bits, zero = layout.code_bits, layout.zero
    if layout.values:  # the least of them becomes code 0
        zero = -min(layout.values)
        bits = (max(layout.values) + zero).bit_length()
    return Shape(GROUP // layout.scale_columns, layout.has_offset, zero, bits)


@contextmanager
def each_group(
    k: Kernel, layout: PackedLayout, block: Value, columns: int
) -> Iterator[tuple[Value, Group]]:
    """Repeat the body for each group of the row block at an address, read into registers."""
    if not layout.has_spans:
        with k.range(0, columns // GROUP) as number:
            at = block + number * layout.group_bytes(ROWS)
            _look_ahead(k, layout, at)
            yield number, _read(k, layout, at, [])
        return
    supers_bytes = 2 * ROWS * (2 if layout.has_offset else 1)
    with k.range(0, columns // SPAN) as span:
        start = block + span * layout.row_block_bytes(SPAN)
        supers = [_halves(k, start)]
        if layout.has_offset:
            supers.append(_halves(k, start + 2 * ROWS))
        with k.range(0, SPAN // GROUP) as number:
            at = start + supers_bytes + number * layout.group_bytes(ROWS)
            _look_ahead(k, layout, at)
            yield span * (SPAN // GROUP) + number, _read(k, layout, at, supers)


def _look_ahead(k: Kernel, layout: PackedLayout, group: Value) -> None:
    """Ask for what comes later in the stream; processors by themselves do not look far enough."""
    for line in range(0, layout.group_bytes(ROWS), 64):
        k.prefetch(group + (AHEAD_BYTES + line), 2)


def _halves(k: Kernel, address: Value) -> Value:
    return convert(k.load(f16.x(ROWS), address), f32)


def _read(k: Kernel, layout: PackedLayout, group: Value, supers: list[Value]) -> Group:
    halves = GROUP // layout.scale_columns
    bytes_each = 2 * ROWS if layout.scales is Scales.HALF else ROWS
    scales = [_scale(k, layout, group + n * bytes_each, supers) for n in range(halves)]
    at = group + halves * bytes_each
    offsets: list[Value] = []
    if layout.has_offset:
        offsets = [_offset(k, at + n * bytes_each, supers) for n in range(halves)]
        at = at + halves * bytes_each
    return Group(partial(_code, k, layout, at), scales, offsets)


def _scale(k: Kernel, layout: PackedLayout, address: Value, supers: list[Value]) -> Value:
    match layout.scales:
        case Scales.HALF:
            return _halves(k, address)
        case Scales.EXPONENT:
            return _power_of_two(k, address)
        case _:
            kind = i8 if layout.scales is Scales.SIGNED else u8
            return _small(k.load(kind.x(ROWS), address)) * supers[0]


def _offset(k: Kernel, address: Value, supers: list[Value]) -> Value:
    return _small(k.load(u8.x(ROWS), address)) * supers[1] if supers else _halves(k, address)


def _small(codes: Value) -> Value:
    return convert(convert(codes, i32), f32)


def _power_of_two(k: Kernel, address: Value) -> Value:
    """2^(e - 128): E8M0 halved, since the looked-up values are doubled."""
    exponent = convert(k.load(u8.x(ROWS), address), u32)
    subnormal = k.constant(u32.x(ROWS), 0x200000) << select(exponent < 2, exponent, 0)
    return select(exponent < 2, subnormal, (exponent - 1) << 23).bits(f32.x(ROWS))


def _code(k: Kernel, layout: PackedLayout, address: Value, number: int) -> Value:
    """Return the chunk of that number of a packed group."""
    if layout.code_bits == 8:
        return _chunk(k, address, number)
    nibbles = CHUNKS // 2
    both = _chunk(k, address, number % nibbles)
    code = both & 15 if number < nibbles else both >> 4
    if layout.values:
        lowest = min(layout.values)
        return look_up([value - lowest for value in layout.values], code)
    tops = address + nibbles * CHUNK_BYTES
    if layout.code_bits == 5:
        return code | (_shifted(_chunk(k, tops, 0), 4 - number) & 16)
    if layout.code_bits == 6:
        plane = _chunk(k, tops, number // nibbles)
        return code | (_shifted(plane, 4 - 2 * (number % nibbles)) & 48)
    return code


def _chunk(k: Kernel, address: Value, number: int) -> Value:
    return k.load(u8.x(CHUNK_BYTES), address + number * CHUNK_BYTES)


def _shifted(plane: Value, left: int) -> Value:
    """Move bits up, or down if `left` is negative; bits of neighbouring bytes come in."""
    words = plane.bits(u32.x(ROWS))
    moved = words << left if left >= 0 else words >> -left
    return moved.bits(plane.type)


def store_group(k: Kernel, address: Value, group: Group, minus: int = 0) -> None:
    """Write a group unpacked, in the order of `Shape.panel_bytes`, codes less `minus`."""
    for number in range(CHUNKS):
        chunk = group.code(number)
        k.store(address + number * CHUNK_BYTES, chunk - minus if minus else chunk)
    floats = address + CHUNKS * CHUNK_BYTES
    for number, values in enumerate(group.scales + group.offsets):
        k.store(floats + number * FLOATS_BYTES, values)


def load_group(k: Kernel, shape: Shape, address: Value) -> Group:
    """Read what `store_group` wrote."""
    floats = address + CHUNKS * CHUNK_BYTES
    count = shape.halves * (2 if shape.has_offset else 1)
    values = [k.load(f32.x(ROWS), floats + n * FLOATS_BYTES) for n in range(count)]
    return Group(partial(_chunk, k, address), values[: shape.halves], values[shape.halves :])
