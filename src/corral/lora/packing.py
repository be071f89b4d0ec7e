"""How devices keep an adapter: its values in F16, the rank padded with zeros to whole units.

    A  for each unit: (columns, 8)          B  for each 16 rows: (ranks, 16), rows padded, too

Each half is multiplied with a power of two that makes its greatest value about 1, so that F16
neither overflows nor loses small values; both powers are part of the factor of B·A.
"""

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from corral.errors import InvalidAdapter
from corral.lora.placing import up
from corral.lora.values import Matrix
from corral.tensor.attach import LANES, UNIT_RANKS

_LARGEST = 3e38


@dataclass(frozen=True, slots=True, eq=False)
class PackedPair:
    """The halves of a pair as devices keep them."""

    a: NDArray[np.uint8]
    b: NDArray[np.uint8]
    factor_word: int
    """The bits of the F32 that their product must be multiplied with."""


def pack(a: Matrix, b: Matrix, scale: float) -> PackedPair:
    """Return A (rank, columns) and B (rows, rank) as devices keep them.

    Raises:
        InvalidAdapter: if the factor of their product exceeds F32.
    """
    (rank, columns), rows = a.shape, b.shape[0]
    ranks = up(rank, UNIT_RANKS)
    a_power, b_power = _power(a), _power(b)
    wide = np.zeros((ranks, columns), np.float16)
    wide[:rank] = np.ldexp(a, -a_power)
    tall = np.zeros((up(rows, LANES), ranks), np.float16)
    tall[:rows, :rank] = np.ldexp(b, -b_power)
    return PackedPair(
        _bytes(wide.reshape(-1, UNIT_RANKS, columns)),
        _bytes(tall.reshape(-1, LANES, ranks)),
        _word(float(np.ldexp(scale, a_power + b_power))),
    )


def _word(factor: float) -> int:
    if abs(factor) > _LARGEST:
        raise InvalidAdapter(f"the values of a pair multiply to {factor:g}, which exceeds F32")
    word: int = struct.unpack("<I", struct.pack("<f", factor))[0]
    return word


def _bytes(blocks: NDArray[np.float16]) -> NDArray[np.uint8]:
    """Return the bytes of blocks, each stored column by column."""
    return np.ascontiguousarray(blocks.transpose(0, 2, 1)).reshape(-1).view(np.uint8)


def _power(values: Matrix) -> int:
    """Return the power of two that the greatest value is next to."""
    greatest = float(np.max(np.abs(values), initial=0.0))
    return int(np.frexp(greatest)[1]) if greatest else 0
