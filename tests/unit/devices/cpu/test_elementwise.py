"""Elementwise kernels agree with float64 at every size, and share columns among threads."""

import numpy as np
import pytest

from corral.devices.cpu.compile import KernelSpec
from corral.devices.cpu.kernels.elementwise import (
    BINARY_FIELDS,
    SOFTCAP_FIELDS,
    UNARY_FIELDS,
    activate,
    add,
    mul,
    softcap,
)
from unit.devices.cpu.kernel_call import HOST, TARGETS, call, count, poisoned

SHAPES = pytest.mark.parametrize(("rows", "columns"), [(1, 576), (17, 576), (3, 7), (2, 79)])


def random_rows(rows, columns, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32) * 4


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def unary(target, spec, x, *, threads=1, in_place=False, fields=UNARY_FIELDS, **more):
    out = x if in_place else poisoned(len(x), x.shape[1] + 5)
    words = {
        "x": x,
        "count": count(len(x)),
        "out": out,
        "x_stride": x.strides[0],
        "out_stride": out.strides[0],
        "columns": x.shape[1],
    }
    call(target, spec, fields, words | more, threads=threads)
    assert in_place or np.isnan(out[:, x.shape[1] :]).all()
    return out[:, : x.shape[1]]


def binary(target, emit, a, b, *, threads=1):
    out = poisoned(len(a), a.shape[1] + 1)
    words = {
        "a": a,
        "b": b,
        "count": count(len(a)),
        "out": out,
        "a_stride": a.strides[0],
        "b_stride": b.strides[0],
        "out_stride": out.strides[0],
        "columns": a.shape[1],
    }
    call(target, KernelSpec.of(emit), BINARY_FIELDS, words, threads=threads)
    assert np.isnan(out[:, -1]).all()
    return out[:, :-1]


@TARGETS
@SHAPES
@pytest.mark.parametrize("threads", [1, 3])
def test_sums_and_products_are_exact(target, rows, columns, threads):
    """One rounding an element, whatever the shape and the number of threads."""
    a, b = random_rows(rows, columns), random_rows(rows, columns, 1)
    assert np.array_equal(binary(target, add, a, b, threads=threads), a + b)
    assert np.array_equal(binary(target, mul, a, b, threads=threads), a * b)


@TARGETS
@SHAPES
@pytest.mark.parametrize(("name", "exact"), [("SILU", silu), ("GELU", gelu)])
def test_activations_are_accurate(target, rows, columns, name, exact):
    """Far from zero and near it, the error is a few units of the last place of the value."""
    x = random_rows(rows, columns)
    x[0, :5] = 0, -80, 80, 1e-6, -1e-3
    actual = unary(target, KernelSpec.of(activate, activation=name), x)
    np.testing.assert_allclose(actual, exact(x.astype(np.float64)), rtol=3e-6, atol=1e-9)


@TARGETS
@SHAPES
@pytest.mark.parametrize("limit", [0.5, 30.0])
def test_soft_caps_are_accurate(target, rows, columns, limit):
    """limit · tanh(x / limit), relative to the value, small ones too."""
    x = random_rows(rows, columns)
    x[0, :6] = 0, -1e30, np.inf, 1e-6, -1e-3, 0.6 * limit
    more = {"fields": SOFTCAP_FIELDS, "limit": np.float32(limit)}
    actual = unary(target, KernelSpec.of(softcap), x, **more)
    exact = limit * np.tanh(x.astype(np.float64) / limit)
    np.testing.assert_allclose(actual, exact, rtol=1e-6)


@pytest.mark.parametrize("threads", [2, 3, 16])
def test_threads_in_place_and_batches_change_nothing(threads):
    """A row has the same bits alone, in place and with several threads."""
    x = random_rows(5, 576)
    spec = KernelSpec.of(activate, activation="SILU")
    alone = [unary(HOST, spec, row[None])[0] for row in x]
    assert np.array_equal(unary(HOST, spec, x, threads=threads, in_place=True), alone)
