"""When each value needs its bytes, and whose bytes it uses."""

import pytest

from corral.memory.lifetime import Interval, liveness
from corral.quant.types import DType
from corral.tensor.build import GraphBuilder
from corral.tensor.cut import cut
from corral.tensor.ops import Activation, Op
from corral.tensor.rewrite import fuse
from corral.tensor.steps import steps
from corral.tensor.tensor import Extent, Tensor
from transformers import TINY, transformer


class Lives:
    """Builds a graph over two embeddings and asks for the lives of its values."""

    def __init__(self):
        self.g = GraphBuilder(TINY)
        self.x = self.embed("x")

    def embed(self, name, width=32):
        return self.g.embed(self.g.tokens, self.g.weight(name, DType.F32, (80, width)))

    def of(self, *outputs, fused=(), **options):
        self.graph = fuse(self.g.finish(*outputs), frozenset(fused))
        self.result = liveness(self.graph, **options)
        return self.result

    def span(self, tensor):
        interval = next(i for i in self.result.intervals if i.key is self.result.owner[tensor])
        return interval.first, interval.last


@pytest.fixture
def lives():
    return Lives()


def test_a_value_lives_from_its_node_to_its_last_reader(lives):
    """Both ends are included, so a result never lies where a source is still read."""
    g, x = lives.g, lives.x
    w = g.weight("w", DType.F32, (32, 32))
    a = g.matmul("a", x, w)
    b = g.matmul("b", a, w)
    c = g.matmul("c", b, w)
    lives.of(c)
    assert [lives.span(t) for t in (x, a, b)] == [(0, 1), (1, 2), (2, 3)]


def test_outputs_live_to_the_end(lives):
    """The caller reads them after the last node."""
    g, x = lives.g, lives.x
    early = g.activate("early", x, Activation.SILU)
    late = g.matmul("late", early, g.weight("w", DType.F32, (32, 32)))
    lives.of(early, late)
    assert lives.span(early)[1] == lives.span(late)[1] == len(lives.graph)


def test_a_result_takes_over_a_source_that_dies(lives):
    """One value in place of another has its bytes and prolongs its life."""
    g, x = lives.g, lives.x
    y = g.activate("y", x, Activation.SILU)
    z = g.softcap("z", y, 3.0)
    result = lives.of(z)
    assert result.owner == {x: x, y: x, z: x}
    assert len(result.intervals) == 1
    assert lives.span(z) == (0, 3)


def test_a_source_that_is_read_later_is_left_alone(lives):
    """Nothing is overwritten that somebody still needs."""
    g, x = lives.g, lives.x
    y = g.activate("y", x, Activation.SILU)
    z = g.add("z", y, x)
    result = lives.of(z)
    assert result.owner[y] is y
    assert result.owner[z] is y


def test_an_output_is_never_overwritten(lives):
    """The caller's value survives an operation that could take its bytes."""
    g, x = lives.g, lives.x
    y = g.activate("y", x, Activation.SILU)
    z = g.softcap("z", y, 3.0)
    result = lives.of(y, z)
    assert result.owner[z] is z


def test_a_source_read_twice_by_the_node_is_left_alone(lives):
    """x + x may not write over x while reading it a second time."""
    doubled = lives.g.add("doubled", lives.x, lives.x)
    assert lives.of(doubled).owner[doubled] is doubled


def test_only_the_source_the_table_names_is_taken(lives):
    """ADD may take its first source, not its second."""
    g, x = lives.g, lives.x
    y = g.matmul("y", x, g.weight("w", DType.F32, (32, 32)))
    total = g.add("total", x, y)
    assert lives.of(total).owner[total] is x


def test_another_size_takes_nothing(lives):
    """Bytes are taken over only where they are as many."""
    g, x = lives.g, lives.x
    wide = g.matmul("wide", x, g.weight("w", DType.F32, (64, 32)))
    assert lives.of(wide).owner[wide] is wide


def test_a_view_lives_in_its_source_and_keeps_it_alive(lives):
    """The source's bytes are needed as long as the view is read."""
    g, x = lives.g, lives.x
    view = g.view("v", x, 8, 16)
    other = g.matmul("other", x, g.weight("w", DType.F32, (16, 32)))
    end = g.add("end", other, view)
    result = lives.of(end)
    assert result.owner[view] is x
    assert lives.span(x) == (0, 3)


def test_nothing_is_written_over_a_view(lives):
    """A view's rows are not contiguous, so no result may take them."""
    g, x = lives.g, lives.x
    view = g.view("v", x, 0, 32)
    active = g.activate("a", view, Activation.SILU)
    assert lives.of(active).owner[active] is active


def test_a_value_with_a_live_view_is_not_taken_over(lives):
    """Overwriting the source would change what the view shows."""
    g, x = lives.g, lives.x
    view = g.view("v", x, 0, 16)
    active = g.activate("a", x, Activation.SILU)
    end = g.add("end", g.view("w", active, 0, 16), view)
    assert lives.of(end).owner[active] is active


def test_state_and_views_of_inputs_own_nothing(lives):
    """Appends live in the state buffer, views of leaves where the leaves are."""
    graph = transformer(layers=1)
    result = liveness(graph)
    assert all(node.op is not Op.KV_APPEND for node in result.owner)
    g = lives.g
    view = g.view("v", g.tables("tables"), 0, 2)
    assert view not in liveness(g.finish(view)).owner


def test_every_scratch_value_has_an_owner_with_an_interval():
    """Whatever a device computes has a place."""
    graph = fuse(transformer(dtype=DType.Q8_0), frozenset(Op))
    result = liveness(graph)
    keys = {interval.key for interval in result.intervals}
    for node in graph:
        if node.op is not Op.KV_APPEND:
            assert result.owner[node] in keys


def test_overlap_includes_both_ends():
    """Two intervals that share one node need both their bytes there."""
    x = Lives().x
    assert Interval(x, 1, 0, 3).overlaps(Interval(x, 1, 3, 5))
    assert not Interval(x, 1, 0, 2).overlaps(Interval(x, 1, 3, 5))


def test_what_was_received_lives_from_the_beginning():
    """Another device's rows are there before the first node, and go with their last reader."""
    part = cut(transformer(), [range(1), range(1, 2)])[1]
    (rows,) = part.leaves(Op.RECEIVED)
    result = liveness(part)
    interval = next(i for i in result.intervals if i.key is rows)
    assert interval.first == 0
    assert interval.size_bytes == rows.size_bytes
    added = next(node for node in part if node.name == "add.1")
    assert result.owner[added] is rows, "a residual may be added in the bytes it came in"


def test_a_view_of_what_was_received_keeps_it(lives):
    """Reading some columns is reading."""
    g = lives.g
    rows = Tensor("rows", Op.RECEIVED, DType.F32, (TINY.rows, 32), extent=Extent.ROWS)
    one, two = g.view("one", rows, 0, 16), g.view("two", rows, 16, 16)
    other = g.activate("other", lives.embed("y", 16), Activation.SILU)
    lives.of(g.mul("product", g.add("sum", one, other), two))
    assert lives.span(rows) == (0, list(lives.graph).index(lives.graph.outputs[0]))


FUSED = frozenset({Op.QUANTIZE, Op.NORM_QUANTIZE, Op.GATED, Op.GATED_QUANTIZE, Op.MATMUL_ADD})


def spans(result):
    """Return (place, first, last) of the bytes of each value by name."""
    intervals = {interval.key: interval for interval in result.intervals}
    of = {value: intervals[owner] for value, owner in result.owner.items()}
    return {v.name: (i.key.name, i.first, i.last) for v, i in of.items()}


@pytest.mark.parametrize("fused", [frozenset(), FUSED], ids=["plain", "fused"])
@pytest.mark.parametrize("norms", [False, True])
def test_what_a_joined_step_reads_lives_to_its_end(fused, norms):
    """Blocks of one launch that are done write while others still read."""
    graph = fuse(transformer(dtype=DType.Q8_0, norms=norms), fused)
    result = liveness(graph, joins_steps=True)
    numbers = {node: number for number, node in enumerate(graph)}
    intervals = {interval.key: interval for interval in result.intervals}
    for step in steps(graph):
        nodes = step.all_nodes
        written = {result.owner[node] for node in nodes if node in result.owner}
        for source in {source for node in nodes for source in node.sources} - set(nodes):
            if source in result.owner and len(nodes) > 1:
                owner = result.owner[source]
                assert intervals[owner].last >= numbers[nodes[-1]]
                assert owner not in written, "nothing is written over it by the step itself"


def test_devices_that_join_nothing_have_other_plans():
    """What turns one by one turns in place."""
    graph = fuse(transformer(layers=1, dtype=DType.Q8_0), FUSED)
    apart, joined = liveness(graph), liveness(graph, joins_steps=True)
    assert spans(apart)["q_rope.0"][0] == "q.0"
    assert spans(joined)["q_rope.0"][0] == "q_rope.0"
    append = next(i for i, node in enumerate(graph) if node.op is Op.KV_APPEND)
    assert spans(joined)["q.0"][2] == append
    assert spans(joined)["k.0"][2] == append


def test_queries_live_until_the_codes_of_attention():
    """Codes of one head are written while another head's queries are read."""
    graph = fuse(transformer(layers=1, dtype=DType.Q8_0), FUSED)
    codes = next(i for i, node in enumerate(graph) if node.name == "attention.0.codes")
    assert spans(liveness(graph))["q_rope.0"][2] == codes - 1
    assert spans(liveness(graph, joins_steps=True))["q_rope.0"][2] == codes


def test_rows_of_products_live_until_their_gate(lives):
    """Codes of the gate are written while other rows of the weights are still multiplied."""
    g, x = lives.g, lives.x
    gate = g.matmul("gate", x, g.weight("wg", DType.F32, (32, 32)))
    up = g.matmul("up", x, g.weight("wu", DType.F32, (32, 32)))
    result = g.mul("gated", g.activate("active", gate, Activation.SILU), up)
    lives.of(result, fused=(Op.GATED,))
    assert lives.span(x) == (0, 2)
    lives.of(result, fused=(Op.GATED,), joins_steps=True)
    assert lives.span(x) == (0, 3)
