"""What is special about the reference device."""

import numpy as np
import pytest

from corral.devices.host import array_at
from corral.devices.reference import attention
from corral.devices.reference.device import ReferenceDevice
from corral.quant.types import DType
from corral.tensor.ops import Op
from evaluation import Evaluation, decoded, random_weights
from transformers import batch, transformer


@pytest.fixture
def device():
    with ReferenceDevice() as device:
        yield device


def test_fuses_nothing_unless_asked():
    """By default its traits name no fused operation."""
    with ReferenceDevice() as plain, ReferenceDevice(frozenset({Op.GATED})) as other:
        assert plain.traits.fused == frozenset()
        assert other.traits.fused == frozenset({Op.GATED})


def test_weights_are_plain_rows_of_f32(device):
    """A quantized weight lies decoded at its slot."""
    graph = transformer(dtype=DType.Q8_0)
    weights = random_weights(graph)
    with Evaluation(device, graph, weights) as evaluation:
        slot = evaluation.model.weights.slots["q.0.weight"]
        address = evaluation.buffers.weights.address + slot.offset
        stored = array_at(address, slot.tensor.shape, np.float32).copy()
    assert np.array_equal(stored, decoded(graph, weights)["q.0.weight"].astype(np.float32))


def test_weights_may_come_in_pieces(device):
    """Rows uploaded later land behind the rows uploaded before."""
    graph = transformer(dtype=DType.Q4_0)
    weights = random_weights(graph)
    with Evaluation(device, graph, weights) as evaluation:
        slot = evaluation.model.weights.slots["table"]
        address = evaluation.buffers.weights.address + slot.offset
        whole = array_at(address, slot.tensor.shape, np.float32)
        expected = whole.copy()
        whole[:] = 0
        row_bytes = slot.tensor.dtype.row_bytes(slot.tensor.columns)
        for first in range(0, slot.tensor.rows, 3):
            piece = memoryview(weights["table"])[first * row_bytes : (first + 3) * row_bytes]
            device.upload(slot, evaluation.buffers.weights, first, piece)
        assert np.array_equal(whole, expected)


def test_cutting_attention_in_chunks_changes_nothing(device, monkeypatch):
    """Rows are independent, however few scores are held at once."""
    with Evaluation(device, transformer()) as evaluation:
        (whole,) = evaluation.run(**batch((20, 13)))
        monkeypatch.setattr(attention, "_SCORES_AT_ONCE", 100)
        (cut,) = evaluation.run(**batch((20, 13)))
    assert np.allclose(cut, whole, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("split", [1, 7, 32])
def test_the_past_may_come_in_pieces(device, split):
    """A prompt in chunks gives the logits of the whole prompt."""
    with Evaluation(device, transformer()) as evaluation:
        (whole,) = evaluation.run(**batch((40,)))
        for start in range(0, 40, split):
            (piece,) = evaluation.run(**batch((min(split, 40 - start),), (start,)))
    assert np.allclose(piece, whole, rtol=1e-5, atol=1e-6)


def test_sequences_do_not_see_each_other(device):
    """A sequence has the same logits alone and beside another."""
    with Evaluation(device, transformer()) as evaluation:
        (both,) = evaluation.run(**batch((20, 13)))
        (alone,) = evaluation.run(**batch((20,)))
    assert np.allclose(both[0], alone[0], rtol=1e-5, atol=1e-6)


def test_only_wanted_rows_are_read(device):
    """Any row's logits can be asked for, in any order."""
    with Evaluation(device, transformer()) as evaluation:
        (some,) = evaluation.run(**batch((20,), outputs=[19, 3]))
        (other,) = evaluation.run(**batch((20,), outputs=[3, 7, 19]))
    assert some.shape == (2, 80)
    assert np.array_equal(some, other[[2, 0]])
