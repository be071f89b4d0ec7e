"""Types that NumPy lacks, as the reference device keeps them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import formulas
from corral.devices.reference.activations import decoded, parts, quantize
from corral.devices.reference.storage import decode, encode, int8_codes
from corral.quant.dequantize import dequantize
from corral.quant.quantize import quantize as to_file
from corral.quant.types import DType

NOTHING = 4e-37
"""A group whose largest value is smaller may be kept as zeros."""
LEAST_A16 = 32512.5 / np.finfo(np.float32).max
"""The same for 16 bits, whose steps are smaller: the inverse of one must not be infinite."""
FLOATS = hnp.arrays(np.float32, (3, 64), elements=st.floats(-1e4, 1e4, width=32))
KV_TYPES = (DType.F32, DType.F16, DType.BF16, DType.Q8_0)


@pytest.mark.parametrize("dtype", KV_TYPES)
@given(values=FLOATS)
def test_decoding_is_what_the_file_format_says(dtype, values):
    """A cache row is laid out as a row of a file of the same type."""
    stored = encode(values, dtype)
    assert stored.nbytes == 3 * dtype.row_bytes(64)
    assert np.array_equal(decode(stored, dtype), dequantize(stored, dtype, values.shape))


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16])
@given(values=FLOATS)
def test_floats_round_to_nearest_even(dtype, values):
    """F16 and BF16 round as the quantizer for files does."""
    assert encode(values, dtype).tobytes() == to_file(values, dtype).tobytes()


@given(values=FLOATS)
def test_q8_0_is_within_half_a_step(values):
    """An element is off by no more than half a step and what F16 takes from the scale."""
    back = decode(encode(values, DType.Q8_0), DType.Q8_0).reshape(3, 2, 32)
    groups = values.reshape(3, 2, 32)
    largest = np.abs(groups).max(axis=-1, keepdims=True)
    assert np.all(np.abs(back - groups) <= largest * (0.5 / 127 + 2**-11) + 127 * 2**-25)


def test_codes_round_half_to_even():
    """With a scale of exactly one, halves go to the even neighbour."""
    x = np.zeros((1, 32), np.float32)
    x[0, :6] = 127, 0.5, 1.5, 2.5, -0.5, -1.5
    codes, scales = int8_codes(x)
    assert scales.tolist() == [1]
    assert codes[0, :6].tolist() == [127, 0, 2, 2, 0, -2]


@pytest.mark.parametrize("tiny", [0.0, 1e-45, 1e-40])
def test_groups_next_to_nothing_have_codes_of_zero(tiny):
    """Where 1/scale would be infinite, no code is garbage."""
    codes, scales = int8_codes(np.full((1, 32), tiny, np.float32))
    assert not codes.any()
    assert np.isfinite(scales).all()


@given(values=FLOATS)
def test_a8_rows(values):
    """A row is codes, scales, sums; it decodes to the values within half a step."""
    rows = np.full((3, 80), 0xFF, np.uint8)
    quantize(values, rows)
    planes, scales, sums = parts(rows)
    codes = planes[:, 0]
    assert codes.shape == (3, 64)
    assert scales.shape == sums.shape == (3, 2)
    totals = codes.reshape(3, 2, 32).astype(np.int32).sum(axis=-1)
    assert np.array_equal(sums, scales * totals.astype(np.float32))
    assert rows[:, :64].tobytes() == codes.tobytes()
    assert rows[:, 64:72].tobytes() == scales.tobytes()
    exact = formulas.through_int8(values.astype(np.float64))
    step = np.repeat(scales, 32, axis=1)
    assert np.all(np.abs(decoded(rows) - exact) <= 1.001 * step + NOTHING)
    assert np.all(np.abs(decoded(rows) - values) <= 0.501 * step + NOTHING)


@given(values=FLOATS)
def test_a16_rows(values):
    """Sixteen bits in two planes decode to the values within half of a much smaller step."""
    rows = np.full((3, 144), 0xFF, np.uint8)
    quantize(values, rows, DType.A16)
    coded = parts(rows, DType.A16)
    assert coded.planes.shape == (3, 2, 64)
    assert np.array_equal(coded.codes, coded.planes[:, 0].astype(int) * 256 + coded.planes[:, 1])
    totals = coded.codes.reshape(3, 2, 32).sum(axis=-1)
    assert np.array_equal(coded.sums, coded.scales * totals.astype(np.float32))
    step = np.repeat(coded.scales, 32, axis=1)
    error = np.abs(decoded(rows, DType.A16).astype(np.float64) - values)
    assert (error <= 0.5001 * step + np.abs(values) * 2e-7 + LEAST_A16).all()
