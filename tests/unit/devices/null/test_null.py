"""The null device counts what others would do."""

import numpy as np
import pytest

from corral.devices.null.device import NullDevice
from corral.devices.reference.device import reference_traits
from corral.errors import OutOfMemory
from corral.memory.lifetime import Lifetime
from corral.memory.stored import StoredForm, StoredSlot, WeightsLayout
from corral.quant.types import DType
from corral.tensor.build import GraphBuilder
from corral.tensor.graph import ShapeClass
from corral.tensor.ops import Attend, Op
from evaluation import Evaluation
from transformers import batch, transformer

GIB = 1 << 30


@pytest.fixture
def device():
    with NullDevice(reference_traits()) as device:
        yield device
        assert device.allocated_bytes == 0


def test_needs_no_memory(device):
    """A model far larger than any machine is allocated at once, at addresses of its own."""
    first = device.allocate(40_000 * GIB, Lifetime.WEIGHTS)
    second = device.allocate(1, Lifetime.STATE)
    assert device.allocated_bytes == 40_000 * GIB + 4096
    assert second.address >= first.address + first.size_bytes
    first.close()
    second.close()


def test_staging_is_real(device):
    """Whoever loads a model can write to staging, because that is the host's."""
    import ctypes

    staging = device.allocate(100, Lifetime.STAGING)
    ctypes.memset(staging.address, 1, 100)
    assert device.allocated_bytes == 4096
    staging.close()


def test_is_as_large_as_it_was_told():
    """Beyond its size it refuses, and its reading follows its buffers."""
    with NullDevice(reference_traits(), total_bytes=GIB) as device:
        buffer = device.allocate(GIB - 4096, Lifetime.WEIGHTS)
        assert device.memory().free_bytes == 4096
        with pytest.raises(OutOfMemory, match=r"8.0 KiB on null, 4.0 KiB of 1.0 GiB are free"):
            device.allocate(4097, Lifetime.STATE)
        buffer.close()
        assert device.memory().free_bytes == GIB


def test_counts_uploads(device):
    """It says how many bytes of the file went by."""
    graph = transformer(dtype=DType.Q8_0)
    with Evaluation(device, graph):
        constants = sum(t.size_bytes for t in graph.leaves(Op.CONSTANT))
        assert device.uploaded_bytes == constants + sum(
            t.size_bytes for t in graph.leaves(Op.WEIGHT)
        )


def test_counts_launches_and_gives_zeros(device):
    """Each node but a view is a launch; outputs have their shape and nothing in them."""
    with Evaluation(device, transformer()) as evaluation:
        (logits,) = evaluation.run(**batch((5, 2)))
        evaluation.run(**batch((1, 1), (5, 2)))
        statistics = evaluation.backend.statistics()
    assert logits.shape == (2, 80)
    assert not logits.any()
    assert statistics.runs == 2
    assert statistics.launches == 2 * len(evaluation.graph)


def test_a_view_is_no_launch_and_moves_nothing(device):
    """Naming some columns costs nothing."""
    g = GraphBuilder(ShapeClass(4, 1, 1, 1))
    x = g.embed(g.tokens, g.weight("table", DType.F32, (10, 8)))
    with Evaluation(device, g.finish(g.add("y", g.view("v", x, 0, 4), g.view("w", x, 4, 4)))) as e:
        e.run(tokens=[1, 2, 3])
        statistics = e.backend.statistics()
    embed = 3 * (4 + 8 * 4 + 8 * 4)
    add = 3 * 3 * 4 * 4
    assert statistics.launches == 2
    assert statistics.bytes_moved == embed + add


def _one_node(*, kv_dtype, window=None):
    g = GraphBuilder(ShapeClass(4, 1, 1, 2))
    q = g.embed(g.tokens, g.weight("table", DType.F32, (10, 64)))
    state = g.state("kv", kv_dtype, (2, 2, 2, 32, 32))
    appended = g.kv_append("append", q, q, state, g.tables("tables"))
    return g.attention("y", q, appended, Attend(2, 2, 32, 1.0, window)), g.finish


@pytest.mark.parametrize(
    ("kv_dtype", "window", "seen", "token_bytes"),
    [
        (DType.F16, None, 5 + 6, 2 * 2 * 64),
        (DType.Q8_0, None, 5 + 6, 2 * 2 * 34),
        (DType.F32, 3, 3 + 3, 2 * 2 * 128),
    ],
)
def test_of_the_cache_counts_what_each_row_sees(device, kv_dtype, window, seen, token_bytes):
    """Attention reads keys and values of the positions a row sees; appending writes one each."""
    node, finish = _one_node(kv_dtype=kv_dtype, window=window)
    with Evaluation(device, finish(node)) as evaluation:
        evaluation.run(tokens=[1, 2], positions=[4, 5], sequences=[0, 0], tables=[[0, 1]])
        moved = evaluation.backend.statistics().bytes_moved
    row, index = 64 * 4, 4
    embed = 2 * (index + 2 * row)
    append = 2 * (2 * row + token_bytes)
    attention = 2 * 2 * row + seen * token_bytes + 2 * 2 * index + 2 * index
    assert moved == embed + append + attention


def test_weights_count_in_the_form_the_device_keeps(device):
    """Packed weights move their packed bytes, once however many rows there are."""
    from corral.devices.null.traffic import traffic
    from corral.devices.staging import Counts

    g = GraphBuilder(ShapeClass(4, 1, 1, 2))
    x = g.embed(g.tokens, g.weight("table", DType.F32, (10, 64)))
    product = g.matmul("y", x, g.weight("w", DType.Q8_0, (8, 64)))
    weight = product.sources[1]
    slot = StoredSlot(weight, StoredForm(None, DType.Q8_0, 8 * 68), 0)
    layout = WeightsLayout({"w": slot}, 8 * 68)
    inputs = {"positions": np.zeros(3)}
    assert traffic(product, layout, inputs, Counts(3, 0)) == 8 * 68 + 3 * (64 + 8) * 4
