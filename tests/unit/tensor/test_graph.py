"""Order, leaves and readers of a graph; the graph as text."""

from corral.quant.types import DType
from corral.tensor.build import GraphBuilder
from corral.tensor.graph import ShapeClass
from corral.tensor.ops import Op
from corral.tensor.render import render
from transformers import transformer

SHAPE = ShapeClass(rows=3, outputs=1, sequences=1, blocks=1)


def small():
    g = GraphBuilder(SHAPE)
    x = g.embed(g.tokens, g.weight("table", DType.Q8_0, (10, 32)))
    y = g.mul("square", x, x)
    return g.finish(g.add("sum", y, x))


def test_sources_come_before_their_readers():
    """Nodes are in an order in which they can be computed."""
    seen = set()
    for node in transformer(layers=3):
        assert all(source in seen for source in node.sources if not source.op.traits.is_leaf)
        seen.add(node)


def test_the_order_of_the_builder_is_kept():
    """Appends stay before the attention that reads them, layer by layer."""
    names = [n.name for n in transformer() if n.op in (Op.KV_APPEND, Op.ATTENTION)]
    assert names == ["append.0", "attention.0", "append.1", "attention.1"]


def test_leaves_are_no_nodes():
    """Weights and inputs are found as leaves, in order of first use, each once."""
    graph = transformer(layers=1)
    assert all(not node.op.traits.is_leaf for node in graph)
    assert [t.name for t in graph.leaves(Op.WEIGHT)][:3] == ["table", "attn_norm.0.w", "q.0.weight"]
    assert [t.name for t in graph.leaves(Op.STATE)] == ["kv.0"]
    names = ["tokens", "positions", "sequences", "tables", "output_rows"]
    assert [t.name for t in graph.leaves(Op.INPUT)] == names


def test_consumers_are_listed_once():
    """A node that reads a tensor twice is one reader."""
    graph = small()
    x, square, total = graph.nodes
    assert graph.consumers()[x] == (square, total)
    assert graph.consumers()[square] == (total,)
    assert total not in graph.consumers()


def test_render():
    """One line a node: name, operation, type, shape, sources."""
    assert [line.split() for line in render(small()).splitlines()] == [
        ["embed", "EMBED", "F32", "3×32", "tokens,", "table"],
        ["square", "MUL", "F32", "3×32", "embed,", "embed"],
        ["sum", "ADD", "F32", "3×32", "square,", "embed"],
    ]


def test_length():
    """The length of a graph is what a record pool must hold."""
    assert len(small()) == 3
