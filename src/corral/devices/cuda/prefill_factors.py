"""What the two factors of a prefill product are, and how many bytes they take.

Factors have elements of 16 bits. What they are depends on the weights' type (`Form`): one matrix of
BF16, one of F16 with a power of two for each row, or three of BF16 side by side. They lie in tiles
for kernels of ours and row by row for cuBLASLt (`kernels/include/tiles.cuh`). Importable where CUDA
is not.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from corral.quant.types import DType

TILE_ROWS = 128
TILE_COLUMNS = 64
TILE_BYTES = TILE_ROWS * TILE_COLUMNS * 2
WIDEST_TILE = 256
"""Columns of the result that one block of `matmul_wgmma` computes: weights are padded to it."""
PART_ALIGNMENT = 1024
"""What kernels want each part of their scratch aligned to."""


class Form(enum.Enum):
    """What the factors of a product are."""

    BF16 = "one matrix of BF16"
    F16 = "one matrix of F16; rows on the left are divided by a power of two each"
    SPLIT = "three matrices of BF16: left high, low, high; right high, high, low"

    @property
    def matrices(self) -> int:
        """How many matrices stand side by side."""
        return 3 if self is Form.SPLIT else 1

    @property
    def element(self) -> str:
        """The type of an element in kernels."""
        return "__half" if self is Form.F16 else "__nv_bfloat16"


_FORMS = {DType.F32: Form.SPLIT, DType.F16: Form.F16}


def form_of(weight: DType) -> Form:
    """Return the form of a product with weights of a type."""
    return _FORMS.get(weight, Form.BF16)


def factor_columns(columns: int, form: Form) -> int:
    """Return the columns of a factor: all its matrices, each padded to whole tiles."""
    return form.matrices * _up(columns, TILE_COLUMNS)


def factor_tiles(columns: int, form: Form) -> int:
    """Return the tiles of a row of a factor."""
    return factor_columns(columns, form) // TILE_COLUMNS


def left_bytes(rows: int, columns: int, form: Form) -> int:
    """Return the bytes of a left factor of at most so many rows, tiled or not."""
    return _up(rows, TILE_ROWS) * factor_columns(columns, form) * 2


def right_bytes(rows: int, columns: int, form: Form) -> int:
    """Return the bytes of a right factor: a row for each column of the result, tiled or not."""
    return _up(rows, WIDEST_TILE) * factor_columns(columns, form) * 2


def scales_bytes(rows: int, form: Form) -> int:
    """Return the bytes of the scales of a left factor."""
    return 4 * rows if form is Form.F16 else 0


@dataclass(frozen=True, slots=True)
class Matrix:
    """The weights of one product; matrices that share a source can be stacked to one."""

    dtype: DType
    rows: int
    """Columns of the result."""
    columns: int


@dataclass(frozen=True, slots=True)
class Scratch:
    """Bytes that products need one after the other, beside their sources and results."""

    left: int
    right: int
    scales: int

    @property
    def size_bytes(self) -> int:
        """All of it; each part is a multiple of what kernels want parts aligned to."""
        return sum(_up(part, PART_ALIGNMENT) for part in (self.left, self.right, self.scales))


def scratch(matrices: Iterable[Matrix], rows: int) -> Scratch:
    """Return the scratch of any of these products for at most `rows` rows of a chunk."""
    left = right = scales = 0
    for matrix in matrices:
        form = form_of(matrix.dtype)
        left = max(left, left_bytes(rows, matrix.columns, form))
        right = max(right, right_bytes(matrix.rows, matrix.columns, form))
        scales = max(scales, scales_bytes(rows, form))
    return Scratch(left, right, scales)


def row_bytes(columns: int, form: Form) -> int:
    """Return the bytes of a row of a factor that is not tiled."""
    if form is Form.SPLIT:
        return 2 * factor_columns(columns, form)
    return 2 * columns


def stride(columns: int, form: Form, *, is_tiled: bool) -> int:
    """Return the field `stride` of who writes a factor."""
    return factor_tiles(columns, form) if is_tiled else row_bytes(columns, form)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
