"""Which nodes a device may compute in one go, and which it may not."""

from dataclasses import replace

import pytest

from corral.quant.types import DType
from corral.tensor.build import GraphBuilder
from corral.tensor.ops import Activation, Attend, Op, Rope, RopePairs
from corral.tensor.rewrite import fuse
from corral.tensor.steps import MOST_PRODUCTS, steps
from corral.tensor.tensor import Extent, Tensor
from transformers import TINY, transformer

FUSED = frozenset({Op.QUANTIZE, Op.NORM_QUANTIZE, Op.GATED, Op.GATED_QUANTIZE, Op.MATMUL_ADD})
DIM, HEADS, KV_HEADS = 16, 4, 2
ROPE = Rope(DIM, RopePairs.HALVES)


class Nodes:
    """Builds graphs over two embeddings, and names the nodes of their steps."""

    def __init__(self):
        self.g = GraphBuilder(TINY)
        self.x, self.y = self.embed("x"), self.embed("y")
        self.turns = self.g.rotations("turns", self.g.constant("f", (1.0,) * (DIM // 2)))

    def embed(self, name, width=64):
        x = self.g.embed(self.g.tokens, self.g.weight(name, DType.F32, (80, width)))
        return replace(x, name=name)

    def product(self, name, x=None, rows=64):
        x = x or self.x
        return self.g.matmul(name, x, self.g.weight(f"{name}.w", DType.F32, (rows, x.columns)))

    def norm(self, name, x, group=DIM):
        weight = self.g.weight(f"{name}.w", DType.F32, (group,))
        return self.g.rms_norm(name, x, weight, 1e-5, group=group)

    def rope(self, name, x, turns=None, rope=ROPE):
        return self.g.rope(name, x, turns or self.turns, rope)

    def heads(self):
        """Return what q, k and v are made from."""
        return self.embed("q"), self.embed("k", KV_HEADS * DIM), self.embed("v", KV_HEADS * DIM)

    def append(self, k, v):
        state = self.g.state("kv", DType.F16, (8, 2, KV_HEADS, 32, DIM))
        return self.g.kv_append("append", k, v, state, self.g.tables("tables"))

    def attention(self, q, appended):
        return self.g.attention("attention", q, appended, Attend(HEADS, KV_HEADS, DIM, 0.25))

    def steps(self, *outputs):
        """Return the names of each step of more than one node."""
        found = steps(self.g.finish(*outputs))
        return [names(step) for step in found if len(step.all_nodes) > 1]


def names(step):
    return " ".join(node.name for node in step.all_nodes)


@pytest.fixture
def n():
    return Nodes()


@pytest.mark.parametrize("fused", [frozenset(), FUSED], ids=["plain", "fused"])
def test_each_node_is_in_one_step_in_order(fused):
    """Computing the steps one after the other is computing the graph."""
    graph = fuse(transformer(dtype=DType.Q8_0, norms=True), fused)
    assert [node for step in steps(graph) for node in step.all_nodes] == list(graph)


def test_the_steps_of_a_model():
    """All that can be joined in a layer is."""
    graph = fuse(transformer(layers=1, dtype=DType.Q8_0), FUSED)
    assert [names(step) for step in steps(graph)] == [
        "embed",
        "turns",
        "attn_norm.0.codes",
        "q.0 k.0 v.0",
        "q_rope.0 k_rope.0 append.0",
        "attention.0 attention.0.codes",
        "add.0",
        "selected",
        "ffn_norm.0.codes",
        "gate.0 up.0 gated.0.codes",
        "ffn_add.0",
        "output_norm.1.codes",
        "logits",
    ]


def test_views_are_left_out(n):
    """They do nothing, and stand in nobody's way."""
    a = n.product("a")
    left = n.g.view("left", n.x, 0, 32)
    b = n.product("b")
    found = steps(n.g.finish(n.g.add("sum", a, b), left))
    assert "a b" in [names(step) for step in found]
    assert not any("left" in names(step) for step in found)


# --- products ---


def test_products_of_the_same_rows_are_joined(n):
    """Others are not: each step has one x."""
    a, b, c = n.product("a"), n.product("b", rows=8), n.product("c", n.y)
    assert n.steps(a, b, c) == ["a b"]
    step = next(s for s in steps(n.g.finish(a, b, c)) if len(s.nodes) == 2)
    assert step.is_product
    assert step.x is n.x
    assert step.gate is None


def test_products_are_joined_up_to_a_number(n):
    """The next one begins another step."""
    several = [n.product(f"p{i}") for i in range(MOST_PRODUCTS + 2)]
    assert n.steps(*several) == ["p0 p1 p2", "p3 p4"]


def test_products_that_something_separates_are_not_joined(n):
    """What stands between may be what the next one waits for."""
    a = n.product("a")
    between = n.g.softcap("between", n.y, 2.0)
    assert n.steps(a, between, n.product("b")) == []


def test_a_product_with_a_residual_stands_alone():
    """It writes over what it is added to."""
    graph = fuse(transformer(layers=1), FUSED)
    sums = [step for step in steps(graph) if step.nodes[-1].op is Op.MATMUL_ADD]
    assert sums
    assert all(len(step.all_nodes) == 1 and step.is_product for step in sums)


# --- gates ---


def gated(n, gate, up):
    active = n.g.activate("active", gate, Activation.SILU)
    return n.g.mul("gated", active, up)


def gated_steps(n, *outputs):
    graph = fuse(n.g.finish(*outputs), frozenset({Op.GATED}))
    return [names(step) for step in steps(graph) if len(step.all_nodes) > 1]


def test_a_gate_joins_its_two_products(n):
    """Its result is the only one of the step."""
    result = gated(n, n.product("gate"), n.product("up"))
    assert gated_steps(n, result) == ["gate up gated"]


def test_a_gate_of_other_products_is_not_joined(n):
    """The order of the two matters, and so does their number."""
    up, gate = n.product("up"), n.product("gate")
    assert gated_steps(n, gated(n, gate, up)) == ["up gate"]
    n = Nodes()
    one, gate, up = n.product("one"), n.product("gate"), n.product("up")
    assert gated_steps(n, gated(n, gate, up), one) == ["one gate up"]


def test_a_gate_whose_products_are_read_elsewhere_is_not_joined(n):
    """By another node, or by the caller."""
    gate, up = n.product("gate"), n.product("up")
    result = gated(n, gate, up)
    assert gated_steps(n, result, up) == ["gate up"]
    assert gated_steps(n, result, n.g.softcap("late", gate, 1.0)) == ["gate up"]


# --- heads on their way to the cache ---


def turned(n, norms=""):
    """Return q, k and the append, of heads that are normed or not."""
    q, k, v = n.heads()
    q = n.rope("q_rope", n.norm("q_norm", q) if "q" in norms else q)
    k = n.rope("k_rope", n.norm("k_norm", k) if "k" in norms else k)
    return q, k, n.append(k, v)


@pytest.mark.parametrize(
    ("norms", "expected"),
    [
        ("", "q_rope k_rope append"),
        ("qk", "q_norm q_rope k_norm k_rope append"),
        ("q", "q_norm q_rope k_rope append"),
        ("k", "q_rope k_norm k_rope append"),
    ],
)
def test_turned_heads_are_appended_at_once(n, norms, expected):
    """Norms of the heads of q or k or both belong to it."""
    q, _, appended = turned(n, norms)
    found = steps(n.g.finish(n.attention(q, appended)))
    (step,) = (step for step in found if step.is_turned_append)
    assert names(step) == expected
    assert not step.is_product
    assert not step.is_coded_attention


def test_heads_that_are_read_elsewhere_are_not_joined(n):
    """The turned k and the norms are kept by no joined step."""
    q, k, appended = turned(n)
    assert n.steps(n.attention(q, appended), k) == []
    n = Nodes()
    q, k, appended = turned(n)
    assert n.steps(n.attention(q, appended), n.g.softcap("late", k, 1.0)) == []
    n = Nodes()
    q, k, v = n.heads()
    normed = n.norm("q_norm", q)
    q, k = n.rope("q_rope", normed), n.rope("k_rope", k)
    assert n.steps(n.attention(q, n.append(k, v)), normed) == ["q_rope k_rope append"]


def test_a_turned_q_that_others_read_too_is_joined(n):
    """It is there afterwards."""
    q, _, appended = turned(n)
    assert n.steps(n.attention(q, appended), q) == ["q_rope k_rope append"]


def test_heads_that_turn_in_different_ways_are_not_joined(n):
    """By other rotations, or in other pairs."""
    q, k, v = n.heads()
    others = n.g.rotations("others", n.g.constant("g", (2.0,) * (DIM // 2)))
    appended = n.append(n.rope("k_rope", k, others), v)
    assert n.steps(n.attention(n.rope("q_rope", q), appended)) == []
    n = Nodes()
    q, k, v = n.heads()
    q, k = n.rope("q_rope", q, rope=Rope(DIM, RopePairs.NEIGHBOURS)), n.rope("k_rope", k)
    assert n.steps(n.attention(q, n.append(k, v))) == []


def test_a_norm_of_something_else_than_heads_is_not_joined(n):
    """Of whole rows, or of parts of heads."""
    q, k, v = n.heads()
    q, k = n.rope("q_rope", n.norm("q_norm", q, 64)), n.rope("k_rope", n.norm("k_norm", k, 8))
    assert n.steps(n.attention(q, n.append(k, v))) == []


def test_heads_that_something_separates_are_not_joined(n):
    """Nor are those that are made from one another."""
    q, k, v = n.heads()
    q, k = n.rope("q_rope", q), n.rope("k_rope", k)
    between = n.g.softcap("between", n.x, 2.0)
    assert n.steps(n.attention(q, n.append(k, v)), between) == []
    n = Nodes()
    q, k, v = n.heads()
    k = n.rope("first", k)
    again = n.rope("again", k)
    assert n.steps(n.attention(q, n.append(again, v))) == []
    n = Nodes()
    q, k, v = n.heads()
    q, k = n.rope("q_rope", q), n.rope("k_rope", k)
    assert n.steps(n.attention(q, n.append(k, k))) == []


# --- attention and its codes ---


def codes_of(x, dtype=DType.A8):
    return Tensor("codes", Op.QUANTIZE, dtype, x.shape, (x,), None, Extent.ROWS)


def with_codes(mixed, codes, outputs, n):
    """Return the graph of attention with codes behind it."""
    graph = n.g.finish(mixed)
    return replace(graph, nodes=(*graph.nodes, *codes), outputs=outputs)


def test_attention_that_is_read_as_codes_only(n):
    """The codes are all that the step gives."""
    q, _, appended = turned(n)
    mixed = n.attention(q, appended)
    codes = codes_of(mixed)
    step = steps(with_codes(mixed, (codes,), (codes,), n))[-1]
    assert step.is_coded_attention
    assert step.nodes == (mixed, codes)


def test_attention_that_is_read_by_others_stands_alone(n):
    """By the caller, or as codes of two kinds."""
    q, _, appended = turned(n)
    mixed = n.attention(q, appended)
    codes, fine = codes_of(mixed), codes_of(mixed, DType.A16)
    for nodes, outputs in (((codes,), (mixed, codes)), ((codes, fine), (codes, fine))):
        graph = with_codes(mixed, nodes, outputs, n)
        assert not any(step.is_coded_attention for step in steps(graph))


def test_codes_of_something_else_stand_alone(n):
    """A QUANTIZE behind attention may be another's."""
    q, _, appended = turned(n)
    mixed = n.attention(q, appended)
    codes = codes_of(n.x)
    graph = with_codes(mixed, (codes,), (mixed, codes), n)
    assert not any(step.is_coded_attention for step in steps(graph))
