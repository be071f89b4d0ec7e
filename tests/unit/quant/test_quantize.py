"""Encoding: byte for byte what ggml's reference quantizers make of the same values.

Most of those exist in C only. `benchmarks/quantize.py` compares with a library of llama.cpp, and
prints the digests that `tests/encoded.py` keeps.
"""

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.errors import InvalidArgument
from corral.quant.dequantize import dequantize
from corral.quant.quantize import quantize
from corral.quant.types import DType
from encoded import CASES, ENCODED, digest

PLAIN = [DType.Q4_0, DType.Q4_1, DType.Q5_0, DType.Q5_1, DType.Q8_0, DType.BF16, DType.F16]
NORMAL = np.random.default_rng(2).standard_normal((40, 512)).astype(np.float32)


@pytest.mark.parametrize("dtype", ENCODED, ids=lambda t: t.name)
@pytest.mark.parametrize("case", CASES)
def test_bytes_are_the_references(dtype: DType, case: str):
    """Each type encodes each kind of values to the bytes that ggml's quantizer gives."""
    assert digest(quantize(CASES[case], dtype)) == ENCODED[dtype][case]


@pytest.mark.parametrize("dtype", PLAIN)
def test_plain_quantizers_match_the_reference(dtype: DType):
    """Types with one obvious rounding are encoded to the bytes of the reference package."""
    for values in (NORMAL, NORMAL * 1e-3, np.zeros_like(NORMAL), np.round(NORMAL * 8)):
        kind = gguf.GGMLQuantizationType(dtype.value.ggml_id)
        with np.errstate(all="ignore"):
            expected = gguf.quants.quantize(values, kind).view(np.uint8)
        assert np.array_equal(quantize(values, dtype), expected)


@pytest.mark.parametrize(
    ("dtype", "most"),
    [
        (DType.F32, 0),
        (DType.F16, 1e-6),
        (DType.BF16, 1e-5),
        (DType.Q8_0, 1e-4),
        (DType.Q6_K, 6e-4),
        (DType.Q5_K, 2e-3),
        (DType.Q4_K, 6e-3),
        (DType.Q3_K, 3e-2),
        (DType.Q2_K, 9e-2),
        (DType.Q5_1, 2e-3),
        (DType.Q5_0, 3e-3),
        (DType.Q4_1, 1e-2),
        (DType.Q4_0, 1e-2),
    ],
)
def test_round_trips_lose_little(dtype: DType, most: float):
    """Encoding and decoding normal values keeps the relative square error of the width."""
    decoded = dequantize(quantize(NORMAL, dtype), dtype, NORMAL.shape)
    assert ((decoded - NORMAL) ** 2).sum() / (NORMAL**2).sum() <= most


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([t for t in ENCODED if t.is_quantized]),
    st.lists(st.floats(-60_000, 60_000, width=32), min_size=1, max_size=16),
)
def test_any_values_of_f16s_range_survive(dtype: DType, some: list[float]):
    """Encoded values come back within the step of their block, as far as F16 offsets reach.

    A super-scale is an F16, at least 6e-8: what is smaller than 63 × 15 of that may vanish.
    """
    values = np.resize(np.array(some, dtype=np.float32), (1, 256))
    decoded = dequantize(quantize(values, dtype), dtype, values.shape)
    span = max(values.max(), 0) - min(values.min(), 0)
    assert np.abs(decoded - values).max() <= 0.2 * span + 6e-5


def test_quantizing_what_cannot_be_is_refused():
    """Types without a quantizer, broken rows and values that are not finite are errors."""
    with pytest.raises(InvalidArgument, match="no quantizer for IQ4_NL"):
        quantize(np.zeros((1, 256)), DType.IQ4_NL)
    with pytest.raises(InvalidArgument, match="whole blocks"):
        quantize(np.zeros((1, 31)), DType.Q8_0)
    with pytest.raises(InvalidArgument, match="finite"):
        quantize(np.full((1, 32), np.nan), DType.Q8_0)


@pytest.mark.parametrize("dtype", [t for t in ENCODED if t is not DType.BF16], ids=lambda t: t.name)
def test_values_beyond_f16_are_refused(dtype: DType):
    """Where a value or the scale of a block would be infinite, nothing is written."""
    values = np.full((1, 256), 1e37, dtype=np.float32)
    values[0, ::2] = -1e37
    with pytest.raises(InvalidArgument, match="reaches 65504"):
        quantize(values, dtype)


def test_values_beyond_bf16_are_refused():
    """The greatest F32 would round to infinity."""
    greatest = np.finfo(np.float32).max
    with pytest.raises(InvalidArgument, match="beyond the range of BF16"):
        quantize([[greatest]], DType.BF16)
    assert quantize([[greatest * 0.99]], DType.BF16).tolist() == [[0x7D, 0x7F]]
