"""A8 rows in NumPy: [codes int8 × K][scale F32 × K/32][sum F32 × K/32]."""

from typing import NamedTuple

import numpy as np


class Parts(NamedTuple):
    codes: np.ndarray
    scales: np.ndarray
    sums: np.ndarray


def empty(rows: int, columns: int) -> np.ndarray:
    """Return memory for A8 rows, poisoned."""
    return np.full((rows, columns * 5 // 4), 0x7F, np.uint8)


def parts(rows: np.ndarray) -> Parts:
    """Return the parts of A8 rows."""
    columns = rows.shape[1] * 4 // 5
    middle = columns + columns // 8
    return Parts(
        rows[:, :columns].view(np.int8),
        rows[:, columns:middle].view(np.float32),
        rows[:, middle:].view(np.float32),
    )


def expected_parts(x: np.ndarray) -> Parts:
    """Quantize F32 rows as the design says, every step in F32."""
    groups = x.reshape(len(x), -1, 32)
    scales = np.abs(groups).max(axis=-1) / np.float32(127)
    with np.errstate(divide="ignore"):
        inverse = np.float32(1) / scales
    inverse[np.isinf(inverse)] = 0
    codes = np.rint(groups * inverse[..., None]).astype(np.int8)
    sums = scales * codes.sum(axis=-1, dtype=np.int32).astype(np.float32)
    return Parts(codes.reshape(x.shape), scales, sums)


def decoded(rows: np.ndarray) -> np.ndarray:
    """Return the values A8 rows stand for."""
    codes, scales, _ = parts(rows)
    return codes.astype(np.float32) * np.repeat(scales, 32, axis=1)
