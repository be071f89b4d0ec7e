"""Each rule refuses a graph that breaks it, and names the node."""

from dataclasses import replace

import pytest

from corral.errors import InvalidGraph
from corral.quant.types import DType
from corral.tensor.build import GraphBuilder
from corral.tensor.graph import Graph, ShapeClass
from corral.tensor.ops import Activation, Attend, Columns, Gate, Norm, Op, Rope, RopePairs
from corral.tensor.rewrite import fuse
from corral.tensor.tensor import Extent, Tensor
from corral.tensor.verify import verify
from transformers import transformer

SHAPE = ShapeClass(rows=6, outputs=6, sequences=2, blocks=2)
FUSED = frozenset({Op.QUANTIZE, Op.NORM_QUANTIZE, Op.GATED, Op.GATED_QUANTIZE, Op.MATMUL_ADD})


class Parts:
    """Values to build wrong nodes from."""

    def __init__(self):
        self.g = g = GraphBuilder(SHAPE)
        self.x = g.embed(g.tokens, self.w(10, 64))
        self.other = replace(self.x, name="other")
        self.narrow = g.view("narrow", self.x, 0, 32)
        self.odd = g.view("odd", self.x, 0, 40)
        self.chosen = g.select_rows("chosen", self.x)
        self.turns = g.rotations("turns", g.constant("f", (1.0, 0.5)))
        self.codes = self.node(Op.QUANTIZE, (self.x,), dtype=DType.A8, name="codes")
        self.state = g.state("kv", DType.F16, (4, 2, 2, 32, 16))
        self.tables = g.tables("tables")
        self.appended = g.kv_append("append", self.narrow, self.narrow, self.state, self.tables)

    def w(self, *shape, dtype=DType.F32, name=None):
        return self.g.weight(name or f"w{shape}{dtype.name}", dtype, shape)

    def node(self, op, sources, attributes=None, *, shape=None, name="bad", **other):
        made = Tensor(name, op, DType.F32, shape or sources[0].shape, sources, attributes)
        return replace(made, **{"extent": sources[0].extent, **other})

    def index(self):
        return (self.g.positions, self.g.sequences, self.tables)


def graph_of(node, *before):
    return Graph((*before, node), (node,), SHAPE)


def complete(p, node):
    """Return the graph with all good parts in front of the node."""
    good = (p.x, p.other, p.narrow, p.odd, p.chosen, p.turns, p.codes, p.appended)
    return graph_of(node, *good)


ATTEND = Attend(4, 2, 16, 1.0)


def _shift(p, state=None, rotations=None, blocks=None, rope=None):
    state, rotations = state or p.state, rotations or p.turns
    sources = (state, rotations, p.g.positions, blocks or p.g.positions)
    attributes = rope or Rope(16, RopePairs.HALVES)
    other = {"dtype": DType.F16, "extent": Extent.FIXED, "shape": p.state.shape}
    return p.node(Op.KV_SHIFT, sources, attributes, **other)


def _attention(p, q=None, state=None, attend=ATTEND, **other):
    return p.node(Op.ATTENTION, (q or p.x, state or p.appended, *p.index()), attend, **other)


BAD = {
    "other rows than the first source": (
        lambda p: p.node(Op.ADD, (p.x, p.other), shape=(5, 64)),
        "its rows are not those of",
    ),
    "another extent than the first source": (
        lambda p: p.node(Op.ADD, (p.x, p.other), extent=Extent.FIXED),
        "its rows are not those of",
    ),
    "a result of the wrong type": (
        lambda p: p.node(Op.ADD, (p.x, p.other), dtype=DType.F16),
        "its result is not F32",
    ),
    "a quantizing result that is not A8": (
        lambda p: p.node(Op.QUANTIZE, (p.x,)),
        "its result is not A16 or A8",
    ),
    "an append of another type than the state": (
        lambda p: p.node(
            Op.KV_APPEND, (p.narrow, p.narrow, p.state, *p.index()), shape=p.state.shape
        ),
        "its result is not F16",
    ),
    "keys turned in something else than a state": (
        lambda p: _shift(p, state=p.appended),
        "it turns keys of",
    ),
    "keys of another size turned": (
        lambda p: _shift(p, rope=Rope(8, RopePairs.HALVES)),
        "other heads than 8 dimensions",
    ),
    "more dimensions turned than keys have": (
        lambda p: _shift(p, rotations=p.x),
        "it turns 64 dimensions of heads of 16",
    ),
    "blocks turned by rotations of others": (
        lambda p: _shift(p, blocks=p.g.output_rows),
        "has other rows than the rotations",
    ),
    "int8 codes read by something else than a product": (
        lambda p: p.node(Op.ADD, (p.codes, p.x)),
        "which only products can",
    ),
    "int8 codes as a residual": (
        lambda p: p.node(Op.MATMUL_ADD, (p.x, p.w(64, 64), p.codes)),
        "which only products can",
    ),
    "too few sources": (lambda p: p.node(Op.ADD, (p.x,)), "it has 1 sources, needs a, b"),
    "too many sources": (lambda p: p.node(Op.SOFTCAP, (p.x, p.x)), "it has 2 sources"),
    "missing attributes": (lambda p: p.node(Op.ACTIVATE, (p.x,)), "its attributes are None"),
    "attributes of another operation": (
        lambda p: p.node(Op.ROPE, (p.x, p.turns), Gate(Activation.SILU)),
        "its attributes are Gate",
    ),
    "an empty dimension": (
        lambda p: p.node(Op.VIEW, (p.x,), Columns(0), shape=(6, 0)),
        "a dimension is empty",
    ),
    "a leaf among the nodes": (lambda p: p.w(3, 3), "leaves are no nodes"),
    "embedding of another width": (
        lambda p: p.node(Op.EMBED, p.x.sources, p.x.attributes, shape=(6, 32)),
        "its shape is not tokens × 64",
    ),
    "a norm that cuts a group": (
        lambda p: p.node(Op.RMS_NORM, (p.x, p.w(48)), Norm(1e-5, 48)),
        "no whole groups of 48",
    ),
    "a norm whose weight is of another length": (
        lambda p: p.node(Op.RMS_NORM, (p.x, p.w(32)), Norm(1e-5, 64)),
        "not 64 long",
    ),
    "a norm that changes the shape": (
        lambda p: p.node(Op.RMS_NORM, (p.x, p.w(32)), Norm(1e-5, 32), shape=(6, 32)),
        "it changes the shape",
    ),
    "a product whose inner sizes differ": (
        lambda p: p.node(Op.MATMUL, (p.x, p.w(64, 32))),
        "do not fit",
    ),
    "a product of the wrong width": (
        lambda p: p.node(Op.MATMUL, (p.x, p.w(32, 64))),
        "do not fit",
    ),
    "a product of codes and float weights": (
        lambda p: p.node(Op.MATMUL, (p.codes, p.w(64, 64, dtype=DType.F16))),
        "A8 activations meet F16 weights",
    ),
    "a product of integers": (
        lambda p: p.node(
            Op.MATMUL, (p.g.tables("long"), p.w(64, 2)), shape=(2, 64), extent=Extent.FIXED
        ),
        "it multiplies I32",
    ),
    "a residual of another shape": (
        lambda p: p.node(Op.MATMUL_ADD, (p.x, p.w(64, 64), p.narrow)),
        "the residual",
    ),
    "a bias of another length": (
        lambda p: p.node(Op.MATMUL, (p.x, p.w(64, 64), p.w(63))),
        "the bias",
    ),
    "a sum of two shapes": (lambda p: p.node(Op.ADD, (p.x, p.narrow)), "another shape"),
    "a sum of rows and outputs": (
        lambda p: p.node(Op.ADD, (p.x, p.chosen)),
        "another shape or extent",
    ),
    "a product of two shapes": (lambda p: p.node(Op.MUL, (p.x, p.narrow)), "another shape"),
    "an activation that changes the shape": (
        lambda p: p.node(Op.ACTIVATE, (p.x,), Gate(Activation.SILU), shape=(6, 32)),
        "another shape",
    ),
    "rotations without a constant": (
        lambda p: p.node(Op.ROTATIONS, (p.g.positions, p.w(2)), p.turns.attributes, shape=(6, 4)),
        "its frequencies are no constant",
    ),
    "rotations with other factors": (
        lambda p: p.node(
            Op.ROTATIONS, (*p.turns.sources, p.w(3)), p.turns.attributes, shape=(6, 4)
        ),
        "another number of factors",
    ),
    "rotations of the wrong width": (
        lambda p: p.node(Op.ROTATIONS, p.turns.sources, p.turns.attributes, shape=(6, 2)),
        "wrong shape",
    ),
    "rope over part of a head": (
        lambda p: p.node(Op.ROPE, (p.x, p.turns), Rope(48, RopePairs.HALVES)),
        "no whole heads of 48",
    ),
    "rope with more rotations than a head has": (
        lambda p: p.node(Op.ROPE, (p.x, p.turns), Rope(2, RopePairs.HALVES)),
        "it turns 4 dimensions of heads of 2",
    ),
    "rope with the rotations of other rows": (
        lambda p: p.node(Op.ROPE, (p.chosen, p.turns), Rope(16, RopePairs.HALVES)),
        "are of other rows",
    ),
    "rope that changes the shape": (
        lambda p: p.node(Op.ROPE, (p.x, p.turns), Rope(16, RopePairs.HALVES), shape=(6, 32)),
        "it changes the shape",
    ),
    "an append to something else than a state": (
        lambda p: p.g.kv_append("bad", p.narrow, p.narrow, p.appended, p.tables),
        "it appends to",
    ),
    "an append of other heads": (
        lambda p: p.g.kv_append("bad", p.x, p.narrow, p.state, p.tables),
        "are not 2 heads of 16",
    ),
    "attention before the append": (
        lambda p: _attention(p, state=p.state),
        "has not appended to",
    ),
    "attention with queries of other heads": (
        lambda p: _attention(p, q=p.narrow),
        "is not 4 heads of 16",
    ),
    "attention of the wrong width": (
        lambda p: _attention(p, shape=(6, 32)),
        "does not give what",
    ),
    "attention from outputs": (
        lambda p: _attention(p, q=p.chosen),
        "does not give what",
    ),
    "attention whose heads share unevenly": (
        lambda p: _attention(p, attend=replace(ATTEND, kv_heads=3)),
        "cannot share 3 kv heads",
    ),
    "attention to a state of other heads": (
        lambda p: _attention(p, attend=replace(ATTEND, kv_heads=4)),
        "has other heads",
    ),
    "a selection that keeps all rows": (
        lambda p: p.node(Op.SELECT_ROWS, (p.x, p.g.output_rows)),
        "it is not",
    ),
    "a view past the end": (
        lambda p: p.node(Op.VIEW, (p.x,), Columns(40), shape=(6, 32)),
        "columns 40… lie outside",
    ),
    "a view before the start": (
        lambda p: p.node(Op.VIEW, (p.x,), Columns(-1), shape=(6, 32)),
        "lie outside",
    ),
    "codes of broken groups": (
        lambda p: p.node(Op.QUANTIZE, (p.odd,), dtype=DType.A8),
        "no whole groups of 32",
    ),
    "normed codes of another group": (
        lambda p: p.node(Op.NORM_QUANTIZE, (p.x, p.w(32)), Norm(1e-5, 64), dtype=DType.A8),
        "not 64 long",
    ),
    "gating of two shapes": (
        lambda p: p.node(Op.GATED, (p.x, p.narrow), Gate(Activation.SILU)),
        "another shape",
    ),
    "gated codes of two shapes": (
        lambda p: p.node(Op.GATED_QUANTIZE, (p.x, p.narrow), Gate(Activation.SILU), dtype=DType.A8),
        "another shape",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_refuses(name):
    """The refusal names the node and the rule."""
    parts = Parts()
    make, message = BAD[name]
    node = make(parts)
    with pytest.raises(InvalidGraph, match=message) as refusal:
        verify(complete(parts, node))
    assert repr(node) in str(refusal.value)


def test_the_good_parts_are_good():
    """What the bad nodes are made of is legal by itself."""
    parts = Parts()
    verify(complete(parts, _attention(parts)))


def test_refuses_a_source_that_comes_later():
    """A node cannot read what is not computed yet."""
    parts = Parts()
    late = parts.node(Op.ADD, (parts.x, parts.other))
    with pytest.raises(InvalidGraph, match="reads other before that is computed"):
        verify(Graph((parts.x, late, parts.other), (late,), SHAPE))


def test_refuses_two_nodes_of_one_name():
    """Names are what dumps and comparisons go by."""
    parts = Parts()
    twin = replace(parts.other, name=parts.x.name)
    with pytest.raises(InvalidGraph, match="its name is used twice"):
        verify(graph_of(twin, parts.x))


def test_refuses_two_leaves_of_one_name():
    """Plans know weights and inputs by name, so a name has one meaning."""
    parts = Parts()
    one = parts.node(Op.MATMUL, (parts.x, parts.w(8, 64, name="w")), shape=(6, 8), name="one")
    two = parts.node(Op.MATMUL, (parts.x, parts.w(9, 64, name="w")), shape=(6, 9), name="two")
    with pytest.raises(InvalidGraph, match="it reads <w WEIGHT F32 9×64>, another node reads"):
        verify(graph_of(two, parts.x, one))


def test_refuses_an_output_that_is_no_node():
    """The caller can only read what is computed."""
    parts = Parts()
    with pytest.raises(InvalidGraph, match="it is an output but no node"):
        verify(Graph((parts.x,), (parts.other,), SHAPE))


@pytest.mark.parametrize("dtype", [DType.F32, DType.Q8_0])
def test_rewrites_keep_a_graph_legal(dtype):
    """Every fusion at once gives a graph that obeys every rule."""
    verify(fuse(transformer(dtype=dtype), FUSED))


@pytest.mark.parametrize(
    "changes",
    [{"dtype": DType.F16}, {"dtype": DType.A8}, {"extent": Extent.FIXED}, {"shape": (4, 2, 2, 32)}],
)
def test_only_rows_of_f32_are_received(changes):
    """Codes, states and tables stay on the device that made them."""
    p = Parts()
    rows = Tensor("rows", Op.RECEIVED, DType.F32, p.x.shape, extent=Extent.ROWS)
    good = p.node(Op.ADD, (p.x, rows), name="good")
    assert verify(graph_of(good, p.x))
    bad = p.node(Op.ADD, (p.x, replace(rows, **changes)))
    with pytest.raises(InvalidGraph, match=r"bad.*cannot come from another device"):
        verify(graph_of(bad, p.x))
