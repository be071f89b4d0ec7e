"""Packing and unpacking weights in plain NumPy: what the native kernels are tested against.

It knows `quant/packed.py` and how `quant` takes blocks apart; speed is no aim.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from corral.quant.blocks import Blocks, Bytes, Floats
from corral.quant.dequantize import combine, split_blocks
from corral.quant.packed import CPU_INTERLEAVE, GROUP, LAYOUTS, SPAN, PackedLayout, Scales
from corral.quant.types import DType

ROWS = CPU_INTERLEAVE
_CHUNKS = 8
_CHUNK_COLUMNS = 4


def pack_rows(data: Bytes, dtype: DType, rows: int, columns: int) -> Bytes:
    """Return rows of a matrix, given as the file has them, as row blocks: (size_bytes,)."""
    layout = LAYOUTS[dtype]
    padded = np.zeros((-(-rows // ROWS) * ROWS, dtype.row_bytes(columns)), np.uint8)
    padded[:rows] = data.reshape(rows, -1)
    if layout.is_float:
        values = padded.view(f"<u{layout.code_bits // 8}")
        return _interleaved(values.reshape(len(padded), columns, 1)).reshape(-1)
    parts = _Parts(split_blocks(padded.reshape(-1, dtype.block_bytes), dtype), layout, columns)
    groups = np.concatenate([*parts.floats(), *_planes(parts.codes, layout)], axis=-1)
    if not layout.has_spans:
        return groups.reshape(-1)
    spans = groups.reshape(len(groups), columns // SPAN, -1)
    return np.concatenate([*parts.supers(), spans], axis=-1).reshape(-1)


class _Parts:
    """The parts of blocks by row block, group and row."""

    def __init__(self, blocks: Blocks, layout: PackedLayout, columns: int) -> None:
        self._blocks, self._layout, self._columns = blocks, layout, columns
        codes = blocks.codes.reshape(-1, ROWS, columns // GROUP, _CHUNKS, _CHUNK_COLUMNS)
        self.codes: Bytes = codes.transpose(0, 2, 3, 1, 4)
        """(row blocks, groups, 8 chunks, 16 rows, 4 columns)"""

    def floats(self) -> list[Bytes]:
        """Return scales and offsets of groups, each (row blocks, groups, bytes)."""
        blocks = self._blocks
        if self._layout.scales is Scales.EXPONENT:
            exponents = (np.frexp(blocks.scale)[1] + 127).astype(np.uint8)
            return [self._by_group(exponents)]
        if self._layout.scales is Scales.HALF:
            halves = [blocks.scale, blocks.offset]
            return [self._by_group(v.astype(np.float16)) for v in halves if v is not None]
        small = [blocks.sub_scales, blocks.sub_offsets]
        return [self._by_group(values) for values in small if values is not None]

    def supers(self) -> list[Bytes]:
        """Return super-scales and super-offsets, each (row blocks, spans, bytes)."""
        both = [self._blocks.scale, self._blocks.offset]
        spans = self._columns // SPAN
        return [
            _interleaved(values.astype(np.float16).reshape(-1, spans, 1))
            for values in both
            if values is not None
        ]

    def _by_group(self, values: npt.NDArray[np.generic]) -> Bytes:
        return _interleaved(values.reshape(-1, self._columns // GROUP, self._per_group))

    @property
    def _per_group(self) -> int:
        return GROUP // self._layout.scale_columns


def _interleaved(values: npt.NDArray[np.generic]) -> Bytes:
    """(rows, items, parts) → (row blocks, items, bytes), rows side by side in each part."""
    _, items, parts = values.shape
    blocks = values.reshape(-1, ROWS, items, parts).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(blocks).view(np.uint8).reshape(len(blocks), items, -1)


def _planes(codes: Bytes, layout: PackedLayout) -> list[Bytes]:
    """Return the planes of codes, each (row blocks, groups, bytes)."""
    flat = (*codes.shape[:2], -1)
    if layout.code_bits == 8:
        return [codes.reshape(flat)]
    low = codes & np.uint8(15)
    planes = [low[:, :, :4] | low[:, :, 4:] << np.uint8(4)]
    top = codes >> np.uint8(4)
    if layout.code_bits == 5:
        shifts = np.arange(8, dtype=np.uint8)[:, None, None]
        planes.append(np.bitwise_or.reduce(top << shifts, axis=2))
    if layout.code_bits == 6:
        shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None, None]
        halves = top.reshape(*codes.shape[:2], 2, 4, ROWS, _CHUNK_COLUMNS)
        planes.append(np.bitwise_or.reduce(halves << shifts, axis=3))
    return [plane.reshape(flat) for plane in planes]


def unpack_rows(packed: Bytes, dtype: DType, rows: int, columns: int) -> Floats:
    """Return the values of packed rows: (rows, columns)."""
    layout = LAYOUTS[dtype]
    blocks = packed.reshape(-(-rows // ROWS), -1)
    if layout.is_float:
        values = blocks.view(f"<u{layout.code_bits // 8}").reshape(len(blocks), columns, ROWS)
        by_row = np.ascontiguousarray(values.transpose(0, 2, 1)).reshape(-1, columns)
        return _floats(by_row, dtype)[:rows]
    reader = _Reader(blocks, layout, columns)
    return combine(reader.read(), dtype).reshape(-1, columns)[:rows]


def _floats(bits: npt.NDArray[np.generic], dtype: DType) -> Floats:
    if dtype is DType.F32:
        return bits.view(np.float32)
    if dtype is DType.F16:
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


class _Reader:
    """Row blocks cut into their fields, in the order in which they lie."""

    def __init__(self, blocks: Bytes, layout: PackedLayout, columns: int) -> None:
        self._layout, self._columns = layout, columns
        self._parts = GROUP // layout.scale_columns
        self._spans: Bytes | None = None
        if layout.has_spans:
            spans = blocks.reshape(len(blocks), columns // SPAN, -1)
            head = 2 * ROWS * (2 if layout.has_offset else 1)
            self._spans, blocks = spans[..., :head], np.ascontiguousarray(spans[..., head:])
        self._groups: Bytes = blocks.reshape(len(blocks), columns // GROUP, -1)
        self._at = 0

    def read(self) -> Blocks:
        """Return blocks of the size that the type has in files."""
        layout, part = self._layout, np.dtype(np.uint8)
        if layout.scales is Scales.HALF:
            scale, offset = self._halves(), self._halves() if layout.has_offset else None
            return Blocks(self._codes(GROUP), scale, offset=offset)
        if layout.scales is Scales.EXPONENT:
            exponents = self._field(part).astype(np.int32).reshape(-1)
            scale = np.ldexp(np.float32(1), exponents - 128).astype(np.float32)
            return Blocks(self._codes(GROUP), scale)
        signed = np.dtype(np.int8) if layout.scales is Scales.SIGNED else part
        per_block = SPAN // layout.scale_columns
        sub_scales = self._field(signed).reshape(-1, per_block)
        sub_offsets = self._field(part).reshape(-1, per_block) if layout.has_offset else None
        offset = self._super(1) if layout.has_offset else None
        return Blocks(self._codes(SPAN), self._super(0), sub_scales, offset, sub_offsets)

    def _field(self, of: np.dtype[Any]) -> npt.NDArray[Any]:
        """Read one value a part: (rows, groups × parts)."""
        size = self._parts * ROWS * of.itemsize
        raw = np.ascontiguousarray(self._groups[..., self._at : self._at + size])
        self._at += size
        values = raw.view(of).reshape(*raw.shape[:2], self._parts, ROWS)
        return np.ascontiguousarray(values.transpose(0, 3, 1, 2)).reshape(len(raw) * ROWS, -1)

    def _halves(self) -> Floats:
        return self._field(np.dtype(np.float16)).astype(np.float32).reshape(-1)

    def _super(self, number: int) -> Floats:
        assert self._spans is not None
        size = 2 * ROWS
        raw = np.ascontiguousarray(self._spans[..., number * size : (number + 1) * size])
        values = raw.view(np.float16).astype(np.float32)  # (row blocks, spans, rows)
        return np.ascontiguousarray(values.transpose(0, 2, 1)).reshape(-1)

    def _codes(self, block: int) -> Bytes:
        """Read the codes: (blocks of the file, `block`)."""
        planes = self._groups[..., self._at :].reshape(*self._groups.shape[:2], -1, ROWS, 4)
        codes = _joined(planes, self._layout.code_bits)
        return np.ascontiguousarray(codes.transpose(0, 3, 1, 2, 4)).reshape(-1, block)


def _joined(planes: Bytes, code_bits: int) -> Bytes:
    """(row blocks, groups, chunks of all planes, 16, 4) → (row blocks, groups, 8, 16, 4)."""
    if code_bits == 8:
        return planes
    four = np.uint8(4)
    nibbles = planes[:, :, :4]
    codes = np.concatenate([nibbles & np.uint8(15), nibbles >> four], axis=2)
    if code_bits == 5:
        shifts = np.arange(8, dtype=np.uint8)[:, None, None]
        codes |= (planes[:, :, 4:] >> shifts & np.uint8(1)) << four
    if code_bits == 6:
        shifts = np.tile(np.arange(0, 8, 2, dtype=np.uint8), 2)[:, None, None]
        tops = np.repeat(planes[:, :, 4:], 4, axis=2)
        codes |= (tops >> shifts & np.uint8(3)) << four
    return codes
