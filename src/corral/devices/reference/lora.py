"""What adapters add to products, span by span, on matrices where the table says they lie."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corral.devices.host import array_at
from corral.devices.reference.storage import Floats
from corral.tensor.attach import LANES, UNIT_RANKS
from corral.tensor.tensor import Tensor


@dataclass(frozen=True, slots=True)
class _Span:
    """Rows that one adapter counts for, and where its matrices for one weight are."""

    rows: slice
    ranks: slice
    """Its columns among those of LORA_DOWN."""
    scale: np.float32
    a: int
    b: int
    units: int

    def matrix_a(self, columns: int) -> Floats:
        """Return A: (ranks, columns)."""
        packed = array_at(self.a, (self.units, columns, UNIT_RANKS), np.float16)
        return packed.transpose(0, 2, 1).reshape(-1, columns).astype(np.float32)

    def matrix_b(self, rows: int) -> Floats:
        """Return B: (rows, ranks)."""
        ranks = self.units * UNIT_RANKS
        packed = array_at(self.b, (-(-rows // LANES), ranks, LANES), np.float16)
        return packed.transpose(0, 2, 1).reshape(-1, ranks)[:rows].astype(np.float32)


def lora_down(
    node: Tensor, result: Floats, x: Floats, spans: NDArray[Any], adapters: NDArray[Any]
) -> None:
    """Multiply rows by the A of their adapters; other rows are left alone."""
    for span in _spans(spans, adapters):
        result[span.rows, span.ranks] = x[span.rows] @ span.matrix_a(x.shape[1]).T


def lora_up(
    node: Tensor,
    result: Floats,
    y: Floats,
    down: Floats,
    spans: NDArray[Any],
    adapters: NDArray[Any],
) -> None:
    """Add what the B of each row's adapters makes of `down`."""
    result[:] = y
    for span in _spans(spans, adapters):
        added = down[span.rows, span.ranks] @ span.matrix_b(y.shape[1]).T
        result[span.rows] += span.scale * added


def _spans(spans: NDArray[Any], adapters: NDArray[Any]) -> Iterator[_Span]:
    """Yield the spans whose adapters change the weight."""
    for row in spans[1 : 1 + spans[0, 0]]:
        first, end, slot, unit = map(int, row[:4])
        a, b, units, factor = map(int, adapters[slot])
        if units:
            scale = row[4:5].view(np.float32)[0] * np.array([factor], np.uint32).view(np.float32)[0]
            ranks = slice(unit * UNIT_RANKS, (unit + units) * UNIT_RANKS)
            yield _Span(slice(first, end), ranks, scale, a, b, units)
