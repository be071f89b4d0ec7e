"""Scratch for products of many rows, which some devices compute from factors of 16 bits.

    rows of F32 or of codes ──▶ left factor  ─┐
                                              ├─▶ product
    packed weights ───────────▶ right factor ─┘

Factors lie in tiles, whole ones. Two left factors may be needed at once (one is read while the next
is made), and one right factor, of all weights of a step.
"""

from dataclasses import dataclass

from corral.memory.planner import align
from corral.quant.types import DType
from corral.tensor.graph import Graph
from corral.tensor.steps import Step, steps
from corral.tensor.tensor import Extent

TILE_ROWS = 128
TILE_COLUMNS = 64
WIDEST_TILE = 256
"""Columns of the result that are computed together: right factors are padded to it."""
LEFT_FACTORS = 2
_ALIGNMENT = 1024
_ELEMENT_BYTES = 2


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


def matrices(weight: DType) -> int:
    """Return how many matrices of 16 bits stand for one of a type: F32 takes three of BF16."""
    return 3 if weight is DType.F32 else 1


def factor_columns(columns: int, weight: DType) -> int:
    """Return the columns of a factor, whole tiles of each of its matrices."""
    return matrices(weight) * align_up(columns, TILE_COLUMNS)


def is_wide(step: Step) -> bool:
    """Say whether a step has the rows of the batch, which may be many, and not those of outputs."""
    return step.is_product and step.nodes[0].extent is Extent.ROWS


def factor_space(graph: Graph, rows: int) -> FactorSpace:
    """Return what batches of at most so many rows need for any step of a graph."""
    left = right = 0
    for step in steps(graph):
        if not is_wide(step):
            continue
        weights = [node.sources[1] for node in step.nodes]
        columns = max(factor_columns(w.columns, w.dtype) for w in weights)
        total = sum(w.rows for w in weights)
        left = max(left, align_up(rows, TILE_ROWS) * columns * _ELEMENT_BYTES)
        right = max(right, align_up(total, WIDEST_TILE) * columns * _ELEMENT_BYTES)
        if step.gate is not None:  # its result is a left factor, too
            of_gate = factor_columns(step.gate.columns, weights[0].dtype)
            left = max(left, align_up(rows, TILE_ROWS) * of_gate * _ELEMENT_BYTES)
    if not left:
        return FactorSpace()
    sizes = (align(size, _ALIGNMENT) for size in (left, 4 * rows, right))
    return FactorSpace(*sizes)


def align_up(value: int, unit: int) -> int:
    """Return the least multiple of any unit that is not below a value."""
    return -(-value // unit) * unit
