"""Gated activations agree with float64, and the fused kernel with its two halves."""

import numpy as np
import pytest

from corral.devices.cpu.compile import KernelSpec
from corral.devices.cpu.kernels.gated import FIELDS, gated, gated_quantize
from unit.devices.cpu import a8
from unit.devices.cpu.kernel_call import HOST, TARGETS, call, count, poisoned
from unit.devices.cpu.test_elementwise import gelu, random_rows, silu


def run(target, spec, gate, up, out, threads):
    words = {
        "gate": gate,
        "up": up,
        "count": count(len(gate)),
        "out": out,
        "gate_stride": gate.strides[0],
        "up_stride": up.strides[0],
        "out_stride": out.strides[0],
        "columns": gate.shape[1],
    }
    call(target, spec, FIELDS, words, threads=threads)
    return out


@TARGETS
@pytest.mark.parametrize(("rows", "columns"), [(1, 1536), (17, 1536), (2, 77)])
@pytest.mark.parametrize(("name", "exact"), [("SILU", silu), ("GELU", gelu)])
def test_gates_open_as_they_should(target, rows, columns, name, exact):
    """activation(gate) · up, in place of the gate, for several threads."""
    gate, up = random_rows(rows, columns), random_rows(rows, columns, 1)
    expected = exact(gate.astype(np.float64)) * up
    spec = KernelSpec.of(gated, activation=name)
    apart = run(target, spec, gate, up, poisoned(rows, columns), 1)
    assert np.array_equal(run(target, spec, gate, up, gate, 3), apart)
    np.testing.assert_allclose(apart, expected, rtol=3e-6, atol=1e-8)


@TARGETS
@pytest.mark.parametrize(("rows", "columns"), [(1, 1536), (17, 64)])
@pytest.mark.parametrize("name", ["SILU", "GELU"])
def test_gate_and_quantize_is_both_in_turn(target, rows, columns, name):
    """The fused kernel has the bits of the gate followed by quantization."""
    gate, up = random_rows(rows, columns), random_rows(rows, columns, 1)
    plain = KernelSpec.of(gated, activation=name)
    expected = a8.expected_parts(run(target, plain, gate, up, poisoned(rows, columns), 1))
    fused = KernelSpec.of(gated_quantize, activation=name)
    actual = a8.parts(run(target, fused, gate, up, a8.empty(rows, columns), 2))
    for one, other in zip(actual, expected, strict=True):
        assert np.array_equal(one, other)


def test_batches_change_nothing():
    """A row has the same bits alone and in a batch."""
    gate, up = random_rows(5, 96), random_rows(5, 96, 1)
    spec = KernelSpec.of(gated_quantize, activation="SILU")
    together = run(HOST, spec, gate, up, a8.empty(5, 96), 3)
    alone = [run(HOST, spec, gate[n:][:1], up[n:][:1], a8.empty(1, 96), 1)[0] for n in range(5)]
    assert np.array_equal(together, alone)
