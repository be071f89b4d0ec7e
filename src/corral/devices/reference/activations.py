"""A8 and A16: rows of integer codes with a scale and a sum for each 32 columns.

One row is [planes of int8 codes × K][scale F32 × K/32][sum F32 × K/32], with sum = scale × Σ codes.
A8 has one plane; A16 has two, and its codes are 256 × the first + the second.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from corral.devices.reference.storage import GROUP, Floats, integer_codes
from corral.quant.types import DType

Bytes = NDArray[np.uint8]

PLANES = {DType.A8: 1, DType.A16: 2}
"""Planes of codes of each data type."""
GREATEST = {DType.A8: 127, DType.A16: 127 * 256}
"""The code of the greatest column of a group."""


class Rows(NamedTuple):
    """The three parts of rows."""

    planes: NDArray[np.int8]
    """(rows, planes, K)"""
    scales: Floats
    """(rows, K/32)"""
    sums: Floats
    """(rows, K/32)"""

    @property
    def codes(self) -> NDArray[np.int32]:
        """The codes of all planes put together: (rows, K)."""
        codes = self.planes[:, 0].astype(np.int32)
        for plane in range(1, self.planes.shape[1]):
            codes = codes * 256 + self.planes[:, plane]
        return codes


def parts(rows: Bytes, dtype: DType = DType.A8) -> Rows:
    """Return the parts of rows as arrays over the same memory."""
    planes = PLANES[dtype]
    columns = rows.shape[1] * 4 // (4 * planes + 1)
    first, second = planes * columns, planes * columns + columns // 8
    return Rows(
        rows[:, :first].view(np.int8).reshape(len(rows), planes, columns),
        rows[:, first:second].view(np.float32),
        rows[:, second:].view(np.float32),
    )


def quantize(x: Floats, result: Bytes, dtype: DType = DType.A8) -> None:
    """Write rows of F32 as A8 or A16."""
    out = parts(result, dtype)
    codes, out.scales[:] = integer_codes(_groups(x), GREATEST[dtype])
    out.sums[:] = out.scales * codes.sum(axis=-1, dtype=np.float32)
    rest = codes.reshape(x.shape)
    if dtype is DType.A16:
        high = (rest + 128) >> 8
        out.planes[:, 0], rest = high, rest - 256 * high
    out.planes[:, -1] = rest


def decoded(rows: Bytes, dtype: DType = DType.A8) -> Floats:
    """Return the values that rows stand for."""
    coded = parts(rows, dtype)
    groups = _groups(coded.codes.astype(np.float32))
    return (groups * coded.scales[..., None]).reshape(coded.codes.shape)


def _groups(x: NDArray[Any]) -> NDArray[Any]:
    """Split the columns into groups; an evaluation may have no rows at all."""
    return x.reshape(len(x), x.shape[1] // GROUP, GROUP)
