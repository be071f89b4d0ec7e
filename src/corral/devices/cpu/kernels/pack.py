"""Packing: rows of a matrix as the file has them to row blocks as `quant/packed.py` describes.

It moves codes and scales and computes none of them anew. `devices/packing.py` says the same in
NumPy, and tests compare the bytes.
"""

from corral.devices.cpu.kernels.pack_source import SOURCES, Source
from corral.devices.cpu.simd import Fields, Kernel, Value, concatenate, minimum, part, u16, u32
from corral.quant.packed import CPU_INTERLEAVE, GROUP, LAYOUTS, SPAN, PackedLayout, Scales
from corral.quant.types import DType

FIELDS = ("source", "out", "rows", "columns")
"""Addresses of rows without gaps and of whole row blocks; rows and columns of the matrix. Rows that
only fill the last row block are left alone."""

_ROWS = CPU_INTERLEAVE
_CHUNK = 4 * _ROWS


def pack(k: Kernel, record: Value, thread: Value, threads: Value, dtype: str) -> None:
    """Pack rows of the data type of that name."""
    of = DType[dtype]
    layout, a = LAYOUTS[of], k.fields(record, FIELDS)
    row_bytes = a.columns // of.block_elements * of.block_bytes
    granularity = layout.granularity
    block_bytes = a.columns // granularity * layout.row_block_bytes(granularity)
    first, last = k.split((a.rows + (_ROWS - 1)) // _ROWS, thread, threads)
    with k.range(first, last) as block, k.range(0, minimum(a.rows - block * _ROWS, _ROWS)) as row:
        source = a.source + (block * _ROWS + row) * row_bytes
        out = a.out + block * block_bytes
        if layout.is_float:
            _pack_floats(k, a, layout, source, out + row * (layout.code_bits // 8))
        else:
            _pack_groups(k, a, of, source, (out, row))


def _pack_floats(k: Kernel, a: Fields, layout: PackedLayout, source: Value, out: Value) -> None:
    kind = u16 if layout.code_bits == 16 else u32
    with k.range(0, a.columns) as column:
        value = k.load(kind, source + column * kind.bytes)
        k.store(out + column * (_ROWS * kind.bytes), value)


def _pack_groups(
    k: Kernel, a: Fields, dtype: DType, source: Value, to: tuple[Value, Value]
) -> None:
    """Pack one row, block of the file by block of the file."""
    layout, (out, row) = LAYOUTS[dtype], to
    columns = dtype.block_elements
    with k.range(0, a.columns // columns) as number:
        block = SOURCES[dtype](k, source + number * dtype.block_bytes)
        at = out + number * layout.row_block_bytes(columns)
        if layout.has_spans:
            k.store(at + row * 2, block.scale)
            if layout.has_offset:
                k.store(at + 2 * _ROWS + row * 2, block.offset)
            at = at + (layout.row_block_bytes(SPAN) - SPAN // GROUP * layout.group_bytes(_ROWS))
        for group in range(columns // GROUP):
            _pack_group(k, layout, block, group, (at + group * layout.group_bytes(_ROWS), row))


def _pack_group(
    k: Kernel, layout: PackedLayout, block: Source, group: int, to: tuple[Value, Value]
) -> None:
    at, row = to
    if layout.has_spans:
        at = _store_parts(k, at, row, block.sub_scales, layout, group)
        if layout.has_offset:
            at = _store_parts(k, at, row, block.sub_offsets, layout, group)
    else:
        floats = [block.scale, block.offset] if layout.has_offset else [block.scale]
        size = 1 if layout.scales is Scales.EXPONENT else 2
        for value in floats:
            k.store(at + row * size, value)
            at = at + _ROWS * size
    _store_codes(k, at + row * 4, block.codes[group], layout.code_bits)


def _store_parts(
    k: Kernel, at: Value, row: Value, values: Value, layout: PackedLayout, group: int
) -> Value:
    """Store a group's small scales and return where what follows them goes."""
    each = GROUP // layout.scale_columns
    for n in range(each):
        k.store(at + n * _ROWS + row, values[group * each + n])
    return at + each * _ROWS


def _store_codes(k: Kernel, at: Value, codes: Value, bits: int) -> None:
    """Store 32 codes in the planes of a width; `at` is the row's place in the first chunk."""
    if bits == 8:
        _store_chunks(k, at, codes)
        return
    low = codes & 15
    _store_chunks(k, at, part(low, 0, 16) | part(low, 16, 16) << 4)
    if bits > 4:
        _store_chunks(k, at + 4 * _CHUNK, _plane(codes >> 4, bits - 4))


def _store_chunks(k: Kernel, at: Value, values: Value) -> None:
    """Store four bytes to each chunk."""
    for chunk in range(values.type.lanes // 4):
        k.store(at + chunk * _CHUNK, part(values, 4 * chunk, 4))


def _plane(tops: Value, bits: int) -> Value:
    """Put the top bits of 32 columns together: a byte holds those of 8 / bits chunks."""
    each = 8 // bits
    bytes_ = []
    for first in range(0, GROUP // 4, each):
        pieces = [part(tops, 4 * (first + n), 4) << (bits * n) for n in range(each)]
        total = pieces[0]
        for piece in pieces[1:]:
            total = total | piece
        bytes_.append(total)
    return bytes_[0] if len(bytes_) == 1 else concatenate(bytes_[0], bytes_[1])


def pack_record(source: int, out: int, *, rows: int, columns: int) -> tuple[int, ...]:
    """Return the fields of the kernel."""
    return (source, out, rows, columns)
