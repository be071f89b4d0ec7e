"""The encoding kernels write the bytes that the searches in NumPy give, on every path."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.devices.cpu.compile import Compiler, KernelSpec
from corral.devices.cpu.encoder import Encoder
from corral.devices.cpu.kernels.encode import FIELDS, GREATEST, encode
from corral.errors import InvalidArgument
from corral.quant import quantize as in_numpy
from corral.quant.quantize import quantize
from corral.quant.types import DType
from encoded import CASES
from encoded import ENCODED as DIGESTS
from unit.devices.cpu.kernel_call import HOST, TARGETS, call

TYPES = pytest.mark.parametrize("dtype", GREATEST, ids=lambda dtype: dtype.name)
NORMAL = CASES["normal"]


def encoded(target, values, dtype, *, threads=1):
    """Return the blocks of values: → (blocks, bytes); nothing beside them is written."""
    blocks = values.size // dtype.block_elements
    size = blocks * dtype.block_bytes
    out = np.full(size + 64, 0xA5, np.uint8)
    words = {"values": np.ascontiguousarray(values), "out": out, "blocks": blocks}
    call(target, KernelSpec.of(encode, dtype=dtype.name), FIELDS, words, threads=threads)
    assert (out[size:] == 0xA5).all()
    return out[:size].reshape(blocks, -1)


@TARGETS
@TYPES
@pytest.mark.parametrize("case", CASES)
def test_bytes_are_those_of_numpy(target, dtype, case):
    """Each kind of values becomes the very bytes that NumPy, and so ggml, makes of it."""
    expected = quantize(CASES[case], dtype).reshape(-1, dtype.block_bytes)
    assert np.array_equal(encoded(target, CASES[case], dtype), expected)


@TARGETS
@TYPES
@pytest.mark.parametrize("blocks", [1, 2, 3, 7])
@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_blocks_and_threads(target, dtype, blocks, threads):
    """A block that has no neighbour is encoded as with one, whoever does it."""
    values = NORMAL.reshape(-1)[: blocks * max(dtype.block_elements, 17)]
    expected = quantize(values, dtype).reshape(-1, dtype.block_bytes)
    assert np.array_equal(encoded(target, values, dtype, threads=threads), expected)


@TYPES
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-60_000, 60_000, width=32), min_size=1, max_size=40),
    st.sampled_from([2.0**-140, 2.0**-60, 2.0**-20, 1.0]),
)
def test_any_values_are_those_of_numpy(dtype, some, factor):
    """Any values, of any size, become the bytes that NumPy makes of them."""
    values = np.resize(np.array(some, np.float32) * np.float32(factor), (2, 256))
    expected = quantize(values, dtype).reshape(-1, dtype.block_bytes)
    assert np.array_equal(encoded(HOST, values, dtype), expected)


@pytest.fixture(scope="module")
def encoder():
    compiler = Compiler(HOST)
    yield Encoder(compiler, DIGESTS)
    compiler.close()


@pytest.mark.parametrize("dtype", DIGESTS, ids=lambda dtype: dtype.name)
def test_the_encoder_is_quantize(encoder, dtype):
    """Types with and without a kernel, arrays of any rank and layout, are encoded alike."""
    for values in (NORMAL, NORMAL.reshape(2, 3, -1, 256), NORMAL[::2], NORMAL[:0], NORMAL[0]):
        assert np.array_equal(encoder(values, dtype), quantize(values, dtype))


def test_kernels_are_used_where_there_are_any(encoder, monkeypatch):
    """What has a kernel does not go through NumPy; what a kernel cannot do, does."""
    monkeypatch.setitem(in_numpy._QUANTIZERS, DType.Q4_K, None)
    assert encoder(NORMAL, DType.Q4_K).shape == (24, 288)
    with pytest.raises(InvalidArgument, match="no quantizer"):
        encoder(NORMAL * np.float32(GREATEST[DType.Q4_K]), DType.Q4_K)


@pytest.mark.parametrize("dtype", [t for t in GREATEST if t.is_quantized], ids=lambda t: t.name)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.full((1, 256), np.nan), "finite"),
        (np.full((1, 256), -np.inf), "finite"),
        (np.linspace(-9e8, 9e8, 256)[None], "reaches 65504"),
        (np.linspace(-1e38, 1e38, 256)[None], "reaches 65504"),
        (np.zeros((2, 31)), "whole blocks"),
        (np.float32(1), "whole blocks"),
    ],
)
def test_what_cannot_be_encoded_is_refused(encoder, dtype, values, message):
    """Errors are those of `quantize`, also where only the kernel's results tell."""
    with pytest.raises(InvalidArgument, match=message):
        encoder(values, dtype)


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        (DType.F16, np.nan, "finite"),
        (DType.F16, 65520, "reaches 65504"),
        (DType.BF16, -np.inf, "finite"),
        (DType.BF16, np.finfo(np.float32).max, "beyond the range"),
    ],
)
def test_floats_beyond_their_type_are_refused(encoder, dtype, value, message):
    """What would become infinite is refused, and what rounds to the greatest number is not."""
    with pytest.raises(InvalidArgument, match=message):
        encoder([[1.0, value]], dtype)
    assert encoder([[65519.0]], DType.F16).view("<f2") == 65504
