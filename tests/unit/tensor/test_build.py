"""The functions that model files call."""

import pytest

from corral.quant.types import DType
from corral.tensor.build import GraphBuilder
from corral.tensor.ops import Norm, Op
from corral.tensor.tensor import Extent
from corral.tensor.verify import verify
from transformers import TINY, transformer


@pytest.fixture
def g():
    return GraphBuilder(TINY)


def test_a_whole_model_is_a_legal_graph():
    """What the functions give in their usual order obeys every rule."""
    graph = transformer()
    assert verify(graph) is graph
    assert graph.shape_class is TINY


def test_inputs_have_the_capacity_of_the_shape_class(g):
    """Rows, outputs, sequences and blocks become the shapes of the inputs."""
    assert g.tokens.shape == g.positions.shape == g.sequences.shape == (48,)
    assert g.output_rows.shape == (4,)
    assert g.tables("tables").shape == (2, 4)
    assert {t.dtype for t in (g.tokens, g.output_rows, g.tables("tables"))} == {DType.I32}


def test_tables_of_one_name_are_one_tensor(g):
    """Layers of one group share their block tables."""
    assert g.tables("a") is g.tables("a")
    assert g.tables("a") is not g.tables("b")


def test_nodes_know_their_layer(g):
    """Everything made while a layer is set belongs to it."""
    before = g.embed(g.tokens, g.weight("t", DType.F32, (10, 32)))
    g.layer = 3
    weight = g.weight("w", DType.F32, (32,))
    node = g.rms_norm("n", before, weight, 1e-5)
    assert (before.layer, weight.layer, node.layer) == (None, 3, 3)


def test_extents_follow_the_first_source(g):
    """Rows stay rows until some are selected, and outputs stay outputs."""
    x = g.embed(g.tokens, g.weight("t", DType.F32, (10, 32)))
    chosen = g.select_rows("s", x)
    assert x.extent is Extent.ROWS
    assert chosen.extent is Extent.OUTPUTS
    assert chosen.shape == (4, 32)
    assert g.matmul("y", chosen, g.weight("w", DType.F32, (6, 32))).extent is Extent.OUTPUTS


def test_a_norm_covers_the_row_unless_told_otherwise(g):
    """The default group is all columns."""
    x = g.embed(g.tokens, g.weight("t", DType.F32, (10, 32)))
    weight = g.weight("w", DType.F32, (32,))
    assert g.rms_norm("a", x, weight, 1e-5).attributes == Norm(1e-5, 32)
    assert g.rms_norm("b", x, weight, 1e-5, group=8).attributes == Norm(1e-5, 8)


def test_finish_drops_what_no_output_needs(g):
    """A node that nobody reads is not part of the graph."""
    x = g.embed(g.tokens, g.weight("t", DType.F32, (10, 32)))
    g.add("dead", x, x)
    kept = g.mul("kept", x, x)
    assert [node.op for node in g.finish(kept)] == [Op.EMBED, Op.MUL]
