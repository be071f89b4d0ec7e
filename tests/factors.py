"""Factors of prefill products as arrays: from tiles, to tiles, through BF16.

The tiles are described in `kernels/include/tiles.cuh`; this is a second reading of that text.
"""

import numpy as np

from corral.memory.factors import Form, factor_columns
from corral.quant.quantize import quantize
from corral.quant.types import DType

ROWS, COLUMNS = 128, 64
_HALVES_AT = {
    DType.Q4_1: (0, 2),
    DType.Q5_1: (0, 2),
    DType.Q2_K: (80, 82),
    DType.Q3_K: (108,),
    DType.Q4_K: (0, 2),
    DType.Q5_K: (0, 2),
    DType.Q6_K: (208,),
}
"""Where the F16 numbers of a block are; byte 0 where a type is not listed."""


def random_blocks(generator, dtype, rows, columns):
    """Return random weights as a file has them, (rows, bytes): any codes, scales about 1."""
    if not dtype.is_quantized:
        return quantize(generator.normal(size=(rows, columns)).astype(np.float32), dtype)
    raw = generator.integers(0, 256, (rows, dtype.row_bytes(columns)), dtype=np.uint8)
    blocks = raw.reshape(-1, dtype.block_bytes)
    if dtype is DType.MXFP4:
        blocks[:, 0] = generator.integers(120, 131, len(blocks))
        return raw
    for at in _HALVES_AT.get(dtype, (0,)):
        halves = generator.normal(size=len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)
    return raw


def to_bf16(values):
    """Return the bits of values rounded to BF16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    """Return what BF16 bits stand for."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded(values):
    """Return values as BF16 keeps them."""
    return from_bf16(to_bf16(values))


def _places():
    """Return where each element of a tile stands: (128, 64)."""
    row, column = np.indices((ROWS, COLUMNS))
    return row * COLUMNS + (column // 8 ^ row % 8) * 8 + column % 8


def to_tiles(bits):
    """Return elements of 16 bits, (rows, columns), as tiles: flat, padded with zeros."""
    rows, columns = bits.shape
    padded = np.zeros((-(-rows // ROWS) * ROWS, -(-columns // COLUMNS) * COLUMNS), np.uint16)
    padded[:rows, :columns] = bits
    tiles = padded.reshape(-1, ROWS, padded.shape[1] // COLUMNS, COLUMNS).transpose(0, 2, 1, 3)
    out = np.empty((*tiles.shape[:2], ROWS * COLUMNS), np.uint16)
    out[..., _places()] = tiles
    return out.reshape(-1)


def from_tiles(flat, columns):
    """Return tiles as elements of 16 bits, all rows: (rows, columns), columns a multiple of 64."""
    tiles = flat.reshape(-1, columns // COLUMNS, ROWS * COLUMNS)[..., _places()]
    return tiles.transpose(0, 2, 1, 3).reshape(-1, columns)


def elements(bits, form):
    """Return what the elements of a factor stand for."""
    return bits.view(np.float16).astype(np.float32) if form is Form.F16 else from_bf16(bits)


def right_factor(weights, form):
    """Return weights, (rows, columns), as the right factor in rows: bits."""
    padded = np.zeros((len(weights), factor_columns(weights.shape[1], form) // form.matrices))
    padded = padded.astype(np.float32)
    padded[:, : weights.shape[1]] = weights
    if form is Form.F16:
        return padded.astype(np.float16).view(np.uint16)
    high = to_bf16(padded)
    if form is Form.BF16:
        return high
    return np.concatenate([high, high, to_bf16(padded - from_bf16(high))], axis=1)


def left_factor(x, form):
    """Return rows of F32 as the left factor in rows, and the scales of rows."""
    scales = np.ones(len(x), np.float32)
    if form is Form.F16:
        greatest = np.maximum(np.abs(x).max(axis=1), 1e-30)
        scales = np.exp2(np.floor(np.log2(greatest)) - 14).astype(np.float32)
        return right_factor(x / scales[:, None], form), scales
    if form is Form.SPLIT:
        high, _, low = np.split(right_factor(x, form), 3, axis=1)
        return np.concatenate([high, low, high], axis=1), scales
    return right_factor(x, form), scales
