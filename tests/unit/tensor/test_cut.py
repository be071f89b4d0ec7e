"""A graph cut by layers: each node in one part, rows alone go from part to part."""

import pytest

from corral.errors import InvalidGraph
from corral.quant.types import DType
from corral.tensor.build import GraphBuilder
from corral.tensor.cut import cut
from corral.tensor.ops import Op
from corral.tensor.rewrite import fuse
from corral.tensor.verify import verify
from transformers import TINY, transformer

HALVES = [range(2), range(2, 4)]


def names(graph):
    return [node.name for node in graph]


def received(graph):
    return [leaf.name for leaf in graph.leaves(Op.RECEIVED)]


def test_one_part_is_the_graph_itself():
    """Nothing is rewritten where nothing is cut."""
    graph = transformer()
    assert cut(graph, [range(2)]) == (graph,)


def test_what_one_part_gives_the_next_receives():
    """The rows after the last layer of a part are its output, and a leaf of the next."""
    graph = transformer(layers=4)
    first, second = map(verify, cut(graph, HALVES))
    assert [t.name for t in first.outputs] == received(second) == ["ffn_add.1"]
    assert received(first) == []
    assert [t.name for t in second.outputs] == ["logits"]
    (leaf,) = second.leaves(Op.RECEIVED)
    sent = first.outputs[0]
    assert (leaf.dtype, leaf.shape, leaf.extent) == (sent.dtype, sent.shape, sent.extent)


def test_each_node_is_in_one_part():
    """Only what depends on no other node may be computed twice."""
    graph = transformer(layers=4)
    first, second = cut(graph, HALVES)
    assert set(names(first)) & set(names(second)) == {"turns"}
    assert set(names(first)) | set(names(second)) == set(names(graph))
    assert "embed" in names(first)
    assert {"output_norm.4", "logits"} <= set(names(second))


def test_each_state_is_beside_its_layer():
    """Keys and values never cross."""
    parts = cut(transformer(layers=4), HALVES)
    states = [[leaf.name for leaf in part.leaves(Op.STATE)] for part in parts]
    assert states == [["kv.0", "kv.1"], ["kv.2", "kv.3"]]


def test_what_is_read_later_passes_over_parts():
    """A value that two later parts read goes from its own part to both."""
    g = GraphBuilder(TINY)
    w = g.weight("w", DType.F32, (32, 32))
    x = g.embed(g.tokens, g.weight("table", DType.F32, (80, 32)))
    g.layer = 0
    skipped = a = g.matmul("a", x, w)
    g.layer = 1
    b = g.add("b", skipped, g.matmul("inner", a, w))
    g.layer = 2
    c = g.add("c", skipped, b)
    parts = tuple(map(verify, cut(g.finish(c), [range(1), range(1, 2), range(2, 3)])))
    assert [received(part) for part in parts] == [[], ["a"], ["a", "b"]]
    assert [[t.name for t in part.outputs] for part in parts] == [["a"], ["b"], ["c"]]


def test_states_cannot_be_received():
    """A layer that reads the keys of another cannot be cut off from it."""
    graph = transformer(layers=2)
    attention = next(node for node in graph if node.name == "attention.0")
    object.__setattr__(attention, "layer", 1)
    with pytest.raises(InvalidGraph, match="cannot come from another device"):
        for part in cut(graph, [range(1), range(1, 2)]):
            verify(part)


def test_parts_fuse_as_the_whole_does():
    """No fusion reaches over the end of a layer, so cutting costs none."""
    graph = transformer(layers=4, dtype=DType.Q8_0)
    whole = fuse(graph, frozenset(Op))
    parts = [verify(fuse(part, frozenset(Op))) for part in cut(graph, HALVES)]
    assert sum(map(len, parts)) == len(whole) + 1  # the rotations
