"""The plain matrix product, for every layout and every kind of rows."""

import numpy as np
import pytest

from corral.devices.reference.activations import quantize
from corral.quant.packed import LAYOUTS
from corral.quant.types import DType
from corral.tensor.ops import Op, Product
from corral.tensor.tensor import Extent, Tensor
from emulation import needs_emulator
from emulation.instances import prepare_common
from emulation.nodes import compute, expected, rows_of, stored_shape, weight
from golden import nmse
from unit.devices.cpu.packing import random_bytes

pytestmark = needs_emulator


@pytest.fixture(scope="module", autouse=True)
def instances():
    """Compile what the tests below share, at once."""
    prepare_common("matmul")


NUMBER = 40
"""Rows of the weight; no multiple of 16."""
EXACT = 1e-11
"""What is rounded is an input here, so only the order of F32 additions differs."""


def codes(x, dtype):
    """Return rows as activations of a type."""
    if dtype is DType.F32:
        return x
    result = np.empty((len(x), dtype.row_bytes(x.shape[1])), np.uint8)
    quantize(x, result, dtype)
    return result


def product(dtype, kind, capacity, *, columns=512, has_bias=False, has_residual=False):
    """Return a node and values for its leaves."""
    random = np.random.default_rng(capacity)
    x, w = rows_of("x", capacity, columns, kind), weight("w", (NUMBER, columns), dtype)
    values = {
        x: codes(random.normal(size=(capacity, columns)).astype(np.float32), kind),
        w: random_bytes(random, dtype, NUMBER, columns),
    }
    sources = [x, w]
    if has_residual:
        sources.append(rows_of("residual", capacity, NUMBER))
    if has_bias:
        sources.append(weight("bias", (NUMBER,)))
    for tensor in sources[2:]:
        values[tensor] = random.normal(size=stored_shape(tensor)[1]).astype(np.float32)
    op = Op.MATMUL_ADD if has_residual else Op.MATMUL
    shape = (capacity, NUMBER)
    return Tensor("y", op, DType.F32, shape, tuple(sources), Product(), Extent.ROWS), values


def check(node, values, rows):
    actual = compute(node, values, rows=rows)
    wanted = expected(node, values, rows=rows)
    assert nmse(actual[:rows], wanted) <= EXACT
    assert np.isnan(actual[rows:]).all()


def kinds(dtype):
    return (DType.A8, DType.A16, DType.F32) if dtype.is_quantized else (DType.F32,)


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [(dtype, kind) for dtype in LAYOUTS for kind in kinds(dtype)],
    ids=lambda d: d.name,
)
def test_product(dtype, kind):
    """Fewer rows than there is room for, in two blocks, with bias and residual."""
    check(*product(dtype, kind, 11, has_bias=True, has_residual=True), 10)


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_few_rows(capacity):
    """One row, and up to four in a block."""
    check(*product(DType.Q4_K, DType.A8, capacity), capacity)


@pytest.mark.parametrize("dtype", [DType.Q4_0, DType.Q8_0, DType.F16], ids=lambda d: d.name)
def test_columns_that_spans_do_not_divide(dtype):
    """576 columns are 18 groups."""
    kind = DType.A8 if dtype.is_quantized else DType.F32
    check(*product(dtype, kind, 5, columns=576, has_bias=True), 4)


@pytest.mark.parametrize("dtype", [DType.Q4_K, DType.Q6_K, DType.F16], ids=lambda d: d.name)
def test_neighbours_do_not_matter(dtype):
    """A row gets the same bits alone, with others, and at any capacity."""
    kind = DType.A8 if dtype.is_quantized else DType.F32
    node, values = product(dtype, kind, 9)
    together = compute(node, values, rows=9)
    x, w = node.sources
    for capacity in (1, 3):
        one = rows_of("x", capacity, x.columns, kind)
        alone = Tensor("y", node.op, DType.F32, (capacity, NUMBER), (one, w), None, Extent.ROWS)
        given = {one: values[x][5 : 5 + capacity], w: values[w]}
        assert np.array_equal(compute(alone, given, rows=1)[0], together[5])
