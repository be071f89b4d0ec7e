"""A8: rows of int8 codes with a scale and a sum for each 32 columns.

One row is [codes int8 × K][scale F32 × K/32][sum F32 × K/32], with sum = scale × Σ codes.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from corral.devices.reference.storage import GROUP, Floats, int8_codes

Bytes = NDArray[np.uint8]


class Rows8(NamedTuple):
    """The three parts of A8 rows."""

    codes: NDArray[np.int8]
    """(rows, K)"""
    scales: Floats
    """(rows, K/32)"""
    sums: Floats
    """(rows, K/32)"""


def parts(rows: Bytes) -> Rows8:
    """Return the parts of A8 rows as arrays over the same memory."""
    columns = rows.shape[1] * 4 // 5
    middle = columns + columns // 8
    return Rows8(
        rows[:, :columns].view(np.int8),
        rows[:, columns:middle].view(np.float32),
        rows[:, middle:].view(np.float32),
    )


def quantize(x: Floats, result: Bytes) -> None:
    """Write rows of F32 as A8."""
    out = parts(result)
    codes, out.scales[:] = int8_codes(_groups(x))
    out.codes[:] = codes.reshape(x.shape)
    out.sums[:] = out.scales * codes.sum(axis=-1, dtype=np.float32)


def decoded(rows: Bytes) -> Floats:
    """Return the values that A8 rows stand for."""
    codes, scales, _ = parts(rows)
    groups = _groups(codes).astype(np.float32)
    return (groups * scales[..., None]).reshape(codes.shape)


def _groups(x: NDArray[Any]) -> NDArray[Any]:
    """Split the columns into groups; an evaluation may have no rows at all."""
    return x.reshape(len(x), x.shape[1] // GROUP, GROUP)
