"""Decoding: bit for bit what the reference package computes."""

import gguf
import numpy as np
import pytest

from corral.errors import InvalidArgument, UnsupportedModel
from corral.quant.dequantize import combine, dequantize, split_blocks
from corral.quant.packed import LAYOUTS
from corral.quant.types import DType

RUNNABLE = list(LAYOUTS)
QUANTIZED = [t for t in RUNNABLE if t.is_quantized]
HALF_OFFSETS = {
    DType.Q4_1: (0, 2),
    DType.Q5_1: (0, 2),
    DType.Q2_K: (80, 82),
    DType.Q3_K: (108,),
    DType.Q4_K: (0, 2),
    DType.Q5_K: (0, 2),
    DType.Q6_K: (208,),
    DType.MXFP4: (),
}
"""Where the F16 numbers of a block are; byte 0 where a type is not listed."""
WEIRD = {
    "nan": 0x7E00,
    "signalling-nan": 0x7D01,
    "infinity": 0x7C00,
    "minus-infinity": 0xFC00,
    "zero": 0,
    "minus-zero": 0x8000,
    "least-subnormal": 1,
    "largest": 0x7BFF,
}


def reference(data: np.ndarray, dtype: DType) -> np.ndarray:
    """Decode with the `gguf` package: (rows, bytes) → (rows, columns)."""
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(data, gguf.GGMLQuantizationType(dtype.value.ggml_id))


def random_rows(dtype: DType, seed: int, rows: int = 33, blocks: int = 4) -> np.ndarray:
    """Random bytes: every bit pattern of codes and scales turns up."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (rows, blocks * dtype.block_bytes), dtype=np.uint8)


def assert_same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    """Compare floats bit for bit, where any NaN equals any other."""
    assert found.dtype == np.float32
    both = np.isnan(found) & np.isnan(expected)
    same = found.view(np.uint32) == expected.view(np.uint32)
    assert (same | both).all()


@pytest.mark.parametrize("dtype", RUNNABLE, ids=lambda t: t.name)
@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_decode_as_in_the_reference(dtype: DType, seed: int):
    """Any bytes decode to the bits that the reference package gives."""
    data = random_rows(dtype, seed, blocks=4 if dtype.is_quantized else 64)
    shape = (33, data.shape[1] // dtype.block_bytes * dtype.block_elements)
    assert_same_bits(dequantize(data, dtype, shape), reference(data, dtype))


@pytest.mark.parametrize("dtype", QUANTIZED, ids=lambda t: t.name)
@pytest.mark.parametrize("bits", WEIRD.values(), ids=WEIRD)
def test_weird_scales(dtype: DType, bits: int):
    """G103-G106: NaN, infinite, zero and subnormal scales give what arithmetic gives."""
    data = random_rows(dtype, 7, rows=3, blocks=2)
    blocks = data.reshape(-1, dtype.block_bytes)
    for at in HALF_OFFSETS.get(dtype, (0,)):
        blocks[:, at : at + 2] = np.array([bits], dtype="<u2").view(np.uint8)
    found = dequantize(data, dtype, (3, 2 * dtype.block_elements))
    assert_same_bits(found, reference(data, dtype))


@pytest.mark.parametrize("dtype", QUANTIZED, ids=lambda t: t.name)
@pytest.mark.parametrize("byte", [0, 255])
def test_extreme_codes(dtype: DType, byte: int):
    """G107: the least and the largest code and scale of each type decode."""
    data = np.full((1, dtype.block_bytes), byte, dtype=np.uint8)
    found = dequantize(data, dtype, (1, dtype.block_elements))
    assert_same_bits(found, reference(data, dtype))


@pytest.mark.parametrize("exponent", range(0, 256, 15))
def test_exponents_of_mxfp4(exponent: int):
    """The power of two of MXFP4 is right over its whole range, subnormals included."""
    data = random_rows(DType.MXFP4, 1, rows=1, blocks=1)
    data[0, 0] = exponent
    assert_same_bits(dequantize(data, DType.MXFP4, (1, 32)), reference(data, DType.MXFP4))


def test_long_tensors_decode_in_chunks():
    """A tensor longer than a chunk decodes as a whole, of any rank."""
    data = random_rows(DType.Q4_K, 3, rows=2, blocks=4200)
    found = dequantize(data, DType.Q4_K, (2, 1, 4200 * 256))
    assert found.shape == (2, 1, 4200 * 256)
    assert_same_bits(found[:, 0], reference(data, DType.Q4_K))


def test_buffers_of_all_kinds():
    """Bytes, bytearrays, views and arrays are taken alike, empty ones too."""
    data = random_rows(DType.Q8_0, 5, rows=1, blocks=1)
    expected = reference(data, DType.Q8_0)
    raw = data.tobytes()
    for buffer in (raw, bytearray(raw), memoryview(raw), data, data.view(np.int8)):
        assert_same_bits(dequantize(buffer, DType.Q8_0, (1, 32)), expected)
    assert dequantize(b"", DType.Q8_0, (0, 32)).shape == (0, 32)
    assert dequantize(bytes(4), DType.F32, (1,)).tolist() == [0.0]


def test_wrong_sizes_and_types_are_refused():
    """Bytes that do not make the shape, and types we do not run, are errors."""
    with pytest.raises(InvalidArgument, match=r"33 bytes of Q8_0 came, .* takes 34"):
        dequantize(bytes(33), DType.Q8_0, (1, 32))
    with pytest.raises(UnsupportedModel, match="IQ2_XXS"):
        dequantize(bytes(66), DType.IQ2_XXS, (1, 256))


@pytest.mark.parametrize("dtype", QUANTIZED, ids=lambda t: t.name)
def test_blocks_obey_their_layout(dtype: DType):
    """Codes fit the bits of the packed layout, scales and offsets have its granularity."""
    layout = LAYOUTS[dtype]
    blocks = split_blocks(random_rows(dtype, 11, rows=9, blocks=1), dtype)
    assert blocks.codes.shape == (9, dtype.block_elements)
    assert blocks.codes.max() < 1 << layout.code_bits
    assert (blocks.offset is not None) == layout.has_offset
    if layout.has_spans:
        assert blocks.sub_scales is not None
        assert blocks.sub_scales.shape == (9, 256 // layout.scale_columns)
        assert (blocks.sub_offsets is not None) == layout.has_offset
    assert combine(blocks, dtype).shape == blocks.codes.shape
