"""Packed layouts: how devices keep quantized weights, and how many bytes that takes.

Files store a row as blocks of codes with their scales in between; devices want many rows side by
side, so that one load of activations serves all of them. Every data type maps to one of the few
layouts below without loss. This module is arithmetic only, so footprints need no device.

A layout describes 32 columns (a *group*) at a time. All values of a layout decode by one rule:

    value = scale × (code − zero) + offset

`interleave` rows (16 on the CPU) stand side by side in a *row block*; the last one is padded with
zero rows. A row block is one contiguous stream. With 8-bit scales it is a run of spans of 256
columns:

    span    = super_scale F16 × rows, [super_offset F16 × rows], then 8 groups
    group   = scale 8-bit × rows (twice if a scale serves 16 columns), [offset u8 × rows likewise],
              codes

and with F16 scales a run of groups:

    group   = scale F16 × rows, [offset F16 × rows], codes

The codes of a group come in planes; a plane is cut in chunks of 4 bytes × rows, and byte j of row r
in chunk c is at c·4·rows + 4·r + j:

    8 bits  8 chunks: chunk c, byte j is the code of column 4c+j
    4 bits  4 chunks: low nibble column 4c+j, high nibble column 16+4c+j
    5 bits  the 4-bit plane, then 1 chunk: bit c of byte j is the top bit of column 4c+j
    6 bits  the 4-bit plane, then 2 chunks h: bits 2c, 2c+1 of byte j top column 16h+4c+j

Float layouts are column after column, `interleave` rows each.
"""

import enum
from dataclasses import dataclass

from corral.quant.types import DType

GROUP = 32
"""Columns that share one activation scale."""
SPAN = 256
"""Columns that share one super-scale."""
CPU_INTERLEAVE = 16


class Scales(enum.Enum):
    """How a layout stores the scale of its columns."""

    HALF = "an F16 a group"
    SIGNED = "an i8 a group or half group, times an F16 a span"
    UNSIGNED = "a u8 a group or half group, times an F16 a span"
    EXPONENT = "a power of two a group, as its biased exponent (E8M0)"
    NONE = "float weights have none"


IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The sixteen values of IQ4_NL and IQ4_XS."""
MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""The sixteen values of MXFP4, doubled to be whole; the scale is halved to match."""


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """One way to keep weights on a device."""

    name: str
    code_bits: int
    scales: Scales = Scales.NONE
    scale_columns: int = GROUP
    """Columns one scale serves: 32, or 16."""
    has_offset: bool = False
    zero: int = 0
    """Subtracted from each code (after look-up)."""
    values: tuple[int, ...] | None = None
    """With look-up: the value of each 4-bit code."""

    @property
    def is_float(self) -> bool:
        """Whether the codes are floating-point numbers."""
        return self.scales is Scales.NONE

    @property
    def has_spans(self) -> bool:
        """Whether 256 columns share an F16 super-scale."""
        return self.scales in (Scales.SIGNED, Scales.UNSIGNED)

    @property
    def granularity(self) -> int:
        """Columns a row must be a multiple of."""
        return 1 if self.is_float else SPAN if self.has_spans else GROUP

    def codes_bytes(self, interleave: int) -> int:
        """Return the bytes of the codes of one group of `interleave` rows."""
        return GROUP * self.code_bits // 8 * interleave

    def group_bytes(self, interleave: int) -> int:
        """Return the bytes of one group of `interleave` rows, its scales included."""
        parts = 2 if self.has_offset else 1
        one = 2 if self.scales is Scales.HALF else GROUP // self.scale_columns
        return (one * parts if not self.is_float else 0) * interleave + self.codes_bytes(interleave)

    def row_block_bytes(self, columns: int, interleave: int = CPU_INTERLEAVE) -> int:
        """Return the bytes of `interleave` rows of `columns` columns.

        Raises:
            ValueError: if `columns` is not a multiple of `granularity`.
        """
        if columns % self.granularity:
            raise ValueError(
                f"{columns} columns are no multiple of {self.granularity} ({self.name})"
            )
        if self.is_float:
            return columns * interleave * self.code_bits // 8
        spans = (
            columns // SPAN * interleave * (4 if self.has_offset else 2) if self.has_spans else 0
        )
        return spans + columns // GROUP * self.group_bytes(interleave)

    def size_bytes(self, rows: int, columns: int, interleave: int = CPU_INTERLEAVE) -> int:
        """Return the bytes of a matrix of `rows` × `columns`, padding included."""
        return -(-rows // interleave) * self.row_block_bytes(columns, interleave)


_HALF, _SIGNED, _UNSIGNED = Scales.HALF, Scales.SIGNED, Scales.UNSIGNED

LAYOUTS: dict[DType, PackedLayout] = {
    DType.F32: PackedLayout("f32", 32),
    DType.F16: PackedLayout("f16", 16),
    DType.BF16: PackedLayout("bf16", 16),
    DType.Q4_0: PackedLayout("int4_half", 4, _HALF, zero=8),
    DType.Q4_1: PackedLayout("int4_half_offset", 4, _HALF, has_offset=True),
    DType.Q5_0: PackedLayout("int5_half", 5, _HALF, zero=16),
    DType.Q5_1: PackedLayout("int5_half_offset", 5, _HALF, has_offset=True),
    DType.Q8_0: PackedLayout("int8_half", 8, _HALF, zero=128),
    DType.Q2_K: PackedLayout("int4_unsigned16_offset", 4, _UNSIGNED, 16, has_offset=True),
    DType.Q3_K: PackedLayout("int4_signed16", 4, _SIGNED, 16, zero=4),
    DType.Q4_K: PackedLayout("int4_unsigned_offset", 4, _UNSIGNED, has_offset=True),
    DType.Q5_K: PackedLayout("int5_unsigned_offset", 5, _UNSIGNED, has_offset=True),
    DType.Q6_K: PackedLayout("int6_signed16", 6, _SIGNED, 16, zero=32),
    DType.IQ4_NL: PackedLayout("iq4_half", 4, _HALF, values=IQ4_VALUES),
    DType.IQ4_XS: PackedLayout("iq4_signed", 4, _SIGNED, values=IQ4_VALUES),
    DType.MXFP4: PackedLayout("mxfp4_exponent", 4, Scales.EXPONENT, values=MXFP4_VALUES),
}
"""The layout of each data type that corral runs."""

BY_NAME: dict[str, PackedLayout] = {layout.name: layout for layout in LAYOUTS.values()}
"""The layout of each name."""
