"""Packed rows hold exactly what the file's rows hold."""

import numpy as np
import pytest

from corral.devices.cpu.pack import pack_rows, unpack_rows
from corral.quant.dequantize import dequantize
from corral.quant.packed import LAYOUTS, SPAN
from corral.quant.types import DType

DTYPES = pytest.mark.parametrize("dtype", LAYOUTS, ids=lambda t: t.name)


def file_rows(dtype: DType, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Random bytes that are legal weights: no scale is infinite or a NaN."""
    random = np.random.default_rng(seed)
    if dtype in (DType.F32, DType.F16, DType.BF16):
        values = random.standard_normal((rows, columns)).astype(np.float32)
        if dtype is DType.BF16:
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(-1)
        kind = np.float32 if dtype is DType.F32 else np.float16
        return values.astype(kind).view(np.uint8).reshape(-1)
    blocks = random.integers(0, 256, (rows * columns // dtype.block_elements, dtype.block_bytes))
    blocks = blocks.astype(np.uint8)
    for at in _half_offsets(dtype):
        halves = random.standard_normal(len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = halves[:, None].view(np.uint8)
    if dtype is DType.MXFP4:
        blocks[:, 0] = random.integers(118, 128, len(blocks))
    return blocks.reshape(-1)


def _half_offsets(dtype: DType) -> tuple[int, ...]:
    """Where the F16 numbers of a block are."""
    match dtype:
        case DType.Q2_K:
            return (80, 82)
        case DType.Q3_K:
            return (108,)
        case DType.Q6_K:
            return (208,)
        case DType.Q4_1 | DType.Q5_1 | DType.Q4_K | DType.Q5_K:
            return (0, 2)
        case DType.MXFP4:
            return ()
        case _:
            return (0,)


def columns_of(dtype: DType) -> int:
    """An odd number of the least columns of a type."""
    return 3 * SPAN if LAYOUTS[dtype].has_spans else 576 if not LAYOUTS[dtype].is_float else 37


@DTYPES
@pytest.mark.parametrize("rows", [1, 16, 17])
def test_packing_loses_nothing(dtype, rows):
    """Unpacked values are the file's, to the bit, and the size is what the layout says."""
    columns = columns_of(dtype)
    data = file_rows(dtype, rows, columns)
    packed = pack_rows(data, dtype, rows, columns)
    assert packed.size == LAYOUTS[dtype].size_bytes(rows, columns)
    expected = dequantize(data, dtype, (rows, columns))
    assert np.array_equal(unpack_rows(packed, dtype, rows, columns), expected)
