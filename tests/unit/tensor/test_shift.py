"""The graph that shifts a model's context, and which models it is made for."""

import pytest

import tiny
from corral.errors import InvalidArgument
from corral.models.footprint import Limits, write_graph
from corral.tensor.graph import Graph
from corral.tensor.ops import Op, RopePairs, Rotation
from corral.tensor.shift import SHIFT_ROWS, require_shift, shift_graph
from corral.tensor.tensor import Extent
from corral.tensor.verify import verify

PAIRS = {
    "llama": RopePairs.NEIGHBOURS,
    "qwen2": RopePairs.HALVES,
    "qwen3": RopePairs.HALVES,
}


def graph_of(family, **changes):
    return write_graph(*tiny.header(family, **changes), Limits(128, parallel=2)).graph


@pytest.mark.parametrize("family", PAIRS)
def test_every_layer_turns_as_its_keys_did(family):
    """One node a layer, on the model's own state, by rotations of the model's own frequencies."""
    model = graph_of(family)
    graph = verify(shift_graph(model))
    rotations, *shifts = graph
    appends = [node for node in model if node.op is Op.KV_APPEND]
    assert [node.base for node in shifts] == [append.base for append in appends]
    assert [node.layer for node in shifts] == list(range(tiny.LAYERS[family]))
    assert {node.attributes.pairs for node in shifts} == {PAIRS[family]}
    turned = appends[0].sources[0].sources[1]
    assert rotations.sources[1:] == turned.sources[1:]
    assert rotations.columns == turned.columns
    assert {node.sources[1] for node in shifts} == {rotations}


def test_keys_have_their_magnitude_already():
    """YaRN multiplies cosines and sines once, when a key is made; turning it further does not."""
    scaling = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 64,
    }
    model = graph_of("llama", **scaling)
    turned = next(node for node in model if node.op is Op.ROTATIONS)
    assert turned.attributes.magnitude > 1
    rotations, *_ = shift_graph(model)
    assert rotations.attributes == Rotation(1.0)
    assert rotations.sources[1] is turned.sources[1]


def test_rows_are_blocks():
    """The inputs are a row a block, and what can be read of it is small."""
    graph = shift_graph(graph_of("llama"))
    inputs = graph.leaves(Op.INPUT)
    assert {(leaf.shape, leaf.extent) for leaf in inputs} == {((SHIFT_ROWS,), Extent.ROWS)}
    assert graph.outputs == graph.nodes[:1]


def test_windows_are_refused():
    """What lies behind a window is gone, so nothing can come forward."""
    with pytest.raises(InvalidArgument, match=r"layer 0 .* window of 20 tokens.* without context"):
        shift_graph(graph_of("gemma3"))
    limits = Limits(128, context_shift=True)
    with pytest.raises(InvalidArgument, match="window"):
        write_graph(*tiny.header("gemma3"), limits)


def test_keys_that_were_not_turned_are_refused():
    """Nothing tells the position of such a key, or something else does."""
    model = graph_of("llama")
    append = next(node for node in model if node.op is Op.KV_APPEND)
    k, *others = append.sources
    plain = type(append)(
        append.name, append.op, append.dtype, append.shape, (k.sources[0], *others), layer=0
    )
    with pytest.raises(InvalidArgument, match="keys of layer 0"):
        require_shift(Graph((plain,), (plain,), model.shape_class))
