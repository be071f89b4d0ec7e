"""tensor/attach.py: what adapters make of a graph, and what they leave alone."""

import pytest

from corral.memory.lifetime import liveness
from corral.quant.types import DType
from corral.tensor.attach import AdapterRoom, Attachment
from corral.tensor.ops import Op
from corral.tensor.rewrite import fuse
from corral.tensor.steps import steps
from corral.tensor.tensor import Extent
from corral.tensor.verify import verify
from transformers import transformer
from unit.tensor.test_rewrite import FUSIONS

ROOM = AdapterRoom(slots=4, spans=8, units=2)


def attached(*parts, dtype=DType.F32, fused=frozenset()):
    """Return a transformer with adapters attached to weights whose names have one of the parts."""
    graph = transformer(dtype=dtype)
    products = [node.sources[1].name for node in graph if node.op is Op.MATMUL]
    weights = [name for name in products if name.startswith(parts)]
    assert weights
    return fuse(graph, fused, attachment=Attachment(weights, ROOM)), weights


@pytest.mark.parametrize("fusion", [None, *FUSIONS])
@pytest.mark.parametrize("dtype", [DType.F32, DType.Q8_0])
def test_every_adapted_product_has_both_halves(fusion, dtype):
    """The graph is legal, and what read a product reads what adapters made of it."""
    graph, weights = attached("", dtype=dtype, fused=FUSIONS.get(fusion, frozenset()))
    verify(graph)
    ups = {node.name: node for node in graph if node.op is Op.LORA_UP}
    assert len(ups) == len(weights)
    readers = graph.consumers()
    for name, up in ups.items():
        plain, down, spans, table = up.sources
        assert plain.name == f"{name}.plain"
        assert readers[plain] == (up,)
        assert down.sources[0].dtype is DType.F32
        assert table.name == f"{plain.sources[1].name}.adapters"
        names = {Extent.ROWS: "adapter_rows", Extent.OUTPUTS: "adapter_outputs"}
        assert spans.name == names[up.extent]
        assert (up.shape, up.extent, up.layer) == (plain.shape, plain.extent, plain.layer)


def test_products_of_one_x_stay_together():
    """A · x of all of them comes first, and B behind the last."""
    graph, _ = attached("q.", "k.", "v.")
    names = [node.op for node in graph]
    first = names.index(Op.LORA_DOWN)
    assert names[first : first + 9] == [Op.LORA_DOWN] * 3 + [Op.MATMUL] * 3 + [Op.LORA_UP] * 3


def test_other_products_are_left_alone():
    """Only the weights that were named change; the outputs keep their names."""
    graph, weights = attached("q.")
    plain = transformer()
    assert [output.name for output in graph.outputs] == [output.name for output in plain.outputs]
    assert len(graph) == len(plain) + 2 * len(weights)


def test_halves_of_one_x_are_one_step():
    """What a device computes in one go: all A of an x, its products, all B."""
    graph, _ = attached("q.", "k.", "v.")
    found = [[node.op for node in step.nodes] for step in steps(graph) if len(step.nodes) == 3]
    for op in (Op.LORA_DOWN, Op.MATMUL, Op.LORA_UP):
        assert found.count([op] * 3) == 2
    halves = [step.nodes[0].op in (Op.LORA_DOWN, Op.LORA_UP) for step in steps(graph)]
    assert [step.is_lora for step in steps(graph)] == halves


def test_what_is_added_to_is_taken_over():
    """Each result of LORA_UP lies in the bytes of its product, also where steps are joined."""
    graph, _ = attached("", dtype=DType.Q8_0, fused=FUSIONS["all"])
    for joins in (False, True):
        owner = liveness(graph, joins_steps=joins).owner
        ups = [node for node in graph if node.op is Op.LORA_UP]
        assert ups
        assert all(owner[up] is owner[up.sources[0]] for up in ups)
