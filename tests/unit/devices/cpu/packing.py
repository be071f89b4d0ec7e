"""Packs quantized rows as `quant/packed.py` describes, in NumPy, byte by byte from its text."""

import numpy as np

from corral.quant.dequantize import split_blocks
from corral.quant.packed import LAYOUTS, Scales
from corral.quant.types import DType

ROWS = 16


def random_bytes(random: np.random.Generator, dtype: DType, rows: int, columns: int) -> np.ndarray:
    """Return rows of a type with random codes and scales that are small and finite."""
    if not dtype.is_quantized:
        values = random.standard_normal((rows, columns)).astype(np.float32)
        if dtype is DType.BF16:
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype({DType.F32: np.float32, DType.F16: np.float16}[dtype]).view(np.uint8)
    data = random.integers(0, 256, (rows, dtype.row_bytes(columns)), dtype=np.uint8)
    blocks = data.reshape(-1, dtype.block_bytes)
    if dtype is DType.MXFP4:
        blocks[:, 0] = random.integers(100, 140, len(blocks))
        return data
    at_end = {DType.Q2_K: (80, 82), DType.Q3_K: (108,), DType.Q6_K: (208,)}
    two = (DType.Q4_1, DType.Q5_1, DType.Q4_K, DType.Q5_K)
    for offset in at_end.get(dtype, (0, 2) if dtype in two else (0,)):
        halves = random.uniform(-1, 1, len(blocks)).astype(np.float16)
        blocks[:, offset : offset + 2] = halves[:, None].view(np.uint8)
    return data


def pack(data: np.ndarray, dtype: DType, rows: int, columns: int) -> np.ndarray:
    """Return the packed bytes of a matrix, its last rows padded with zero bytes."""
    layout = LAYOUTS[dtype]
    padded = -(-rows // ROWS) * ROWS
    if layout.is_float:
        size = layout.code_bits // 8
        cells = np.zeros((padded, columns, size), np.uint8)
        cells[:rows] = data.reshape(rows, columns, size)
        return cells.reshape(-1, ROWS, columns, size).transpose(0, 2, 1, 3).reshape(-1)
    full = np.zeros((padded, data.size // rows), np.uint8)
    full[:rows] = data.reshape(rows, -1)
    parts = [
        _row_block(full[first : first + ROWS].reshape(-1, dtype.block_bytes), dtype, columns)
        for first in range(0, padded, ROWS)
    ]
    return np.concatenate(parts)


def _row_block(blocks: np.ndarray, dtype: DType, columns: int) -> np.ndarray:
    layout, split = LAYOUTS[dtype], split_blocks(blocks, dtype)
    codes = split.codes.reshape(ROWS, columns // 32, 32)
    out: list[np.ndarray] = []
    for group in range(columns // 32):
        if layout.has_spans and group % 8 == 0:
            out += [_halves(part, group // 8) for part in (split.scale, split.offset)]
        if layout.scales is Scales.HALF:
            out += [_halves(part, group) for part in (split.scale, split.offset)]
        elif layout.scales is Scales.EXPONENT:
            out.append(blocks.reshape(ROWS, columns // 32, -1)[:, group, 0])
        else:
            out += [_small(part, group, layout) for part in (split.sub_scales, split.sub_offsets)]
        out.append(_code_planes(codes[:, group], layout.code_bits))
    return np.concatenate(out)


def _halves(values: np.ndarray | None, n: int) -> np.ndarray:
    if values is None:
        return np.zeros(0, np.uint8)
    return values.reshape(ROWS, -1)[:, n].astype(np.float16).view(np.uint8)


def _small(values: np.ndarray | None, group: int, layout) -> np.ndarray:
    if values is None:
        return np.zeros(0, np.uint8)
    each = 32 // layout.scale_columns
    parts = values.reshape(ROWS, -1)[:, group * each : (group + 1) * each]
    return np.ascontiguousarray(parts.T).view(np.uint8).reshape(-1)


def _code_planes(codes: np.ndarray, bits: int) -> np.ndarray:
    """Return the planes of one group: (16 rows, 32 columns) → bytes."""
    if bits == 8:
        return _chunks(codes)
    low = codes & 15
    planes = [_chunks(low[:, :16] | low[:, 16:] << 4)]
    top = codes >> 4
    if bits == 5:
        plane = np.zeros((ROWS, 4), np.uint8)
        for column in range(32):
            plane[:, column % 4] |= top[:, column] << (column // 4)
        planes.append(_chunks(plane))
    if bits == 6:
        for h in range(2):
            plane = np.zeros((ROWS, 4), np.uint8)
            for column in range(16):
                plane[:, column % 4] |= top[:, 16 * h + column] << (2 * (column // 4))
            planes.append(_chunks(plane))
    return np.concatenate(planes)


def _chunks(columns: np.ndarray) -> np.ndarray:
    """Return chunks of four bytes of every row: (16, n) → n/4 × 64 bytes."""
    return columns.reshape(ROWS, -1, 4).transpose(1, 0, 2).reshape(-1)
