"""Each fusion gives the values of the graph it replaces, and keeps away where others look."""

from dataclasses import replace

import numpy as np
import pytest

from corral.devices.reference.device import ReferenceDevice
from corral.quant.types import DType
from corral.tensor.build import GraphBuilder
from corral.tensor.graph import Graph
from corral.tensor.ops import Activation, Op
from corral.tensor.rewrite import fuse, rewrite
from evaluation import Evaluation, random_weights
from transformers import TINY, batch, transformer

FUSIONS = {
    "add_residual": frozenset({Op.MATMUL_ADD}),
    "gate": frozenset({Op.GATED}),
    "quantize_norm": frozenset({Op.QUANTIZE, Op.NORM_QUANTIZE}),
    "quantize_gated": frozenset({Op.QUANTIZE, Op.GATED, Op.GATED_QUANTIZE}),
    "all": frozenset({Op.QUANTIZE, Op.NORM_QUANTIZE, Op.GATED, Op.GATED_QUANTIZE, Op.MATMUL_ADD}),
}
ADDS_CODES = {
    "quantize_norm": frozenset({Op.QUANTIZE}),
    "quantize_gated": frozenset({Op.QUANTIZE}),
    "all": frozenset({Op.QUANTIZE}),
}
"""What the unfused graph needs so that both multiply int8 codes."""


def values(graph, weights, fused=frozenset()):
    with ReferenceDevice(fused) as device, Evaluation(device, graph, weights) as evaluation:
        return evaluation.run(**batch((20, 9)))


def operations(graph):
    return [node.op for node in graph]


@pytest.mark.parametrize("name", FUSIONS)
@pytest.mark.parametrize("dtype", [DType.F32, DType.Q8_0])
def test_a_fused_graph_gives_the_same(name, dtype):
    """To the last bit but for the order of one rounding, whatever the weights."""
    graph = transformer(dtype=dtype)
    weights = random_weights(graph)
    apart = fuse(graph, ADDS_CODES.get(name, frozenset()))
    together = fuse(graph, FUSIONS[name])
    (expected,), (actual,) = values(apart, weights), values(together, weights, FUSIONS[name])
    assert np.allclose(actual, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", FUSIONS)
def test_the_fused_operations_are_there(name):
    """Each fusion finds its place in a usual model."""
    fused = fuse(transformer(dtype=DType.Q8_0), FUSIONS[name])
    made = FUSIONS[name] - {Op.GATED} if Op.GATED_QUANTIZE in FUSIONS[name] else FUSIONS[name]
    assert made <= set(operations(fused))


def test_quantizing_costs_little():
    """Int8 activations stay near the float graph, and are not the float graph."""
    graph = transformer(dtype=DType.Q8_0)
    weights = random_weights(graph)
    (floats,) = values(graph, weights)
    (codes,) = values(fuse(graph, FUSIONS["all"]), weights, FUSIONS["all"])
    difference = ((codes - floats) ** 2).sum() / (floats**2).sum()
    assert 0 < difference < 1e-3


def test_a_device_that_supports_nothing_gets_the_graph_as_it_was():
    """Without fused operations in its traits nothing changes."""
    graph = transformer(dtype=DType.Q8_0)
    assert fuse(graph, frozenset()) is graph


def test_float_weights_keep_float_activations():
    """Only products with quantized weights read codes."""
    assert Op.QUANTIZE not in operations(fuse(transformer(), FUSIONS["all"]))


def test_codes_are_made_once_for_all_readers():
    """The three projections of one norm share its codes."""
    fused = fuse(transformer(layers=1, dtype=DType.Q8_0), frozenset({Op.QUANTIZE}))
    by_name = {node.name: node for node in fused}
    assert len({by_name[name].sources[0] for name in ("q.0", "k.0", "v.0")}) == 1
    assert operations(fused).count(Op.QUANTIZE) == 5  # attn norm, mixed, ffn norm, gated, output


def test_the_original_graph_is_left_alone():
    """A rewrite makes a new graph."""
    graph = transformer(dtype=DType.Q8_0)
    before = operations(graph)
    fuse(graph, FUSIONS["all"])
    assert operations(graph) == before


def test_a_rule_that_changes_nothing_gives_the_same_nodes():
    """Nodes that no rule touches are the very same objects."""
    graph = transformer()
    assert rewrite(graph, lambda node, readers: None).nodes == graph.nodes


class Sharing:
    """Small graphs in which somebody else reads what a fusion would swallow."""

    def __init__(self):
        self.g = GraphBuilder(TINY)
        self.x = self.g.embed(self.g.tokens, self.weight("table", 80))
        self.norm = self.g.weight("norm", DType.F32, (64,))

    def weight(self, name, rows=64):
        return self.g.weight(name, DType.Q8_0, (rows, 64))

    def matmul_read_twice(self):
        product = self.g.matmul("product", self.x, self.weight("w"))
        total = self.g.add("total", product, self.x)
        return self.g.mul("out", total, product)

    def active_read_twice(self):
        active = self.g.activate("active", self.x, Activation.SILU)
        gated = self.g.mul("gated", active, self.x)
        return self.g.add("out", gated, active)

    def norm_read_twice(self):
        normed = self.g.rms_norm("normed", self.x, self.norm, 1e-5)
        return self.g.add("out", self.g.matmul("product", normed, self.weight("w")), normed)

    def gated_read_twice(self):
        gated = self.g.mul("gated", self.g.activate("a", self.x, Activation.GELU), self.x)
        return self.g.mul("out", self.g.matmul("product", gated, self.weight("w")), gated)


@pytest.mark.parametrize(
    ("build", "fusion", "kept_away"),
    [
        (Sharing.matmul_read_twice, "add_residual", Op.MATMUL_ADD),
        (Sharing.active_read_twice, "gate", Op.GATED),
        (Sharing.norm_read_twice, "quantize_norm", Op.NORM_QUANTIZE),
        (Sharing.gated_read_twice, "quantize_gated", Op.GATED_QUANTIZE),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_others_read_is_not_swallowed(build, fusion, kept_away):
    """A value with a second reader stays a node, and the values stay the same."""
    sharing = Sharing()
    graph = sharing.g.finish(build(sharing))
    fused = fuse(graph, FUSIONS[fusion])
    assert kept_away not in operations(fused)
    weights = random_weights(graph)
    apart = fuse(graph, ADDS_CODES.get(fusion, frozenset()))
    (expected,), (actual,) = values(apart, weights), values(fused, weights)
    assert np.allclose(actual, expected, rtol=1e-6, atol=1e-7)


def test_what_the_caller_reads_is_not_swallowed():
    """An output with one reader has two: the caller is the other."""
    sharing = Sharing()
    product = sharing.g.matmul("product", sharing.x, sharing.weight("w"))
    total = sharing.g.add("total", product, sharing.x)
    fused = fuse(sharing.g.finish(product, total), FUSIONS["add_residual"])
    assert operations(fused) == [Op.EMBED, Op.MATMUL, Op.ADD]
    assert fused.outputs == (fused.nodes[1], fused.nodes[2])


def test_both_sides_of_a_sum_may_be_the_product():
    """x + w·y fuses as well as w·y + x."""
    sharing = Sharing()
    product = sharing.g.matmul("product", sharing.x, sharing.weight("w"))
    other_way = sharing.g.add("total", sharing.x, product)
    fused = fuse(sharing.g.finish(other_way), FUSIONS["add_residual"])
    node = fused.nodes[-1]
    assert node.op is Op.MATMUL_ADD
    assert node.sources == (sharing.x, product.sources[1], sharing.x)


def test_a_sum_of_one_product_with_itself_keeps_its_value():
    """Twice the product is the product plus itself as a residual."""
    sharing = Sharing()
    product = sharing.g.matmul("product", sharing.x, sharing.weight("w"))
    graph = sharing.g.finish(sharing.g.add("twice", product, product))
    weights = random_weights(graph)
    (expected,), (actual,) = (
        values(g, weights) for g in (graph, fuse(graph, FUSIONS["add_residual"]))
    )
    assert np.allclose(actual, expected, rtol=1e-6, atol=1e-7)


def test_a_bias_goes_along():
    """The fused product keeps its bias as the last source."""
    sharing = Sharing()
    bias = sharing.g.weight("bias", DType.F32, (64,))
    product = sharing.g.matmul("product", sharing.x, sharing.weight("w"), bias)
    fused = fuse(sharing.g.finish(sharing.g.add("y", product, sharing.x)), FUSIONS["all"])
    node = fused.nodes[-1]
    assert node.op is Op.MATMUL_ADD
    assert [source.name for source in node.sources] == ["embed.codes", "w", "embed", "bias"]


def test_extent_and_layer_go_along():
    """A fused node belongs to the rows and the layer of the node it replaces."""
    graph = transformer(dtype=DType.Q8_0)
    places = {node.name: (node.extent, node.layer) for node in graph}
    for node in fuse(graph, FUSIONS["all"]):
        assert places[node.name.removesuffix(".codes")] == (node.extent, node.layer)


def test_dead_nodes_go():
    """What was swallowed is not computed again."""
    fused = fuse(transformer(dtype=DType.Q8_0), FUSIONS["all"])
    readers = fused.consumers()
    assert all(node in readers for node in fused if node not in fused.outputs)
    assert isinstance(fused, Graph)


def test_a_rule_may_replace_the_output():
    """The graph's outputs follow the replacement."""
    graph = transformer(layers=1)

    def rename(node, readers):
        return replace(node, name="renamed") if node.name == "logits" else None

    assert rewrite(graph, rename).outputs[0].name == "renamed"
