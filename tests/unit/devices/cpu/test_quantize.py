"""Rows become int8 codes with a scale and a sum for each 32 columns."""

import numpy as np
import pytest

from corral.devices.cpu.compile import KernelSpec
from corral.devices.cpu.kernels.quantize import FIELDS, quantize
from corral.devices.reference import activations as reference
from corral.quant.types import DType
from unit.devices.cpu.a8 import empty, expected_parts, parts
from unit.devices.cpu.kernel_call import HOST, TARGETS, call, count


def quantized(target, x, *, threads=1):
    out = empty(len(x), x.shape[1])
    words = {
        "x": x,
        "count": count(len(x)),
        "out": out,
        "x_stride": x.strides[0],
        "out_stride": out.strides[0],
        "columns": x.shape[1],
    }
    call(target, KernelSpec.of(quantize), FIELDS, words, threads=threads)
    return out


@TARGETS
@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (1, 576), (17, 576), (3, 1536)])
def test_codes_scales_and_sums_are_numpys(target, rows, columns):
    """Every part has the very bits of the formula in NumPy."""
    random = np.random.default_rng(rows)
    x = random.standard_normal((rows, columns)).astype(np.float32)
    x[:, ::7] *= 30
    for actual, expected in zip(parts(quantized(target, x)), expected_parts(x), strict=True):
        assert np.array_equal(actual, expected)


@TARGETS
def test_groups_of_zeros_and_tiny_numbers_give_zeros(target):
    """A scale whose reciprocal is not finite gives codes 0, and no NaN."""
    x = np.zeros((1, 96), np.float32)
    x[0, 32:64], x[0, 64:] = 1e-40, -1e-44
    codes, scales, sums = parts(quantized(target, x))
    assert not codes.any() and not sums.any() and np.isfinite(scales).all()


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("rows", [1, 5])
def test_threads_change_nothing(rows, threads):
    """Threads share the groups of one row too."""
    x = np.random.default_rng(0).standard_normal((rows, 576)).astype(np.float32)
    assert np.array_equal(quantized(HOST, x), quantized(HOST, x, threads=threads))


def test_ties_round_to_even():
    """A value in the middle of two codes takes the even one."""
    x = np.zeros((1, 32), np.float32)
    x[0, :5] = 127, 0.5, 1.5, -2.5, 3.5
    assert parts(quantized(HOST, x)).codes[0, :5].tolist() == [127, 0, 2, -2, 4]


@TARGETS
@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (17, 576)])
def test_two_planes_are_the_references(target, rows, columns):
    """A16 rows have the very bytes the reference device writes."""
    x = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
    expected = np.zeros((rows, DType.A16.row_bytes(columns)), np.uint8)
    reference.quantize(x, expected, DType.A16)
    out = np.full_like(expected, 0xA5)
    words = {
        "x": x,
        "count": count(rows),
        "out": out,
        "x_stride": x.strides[0],
        "out_stride": out.strides[0],
        "columns": columns,
    }
    call(target, KernelSpec.of(quantize, planes=2), FIELDS, words, threads=2)
    assert np.array_equal(out, expected)
