"""Kernels that map rows to rows, against the reference's NumPy, on odd shapes."""

import numpy as np
import pytest

from corral.devices.reference.activations import decoded, parts
from corral.quant.packed import LAYOUTS
from corral.quant.types import DType
from corral.tensor.ops import (
    Activation,
    Cap,
    Constant,
    Embed,
    Gate,
    Norm,
    Op,
    Rope,
    RopePairs,
    Rotation,
)
from corral.tensor.tensor import Extent, Tensor
from emulation import needs_emulator, prepare_missing
from emulation.instances import prepare_common
from emulation.nodes import compute, expected, instances_of, leaf, rows_of, view, weight
from golden import nmse
from unit.devices.cpu.packing import random_bytes

pytestmark = needs_emulator


CAPACITY, ROWS = 4, 3
EXACT = 1e-12


def normal(tensor, seed=0, scale=1.0):
    return (scale * np.random.default_rng(seed).normal(size=tensor.shape)).astype(np.float32)


def row_node(op, columns, sources, attributes=None, dtype=DType.F32):
    return Tensor("y", op, dtype, (CAPACITY, columns), sources, attributes, Extent.ROWS)


WIDTHS = (576, 4096, 5120, 1536)
NORMS = (Op.RMS_NORM, Op.NORM_QUANTIZE)
HEADS = ((9, 64, 64), (5, 80, 32), (3, 96, 96), (8, 128, 64), (2, 256, 256))
"""How many, their dimensions, and how many of these turn."""


def norm_node(op, columns):
    x, w = rows_of("x", CAPACITY, columns), weight("w", (columns,))
    dtype = DType.F32 if op is Op.RMS_NORM else DType.A8
    return row_node(op, columns, (x, w), Norm(1e-5, columns), dtype)


def rope_node(pairs, heads, head_dim, turned):
    x, turns = rows_of("x", CAPACITY, heads * head_dim), rows_of("turns", CAPACITY, turned)
    return row_node(Op.ROPE, heads * head_dim, (x, turns), Rope(head_dim, pairs))


@pytest.fixture(scope="module", autouse=True)
def instances():
    """Compile what the tests below share, at once."""
    prepare_common("elementwise", "embed")
    nodes = [norm_node(op, columns) for op in NORMS for columns in WIDTHS]
    nodes += [rope_node(pairs, *heads) for pairs in RopePairs for heads in HEADS]
    prepare_missing(instance for node in nodes for instance in instances_of(node))


def check_rows(node, values, tolerance=EXACT):
    """Compare the rows of the batch; rows behind them stay as they were."""
    actual = compute(node, values, rows=ROWS)
    wanted = expected(node, values, rows=ROWS)
    if node.dtype.is_activation:
        assert nmse(decoded(actual[:ROWS], node.dtype), decoded(wanted, node.dtype)) <= tolerance
    else:
        assert nmse(actual[:ROWS], wanted) <= tolerance
    assert (actual[ROWS:].view(np.uint8) == 0xFF).all()


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("op", NORMS)
def test_norm(op, columns):
    """Rows of any number of columns, alone and rounded to A8."""
    node = norm_node(op, columns)
    x, w = node.sources
    check_rows(node, {x: normal(x), w: normal(w, 1)}, EXACT if op is Op.RMS_NORM else 1e-6)


@pytest.mark.parametrize(("columns", "group"), [(9 * 64, 64), (5 * 80, 80), (30, 30), (7 * 6, 6)])
def test_norm_of_groups(columns, group):
    """Heads are normalized one by one; columns need be no multiple of anything."""
    x, w = rows_of("x", CAPACITY, columns), weight("w", (group,))
    check_rows(
        row_node(Op.RMS_NORM, columns, (x, w), Norm(1e-6, group)), {x: normal(x), w: normal(w)}
    )


@pytest.mark.parametrize("first", [0, 3, 4])
def test_views_that_are_not_aligned(first):
    """Columns that begin anywhere are read one by one."""
    whole, w = rows_of("x", CAPACITY, 203), weight("w", (96,))
    x = view(whole, first, 96)
    values = {whole: normal(whole), w: normal(w)}
    for op, dtype in ((Op.RMS_NORM, DType.F32), (Op.NORM_QUANTIZE, DType.A16)):
        check_rows(row_node(op, 96, (x, w), Norm(1e-5, 96), dtype), values, 1e-9)
    check_rows(row_node(Op.ADD, 96, (x, view(whole, 101, 96))), values)
    check_rows(row_node(Op.ACTIVATE, 96, (x,), Gate(Activation.SILU)), values)
    check_rows(row_node(Op.QUANTIZE, 96, (x,), None, DType.A8), values)


@pytest.mark.parametrize("dtype", [DType.A8, DType.A16], ids=lambda d: d.name)
@pytest.mark.parametrize("columns", [32, 576, 2048])
def test_quantize_bit_by_bit(dtype, columns):
    """Codes, scales and sums are the reference's, in groups of zeros and of tiny values too."""
    x = rows_of("x", CAPACITY, columns)
    values = normal(x, columns)
    values[0, :32], values[1, :32], values[2, 5] = 0.0, 1e-43, 3e38
    node = row_node(Op.QUANTIZE, columns, (x,), None, dtype)
    actual = parts(compute(node, {x: values}, rows=ROWS), dtype)
    wanted = parts(expected(node, {x: values}, rows=ROWS), dtype)
    for part, other in zip(actual, wanted, strict=True):
        assert np.array_equal(part[:ROWS], other)


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("columns", [96, 1030])
def test_elements(activation, columns):
    """Products, sums, activations and caps, on columns that fours do not divide as well."""
    a, b = rows_of("a", CAPACITY, columns), rows_of("b", CAPACITY, columns)
    values = {a: normal(a, 1, 4.0), b: normal(b, 2)}
    check_rows(row_node(Op.GATED, columns, (a, b), Gate(activation)), values)
    check_rows(row_node(Op.ACTIVATE, columns, (a,), Gate(activation)), values)
    check_rows(row_node(Op.ADD, columns, (a, b)), values)
    check_rows(row_node(Op.MUL, columns, (a, b)), values)
    check_rows(row_node(Op.SOFTCAP, columns, (a,), Cap(2.5)), values)


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("dtype", [DType.A8, DType.A16], ids=lambda d: d.name)
def test_gated_quantize(activation, dtype):
    """The gate's product, rounded."""
    a, b = rows_of("a", CAPACITY, 1536), rows_of("b", CAPACITY, 1536)
    node = row_node(Op.GATED_QUANTIZE, 1536, (a, b), Gate(activation), dtype)
    check_rows(node, {a: normal(a, 1, 3.0), b: normal(b, 2)}, 1e-6)


def test_activations_far_out():
    """Neither exp nor tanh overflows."""
    a = rows_of("a", CAPACITY, 4)
    values = {a: np.tile(np.array([-200, 200, -1e30, 1e30], np.float32), (CAPACITY, 1))}
    for activation in Activation:
        actual = compute(row_node(Op.ACTIVATE, 4, (a,), Gate(activation)), values, rows=ROWS)
        assert np.array_equal(actual[:ROWS], np.maximum(values[a][:ROWS], 0))


@pytest.mark.parametrize("dtype", LAYOUTS, ids=lambda dtype: dtype.name)
def test_embed_bit_by_bit(dtype):
    """Every type is decoded as the files mean it; tokens past the table give its last row."""
    columns = 512 if LAYOUTS[dtype].granularity == 256 else 576
    table = weight("table", (37, columns), dtype)
    tokens = leaf("tokens", (CAPACITY,), dtype=DType.I32)
    data = random_bytes(np.random.default_rng(3), dtype, 37, columns)
    node = row_node(Op.EMBED, columns, (tokens, table), Embed(2.0))
    given = {tokens: np.array([36, 5, 40, 0], np.int32), table: data}
    actual = compute(node, given, rows=ROWS)
    wanted = expected(node, given | {tokens: np.array([36, 5, 36, 0], np.int32)}, rows=ROWS)
    assert np.array_equal(actual[:ROWS], wanted)


@pytest.mark.parametrize("pairs", RopePairs)
@pytest.mark.parametrize(("heads", "head_dim", "turned"), HEADS)
def test_rope(pairs, heads, head_dim, turned):
    """All or some dimensions of each head turn."""
    node = rope_node(pairs, heads, head_dim, turned)
    x, turns = node.sources
    check_rows(node, {x: normal(x), turns: normal(turns, 1)})


@pytest.mark.parametrize("with_factors", [False, True])
def test_rotations(with_factors):
    """Far positions too, where F32 angles would be wrong."""
    frequencies = np.array([500_000.0 ** (-i / 64) for i in range(64)])
    f = leaf(
        "f",
        (64,),
        op=Op.CONSTANT,
        dtype=DType.F64,
        extent=Extent.FIXED,
        attributes=Constant(tuple(frequencies)),
    )
    positions, factors = leaf("positions", (CAPACITY,), dtype=DType.I32), weight("factors", (64,))
    sources = (positions, f, factors) if with_factors else (positions, f)
    node = row_node(Op.ROTATIONS, 128, sources, Rotation(1.25))
    values = {
        positions: np.array([0, 1_000_003, 131_071, 5], np.int32),
        f: frequencies,
        factors: 1 + np.abs(normal(factors)),
    }
    check_rows(node, values)


@pytest.mark.parametrize("columns", [576, 50])
def test_select_rows(columns):
    """Rows are copied in the order asked for."""
    x = rows_of("x", CAPACITY, columns)
    rows = leaf("rows", (3,), dtype=DType.I32, extent=Extent.OUTPUTS)
    node = Tensor("y", Op.SELECT_ROWS, DType.F32, (3, columns), (x, rows), None, Extent.OUTPUTS)
    values = {x: normal(x), rows: np.array([2, 0, -7], np.int32)}
    actual = compute(node, values, rows=ROWS, outputs=2)
    assert np.array_equal(actual[:2], values[x][[2, 0]])
    assert np.isnan(actual[2:]).all()
