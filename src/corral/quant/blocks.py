"""Blocks taken apart into codes, scales and offsets: the common form of all quantized types.

With the `zero` or `values` of the type's packed layout, every type decodes by one rule:

    value = (scale × sub-scale) × (code − zero) + offset × sub-offset

Knows no type's bit order; `legacy.py`, `k_quants.py` and `i_quants.py` do.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from corral.errors import InvalidArgument

Bytes = npt.NDArray[np.uint8]
Halves = npt.NDArray[np.float16]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Blocks:
    """`n` blocks of one type; which of the optional parts there are depends on the type alone."""

    codes: Bytes
    """(n, block elements): unsigned, before `zero` is subtracted or `values` are looked up."""
    scale: Floats
    """(n,): what the F16 or power of two of each block stands for."""
    sub_scales: npt.NDArray[np.int8] | Bytes | None = None
    """(n, parts): an integer a part of the block."""
    offset: Floats | None = None
    """(n,): added, so the negative of a K-quant's minimum."""
    sub_offsets: Bytes | None = None
    """(n, parts)."""


def planes(data: Bytes, run: int, bits: int) -> Bytes:
    """Unpack fields of `bits` bits: of each `run` bytes first all lowest fields, then the next.

    (n, bytes) → (n, bytes × 8 / bits)
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    fields = data.reshape(len(data), -1, 1, run) >> shifts & np.uint8((1 << bits) - 1)
    return fields.reshape(len(data), -1)


def half(data: Bytes) -> Floats:
    """Decode an F16 a block: (n, 2) bytes → (n,)."""
    return np.ascontiguousarray(data).view("<f2")[:, 0].astype(np.float32)


def half_bytes(values: Floats) -> Bytes:
    """Encode an F16 a block: (n,) → (n, 2) bytes.

    Raises:
        InvalidArgument: if a value is beyond the range of F16.
    """
    with np.errstate(over="ignore"):
        halves = values.astype("<f2")
    if not np.isfinite(halves).all():
        worst = np.abs(values).max()
        raise InvalidArgument(
            f"{worst:.3g} came where an F16 must hold it, which reaches 65504; "
            "the values are too large for this type"
        )
    return halves[:, None].view(np.uint8)
