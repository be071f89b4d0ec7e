"""Root-mean-square norms agree with float64, in place or not, for any threads."""

import numpy as np
import pytest

from corral.devices.cpu.compile import KernelSpec
from corral.devices.cpu.kernels.norm import (
    NORM_FIELDS,
    NORM_QUANTIZE_FIELDS,
    norm_quantize,
    rms_norm,
)
from unit.devices.cpu import a8
from unit.devices.cpu.kernel_call import HOST, TARGETS, call, count, poisoned

EPSILON = np.float32(1e-5)


def rows_and_weight(rows, columns, group):
    random = np.random.default_rng(columns)
    x = random.standard_normal((rows, columns)).astype(np.float32) * 3
    return x, random.standard_normal(group).astype(np.float32)


def exact(x, weight):
    groups = x.astype(np.float64).reshape(len(x), -1, len(weight))
    rms = np.sqrt((groups**2).mean(axis=-1, keepdims=True) + EPSILON)
    return (groups / rms * weight).reshape(x.shape)


def normed(target, x, weight, *, threads=1, in_place=False):
    out = x if in_place else poisoned(len(x), x.shape[1] + 5)
    words = {
        "x": x,
        "count": count(len(x)),
        "weight": weight,
        "out": out,
        "x_stride": x.strides[0],
        "out_stride": out.strides[0],
        "groups": x.shape[1] // len(weight),
        "group": len(weight),
        "epsilon": EPSILON,
    }
    call(target, KernelSpec.of(rms_norm), NORM_FIELDS, words, threads=threads)
    assert in_place or np.isnan(out[:, x.shape[1] :]).all()
    return out[:, : x.shape[1]]


def norm_quantized(target, x, weight, *, threads=1):
    out = a8.empty(len(x), x.shape[1])
    words = {
        "x": x,
        "count": count(len(x)),
        "weight": weight,
        "out": out,
        "x_stride": x.strides[0],
        "out_stride": out.strides[0],
        "columns": x.shape[1],
        "epsilon": EPSILON,
    }
    call(target, KernelSpec.of(norm_quantize), NORM_QUANTIZE_FIELDS, words, threads=threads)
    return out


@TARGETS
@pytest.mark.parametrize(
    ("rows", "columns", "group"),
    [(1, 576, 576), (17, 576, 576), (2, 576, 64), (3, 30, 30), (1, 7, 7), (2, 240, 80)],
)
def test_rows_and_groups_are_normed(target, rows, columns, group):
    """Whole rows, and heads one at a time, of odd sizes too."""
    x, weight = rows_and_weight(rows, columns, group)
    np.testing.assert_allclose(normed(target, x, weight), exact(x, weight), rtol=2e-6)


def test_in_place_gives_the_same():
    """The result may take over the source."""
    x, weight = rows_and_weight(3, 576, 64)
    expected = normed(HOST, x, weight).copy()
    assert np.array_equal(normed(HOST, x, weight, in_place=True), expected)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_and_batches_change_nothing(threads):
    """A row has the same bits alone, in a batch and with several threads."""
    x, weight = rows_and_weight(17, 576, 576)
    together = normed(HOST, x, weight, threads=threads)
    alone = [normed(HOST, row[None], weight)[0] for row in x]
    assert np.array_equal(together, alone)


@TARGETS
@pytest.mark.parametrize(("rows", "columns"), [(1, 576), (17, 576), (2, 32)])
def test_norm_and_quantize_is_both_in_turn(target, rows, columns):
    """The fused kernel has the bits of a norm followed by quantization."""
    x, weight = rows_and_weight(rows, columns, columns)
    actual = a8.parts(norm_quantized(target, x, weight, threads=2))
    expected = a8.expected_parts(np.ascontiguousarray(normed(target, x, weight)))
    for one, other in zip(actual, expected, strict=True):
        assert np.array_equal(one, other)
    error = a8.decoded(norm_quantized(target, x, weight)) - exact(x, weight)
    assert (np.abs(error) <= 0.501 * np.repeat(actual.scales, 32, axis=1)).all()


def test_zero_rows_stay_zero():
    """A row of zeros is divided by √epsilon, not by zero."""
    x, weight = np.zeros((1, 64), np.float32), np.ones(64, np.float32)
    assert not normed(HOST, x, weight).any()
    assert not a8.decoded(norm_quantized(HOST, x, weight)).any()
