"""The two factors of a product of many rows, which some devices compute from 16 bits an element.

    rows of F32 or of codes ──▶ left factor  ─┐
                                              ├─▶ product
    packed weights ───────────▶ right factor ─┘

What factors are depends on the weights' type (`Form`). They lie in whole tiles, or row by row.
Two left factors may be needed at once (one is read while the next is made), and one right factor,
of all weights of a step.
"""

import enum
from dataclasses import dataclass

from corral.memory.planner import align
from corral.quant.types import DType
from corral.tensor.graph import Graph
from corral.tensor.steps import Step, steps
from corral.tensor.tensor import Extent

TILE_ROWS = 128
TILE_COLUMNS = 64
TILE_BYTES = TILE_ROWS * TILE_COLUMNS * 2
WIDEST_TILE = 256
"""Columns of the result that are computed together: right factors are padded to it."""
LEFT_FACTORS = 2
ALIGNMENT = 1024
"""Of each part of the scratch."""


class Form(enum.Enum):
    """What the factors of a product are."""

    BF16 = "one matrix of BF16"
    F16 = "one matrix of F16; rows on the left are divided by a power of two each"
    SPLIT = "three matrices of BF16: left high, low, high; right high, high, low"

    @property
    def matrices(self) -> int:
        """How many matrices stand side by side."""
        return 3 if self is Form.SPLIT else 1


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


def row_bytes(columns: int, form: Form) -> int:
    """Return the bytes of a row of a factor that is not tiled."""
    if form is Form.SPLIT:
        return 2 * factor_columns(columns, form)
    return 2 * columns


def stride(columns: int, form: Form, *, is_tiled: bool) -> int:
    """Return the step from a row of tiles, or a row, to the next, as who writes a factor counts."""
    return factor_tiles(columns, form) if is_tiled else row_bytes(columns, form)


@dataclass(frozen=True, slots=True)
class FactorSpace:
    """Bytes set aside for factors, and where they lie in it."""

    left_bytes: int = 0
    """Of one left factor."""
    scales_bytes: int = 0
    """Of the scales of its rows."""
    right_bytes: int = 0

    def left(self, number: int) -> int:
        """Return the offset of a left factor."""
        return self.right_bytes + number * (self.left_bytes + self.scales_bytes)

    def scales(self, number: int) -> int:
        """Return the offset of the scales of a left factor."""
        return self.left(number) + self.left_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of everything."""
        return self.left(LEFT_FACTORS)


def is_wide(step: Step) -> bool:
    """Say whether a step has the rows of the batch, which may be many, and not those of outputs."""
    return step.is_product and step.nodes[0].extent is Extent.ROWS


def factor_space(graph: Graph, rows: int) -> FactorSpace:
    """Return what batches of at most so many rows need for any step of a graph."""
    left = right = 0
    for step in filter(is_wide, steps(graph)):
        weights = [node.sources[1] for node in step.nodes]
        total = sum(weight.rows for weight in weights)
        for weight in weights:
            form = form_of(weight.dtype)
            left = max(left, left_bytes(rows, weight.columns, form))
            right = max(right, right_bytes(total, weight.columns, form))
        if step.gate is not None:  # its result is a left factor, too
            left = max(left, left_bytes(rows, step.gate.columns, form_of(weights[0].dtype)))
    sizes = (left, 4 * rows, right) if left else (0, 0, 0)
    return FactorSpace(*(align(size, ALIGNMENT) for size in sizes))


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
