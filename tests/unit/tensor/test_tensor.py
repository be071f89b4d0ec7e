"""Tensors: sizes, views and names."""

from corral.quant.types import DType
from corral.tensor.build import GraphBuilder
from corral.tensor.graph import ShapeClass
from corral.tensor.ops import Op
from corral.tensor.tensor import Tensor

SHAPE = ShapeClass(rows=5, outputs=2, sequences=3, blocks=4)


def test_sizes_follow_the_type():
    """Rows are contiguous, and a row takes what its type says."""
    tensor = Tensor("w", Op.WEIGHT, DType.Q4_0, (3, 2, 64))
    assert (tensor.rows, tensor.columns, tensor.row_bytes) == (6, 64, 36)
    assert tensor.size_bytes == 6 * 36


def test_equality_is_identity():
    """Two tensors that look alike are two tensors."""
    one, two = (Tensor("w", Op.WEIGHT, DType.F32, (4,)) for _ in range(2))
    assert one != two
    assert len({one, two}) == 2


def test_views_have_the_base_and_the_row_distance_of_their_source():
    """However deep, a view lies in the tensor that owns the bytes."""
    g = GraphBuilder(SHAPE)
    x = g.embed(g.tokens, g.weight("t", DType.F32, (10, 32)))
    inner = g.view("inner", g.view("outer", x, 8, 16), 4, 8)
    assert inner.base is x
    assert inner.row_bytes == x.row_bytes == 128
    assert inner.shape == (5, 8)


def test_an_append_has_the_state_as_its_base():
    """The result of KV_APPEND is the state itself."""
    g = GraphBuilder(SHAPE)
    k = g.embed(g.tokens, g.weight("t", DType.F32, (10, 32)))
    state = g.state("kv", DType.F16, (4, 2, 1, 32, 32))
    assert g.kv_append("append", k, k, state, g.tables("tables")).base is state


def test_the_representation_names_what_matters():
    """An error message that quotes a tensor tells its name, operation, type and shape."""
    assert repr(Tensor("w", Op.WEIGHT, DType.F16, (3, 4))) == "<w WEIGHT F16 3×4>"
