"""One case an operation: a graph of it, and what it must give by the formulas.

Any device can be put through them: `check(device, case)`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import formulas
from corral.quant.types import DType
from corral.tensor.build import GraphBuilder
from corral.tensor.graph import ShapeClass
from corral.tensor.ops import Activation, Op, Rope, RopePairs
from corral.tensor.rewrite import fuse
from corral.tensor.tensor import Tensor
from evaluation import Evaluation, decoded, random_weights
from golden import nmse

SHAPE = ShapeClass(rows=7, outputs=3, sequences=2, blocks=2)
ROWS = 5
"""Rows of the batch; fewer than the plan's, so that a device which ignores the count is found."""
WIDTH = 64
TABLE_ROWS = 30

EXACT = 1e-12
INT8 = 1e-5
"""A code may fall to the other side of a tie when the scale is rounded to F32."""


@dataclass(frozen=True)
class Values:
    """The float64 values a case is computed from."""

    weights: dict[str, Any]
    tokens: Any
    positions: Any
    output_rows: Any
    multiplies_codes: bool
    """Whether quantized weights meet int8 activations."""

    def x(self, name="x"):
        """Return the rows that `rows_of(g, name)` gives."""
        return self.weights[name][self.tokens]

    def product(self, x, weight="w"):
        """Return x · wᵀ for quantized weights, x as the device keeps it."""
        return (formulas.through_int8(x) if self.multiplies_codes else x) @ self.weights[weight].T


@dataclass(frozen=True)
class Case:
    """An operation in a graph, and the formula it must follow."""

    name: str
    build: Callable[[GraphBuilder], Tensor]
    expected: Callable[[Values], Any]
    fused: frozenset[Op] = frozenset()

    def __repr__(self):
        return self.name


def rows_of(g, name="x", width=WIDTH):
    """Return rows of random values: embeddings of the batch's tokens in a table of this name."""
    return g.embed(g.tokens, g.weight(name, DType.F32, (TABLE_ROWS, width)))


def check(device, case, *, exact=EXACT, int8=INT8):
    """Compare what a device gives for a case with its formula."""
    g = GraphBuilder(SHAPE)
    graph = _named(g.finish(case.build(g)))
    fused = case.fused | device.traits.fused
    graph = fuse(graph, fused)
    assert case.fused <= {node.op for node in graph} | _INNER
    weights = random_weights(graph, seed=len(case.name))
    generator = np.random.default_rng(1)
    tokens = generator.permutation(TABLE_ROWS)[:ROWS]
    positions = np.array([0, 1, 40, 999, 100_000])
    output_rows = np.array([4, 0])
    with Evaluation(device, graph, weights) as evaluation:
        (actual,) = evaluation.run(
            tokens=tokens, positions=positions, output_rows=output_rows, outputs=len(output_rows)
        )
    codes = Op.QUANTIZE in fused
    known = decoded(graph, weights)
    expected = case.expected(Values(known, tokens, positions, output_rows, codes))
    has_codes = any(node.dtype is DType.A8 for node in graph)
    assert actual.shape == expected.shape
    error, limit = nmse(actual, expected), int8 if has_codes else exact
    assert error <= limit, f"NMSE {error:.2e}, at most {limit:.0e}"


_INNER = frozenset({Op.QUANTIZE, Op.GATED})
"""Operations that the larger fusions take in again."""


def _named(graph):
    """Give nodes that share a name (every embedding is called embed) a name of their own."""
    renamed = {}

    def visit(tensor, number):
        sources = tuple(renamed.get(source, source) for source in tensor.sources)
        name = f"{tensor.name}.{number}"
        return Tensor(
            name, tensor.op, tensor.dtype, tensor.shape, sources, tensor.attributes, tensor.extent
        )

    for number, node in enumerate(graph):
        renamed[node] = visit(node, number)
    outputs = tuple(renamed[output] for output in graph.outputs)
    return type(graph)(tuple(renamed.values()), outputs, graph.shape_class)


def _norm_weight(g, length):
    return g.weight("norm", DType.F32, (length,))


def _matmul(dtype, bias):
    def build(g):
        b = g.weight("bias", DType.F32, (48,)) if bias else None
        return g.matmul("y", rows_of(g, width=256), g.weight("w", dtype, (48, 256)), b)

    def expected(v):
        product = v.product(v.x()) if dtype.is_quantized else v.x() @ v.weights["w"].T
        return product + (v.weights["bias"] if bias else 0)

    return Case(f"matmul-{dtype.name}{'-bias' if bias else ''}", build, expected)


def _activate(activation, formula):
    return Case(
        f"activate-{activation.name}",
        lambda g: g.activate("y", rows_of(g), activation),
        lambda v: formula(v.x()),
    )


def _rope(pairs, pair_of, turned):
    frequencies = tuple(0.7**i for i in range(turned // 2))
    rope = Rope(16, pairs)

    def build(g):
        turns = g.rotations("turns", g.constant("f", frequencies))
        return g.rope("y", rows_of(g), turns, rope)

    def expected(v):
        turns = formulas.rotations(v.positions, frequencies)
        return formulas.rope(v.x(), turns, 16, pair_of)

    return Case(f"rope-{pairs.name}-{turned}-of-16", build, expected)


_FREQUENCIES = (1.0, 0.3, 0.01)


def _rotations_with_factors(g):
    factors = g.weight("factors", DType.F32, (3,))
    return g.rotations("y", g.constant("f", _FREQUENCIES), factors, magnitude=1.25)


def _gated(g, activation=Activation.SILU):
    return g.mul("y", g.activate("active", rows_of(g, "gate"), activation), rows_of(g, "up"))


def _gated_formula(v):
    return formulas.silu(v.x("gate")) * v.x("up")


def _times_q8(g, x):
    return g.matmul("product", x, g.weight("w", DType.Q8_0, (24, WIDTH)))


def _matmul_add(bias):
    def build(g):
        b = g.weight("bias", DType.F32, (24,)) if bias else None
        product = g.matmul("product", rows_of(g), g.weight("w", DType.F32, (24, WIDTH)), b)
        return g.add("y", product, rows_of(g, "residual", 24))

    def expected(v):
        bias_row = v.weights["bias"] if bias else 0
        return v.x() @ v.weights["w"].T + bias_row + v.x("residual")

    fused = frozenset({Op.MATMUL_ADD})
    return Case(f"matmul_add{'-bias' if bias else ''}", build, expected, fused)


def _same_twice(g):
    x = rows_of(g)
    return g.add("y", x, x)


def _norm_of(x, v):
    return formulas.rms_norm(x, v.weights["norm"], 1e-5, WIDTH)


def _normed(g):
    return g.rms_norm("normed", rows_of(g), _norm_weight(g, WIDTH), 1e-5)


_QUANTIZED = (DType.Q4_0, DType.Q4_1, DType.Q8_0, DType.Q4_K, DType.Q6_K)

PLAIN = (
    Case(
        "embed",
        lambda g: g.embed(g.tokens, g.weight("x", DType.F32, (TABLE_ROWS, WIDTH)), scale=3.5),
        lambda v: v.x() * 3.5,
    ),
    Case(
        "embed-q4_0",
        lambda g: g.embed(g.tokens, g.weight("x", DType.Q4_0, (TABLE_ROWS, WIDTH))),
        lambda v: v.x(),
    ),
    Case("rms_norm", _normed, lambda v: _norm_of(v.x(), v)),
    Case(
        "rms_norm-groups",
        lambda g: g.rms_norm("y", rows_of(g), _norm_weight(g, 16), 1e-2, group=16),
        lambda v: formulas.rms_norm(v.x(), v.weights["norm"], 1e-2, 16),
    ),
    *(_matmul(t, bias) for t in (DType.F32, DType.F16, DType.BF16) for bias in (False, True)),
    *(_matmul(dtype, False) for dtype in _QUANTIZED),
    Case(
        "add",
        lambda g: g.add("y", rows_of(g, "a"), rows_of(g, "b")),
        lambda v: v.x("a") + v.x("b"),
    ),
    Case("add-itself", _same_twice, lambda v: 2 * v.x()),
    Case(
        "mul",
        lambda g: g.mul("y", rows_of(g, "a"), rows_of(g, "b")),
        lambda v: v.x("a") * v.x("b"),
    ),
    _activate(Activation.SILU, formulas.silu),
    _activate(Activation.GELU, formulas.gelu),
    Case(
        "softcap",
        lambda g: g.softcap("y", rows_of(g), 0.1),
        lambda v: 0.1 * np.tanh(v.x() / 0.1),
    ),
    Case(
        "rotations",
        lambda g: g.rotations("y", g.constant("f", _FREQUENCIES)),
        lambda v: formulas.rotations(v.positions, _FREQUENCIES),
    ),
    Case(
        "rotations-factors",
        _rotations_with_factors,
        lambda v: formulas.rotations(v.positions, _FREQUENCIES, v.weights["factors"], 1.25),
    ),
    *(
        _rope(pairs, pair_of, turned)
        for turned in (16, 8)
        for pairs, pair_of in (
            (RopePairs.HALVES, lambda i, half: (i, i + half)),
            (RopePairs.NEIGHBOURS, lambda i, half: (2 * i, 2 * i + 1)),
        )
    ),
    Case(
        "select_rows",
        lambda g: g.select_rows("y", rows_of(g)),
        lambda v: v.x()[v.output_rows],
    ),
    Case(
        "view",
        lambda g: g.add("y", g.view("v", rows_of(g, "a"), 16, 32), rows_of(g, "b", 32)),
        lambda v: v.x("a")[:, 16:48] + v.x("b"),
    ),
    Case(
        "view-of-view",
        lambda g: g.activate(
            "y", g.view("w", g.view("v", rows_of(g), 16, 40), 8, 16), Activation.SILU
        ),
        lambda v: formulas.silu(v.x()[:, 24:40]),
    ),
)
"""What models write."""

FUSED = (
    Case(
        "quantize",
        lambda g: _times_q8(g, rows_of(g)),
        lambda v: v.product(v.x()),
        frozenset({Op.QUANTIZE}),
    ),
    Case(
        "norm_quantize",
        lambda g: _times_q8(g, _normed(g)),
        lambda v: v.product(_norm_of(v.x(), v)),
        frozenset({Op.QUANTIZE, Op.NORM_QUANTIZE}),
    ),
    Case("gated", _gated, _gated_formula, frozenset({Op.GATED})),
    Case(
        "gated-gelu",
        lambda g: _gated(g, Activation.GELU),
        lambda v: formulas.gelu(v.x("gate")) * v.x("up"),
        frozenset({Op.GATED}),
    ),
    Case(
        "gated_quantize",
        lambda g: _times_q8(g, _gated(g)),
        lambda v: v.product(_gated_formula(v)),
        frozenset({Op.QUANTIZE, Op.GATED, Op.GATED_QUANTIZE}),
    ),
    _matmul_add(False),
    _matmul_add(True),
)
"""What rewrites make of it."""

CASES = PLAIN + FUSED
"""Every operation but those of the cache."""
