"""Embedding: rows of a packed table, chosen by token and decoded to F32.

It reads every packed layout and decodes exactly as `quant/dequantize.py` does.
"""

from dataclasses import dataclass

from corral.devices.cpu.simd import (
    Fields,
    Kernel,
    Value,
    bf16,
    concatenate,
    convert,
    f16,
    f32,
    i8,
    i32,
    i64,
    look_up,
    low_word,
    minimum,
    part,
    select,
    shuffle,
    u8,
    u32,
)
from corral.quant.packed import CPU_INTERLEAVE, GROUP, LAYOUTS, SPAN, PackedLayout, Scales
from corral.quant.types import DType

FIELDS = ("tokens", "count", "table", "out", "out_stride", "columns", "vocabulary", "scale")
"""Addresses of i32 tokens, the i64 row count, the packed table and the F32 result; bytes from a
row of the result to the next; columns and rows of the table; an F32 factor."""

_ROWS = CPU_INTERLEAVE
_QUARTER = 4 * _ROWS
"""Bytes of a chunk: four columns of 16 rows."""


def embed(k: Kernel, record: Value, thread: Value, threads: Value, *, dtype: str) -> None:
    """Write a row of the table for each token; `dtype` names the type the table has in its file.

    A token outside the table gives its last row.
    """
    layout = LAYOUTS[DType[dtype]]
    a = k.fields(record, FIELDS)
    write = _write_floats if layout.is_float else _write_groups
    first, last = k.split(k.load(i64, a.count), thread, threads)
    with k.range(first, last) as row:
        token = minimum(k.load(u32, a.tokens + row * 4), convert(a.vocabulary - 1, u32))
        at = convert(token, i64)
        write(k, a, layout, at, a.out + row * a.out_stride)


def _write_floats(k: Kernel, a: Fields, layout: PackedLayout, token: Value, out: Value) -> None:
    stored = {"f32": f32, "f16": f16, "bf16": bf16}[layout.name]
    factor = low_word(a.scale, f32)
    start = a.table + (token // _ROWS * a.columns * _ROWS + token % _ROWS) * stored.bytes
    with k.range(0, a.columns) as column:
        value = convert(k.load(stored, start + column * (_ROWS * stored.bytes)), f32)
        k.store(out + column * 4, value * factor)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one row stands in a group of packed columns."""

    layout: PackedLayout
    group: Value
    """Address of the group, which begins with its scales."""
    row: Value
    """Row within the 16 that stand side by side."""
    span: Value | None
    """Address of the F16 super-scales."""

    @property
    def codes(self) -> Value:
        """Address of the row's first four codes."""
        header = self.layout.group_bytes(_ROWS) - self.layout.codes_bytes(_ROWS)
        return self.group + header + self.row * 4


def _write_groups(k: Kernel, a: Fields, layout: PackedLayout, token: Value, out: Value) -> None:
    columns = SPAN if layout.has_spans else GROUP
    run_bytes = layout.row_block_bytes(columns)
    group_bytes, factor = layout.group_bytes(_ROWS), low_word(a.scale, f32)
    start = a.table + token // _ROWS * (a.columns // columns * run_bytes)
    row = token % _ROWS
    with k.range(0, a.columns // columns) as run:
        head = start + run * run_bytes
        groups = head + (run_bytes - columns // GROUP * group_bytes)
        span = head if layout.has_spans else None
        with k.range(0, columns // GROUP) as n:
            place = _Place(layout, groups + n * group_bytes, row, span)
            at = out + (run * columns + n * GROUP) * 4
            for half, value in enumerate(_decoded(k, place)):
                k.store(at + half * 64, value * factor)


def _decoded(k: Kernel, place: _Place) -> list[Value]:
    """Return the first and the last 16 values of a group."""
    layout = place.layout
    scales, offsets = _scales(k, place), _offsets(k, place)
    numbers = _codes(k, place)
    if layout.values is not None:
        numbers = look_up(layout.values, numbers).bits(i8.x(GROUP))
    values = []
    for half in (0, 1):
        codes = convert(convert(part(numbers, 16 * half, 16), i32), f32)
        value = (codes - float(layout.zero)) * scales[half]
        values.append(value + offsets[half] if offsets else value)
    return values


def _codes(k: Kernel, place: _Place) -> Value:
    """Return the 32 codes of a group as u8."""
    bits = place.layout.code_bits
    if bits == 8:
        return _quarters(k, place.codes, 8)
    low = _quarters(k, place.codes, 4)
    codes = concatenate(low & 15, low >> 4)
    if bits == 4:
        return codes
    return codes | _top_bits(k, place.codes + 4 * _QUARTER, bits - 4)


def _quarters(k: Kernel, address: Value, chunks: int) -> Value:
    """Return the row's four bytes of each chunk, side by side."""
    pieces = [k.load(u8.x(4), address + chunk * _QUARTER) for chunk in range(chunks)]
    while len(pieces) > 1:
        pieces = [concatenate(a, b) for a, b in zip(pieces[::2], pieces[1::2], strict=True)]
    return pieces[0]


def _top_bits(k: Kernel, address: Value, bits: int) -> Value:
    """Return the bits above the low four: one chunk for each bit, a byte serves 8/bits columns."""
    each = 8 // bits  # columns in one byte
    bytes_ = _quarters(k, address, bits)
    spread = shuffle(bytes_, [4 * (n // (4 * each)) + n % 4 for n in range(GROUP)])
    shifts = k.constant(u8.x(GROUP), [float(bits * (n // 4 % each)) for n in range(GROUP)])
    return ((spread >> shifts) & ((1 << bits) - 1)) << 4


def _scales(k: Kernel, place: _Place) -> list[Value]:
    """Return the scale of the first and of the last 16 columns."""
    layout, row = place.layout, place.row
    if layout.scales is Scales.HALF:
        scale = _half(k, place.group + row * 2)
    elif layout.scales is Scales.EXPONENT:
        scale = _power_of_two(k, k.load(u8, place.group + row))
    else:
        assert place.span is not None
        kind = i8 if layout.scales is Scales.SIGNED else u8
        parts = [
            convert(convert(k.load(kind, place.group + row + n * _ROWS), i32), f32)
            for n in range(GROUP // layout.scale_columns)
        ]
        scales = [_half(k, place.span + row * 2) * each for each in parts]
        return [scales[0], scales[-1]]
    return [scale, scale]


def _offsets(k: Kernel, place: _Place) -> list[Value]:
    layout, row = place.layout, place.row
    if not layout.has_offset:
        return []
    if layout.scales is Scales.HALF:
        return [_half(k, place.group + 2 * _ROWS + row * 2)] * 2
    assert place.span is not None
    parts = GROUP // layout.scale_columns
    start = place.group + parts * _ROWS + row
    super_offset = _half(k, place.span + 2 * _ROWS + row * 2)
    offsets = [
        super_offset * convert(convert(k.load(u8, start + n * _ROWS), i32), f32)
        for n in range(parts)
    ]
    return [offsets[0], offsets[-1]]


def _half(k: Kernel, address: Value) -> Value:
    return convert(k.load(f16, address), f32)


def _power_of_two(k: Kernel, exponent: Value) -> Value:
    """Return 2^(exponent − 128): half of E8M0, since the looked-up values are doubled."""
    wide = convert(exponent, u32)
    subnormal = k.constant(u32, 0x00200000) << wide
    return select(wide < 2, subnormal, (wide - 1) << 23).bits(f32)
