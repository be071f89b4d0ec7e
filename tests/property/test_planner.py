"""Plans of random graphs, replayed: no byte has two owners at one moment, and none is wasted."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import formulas
from corral.devices.reference.device import ReferenceDevice
from corral.memory.lifetime import Interval, liveness
from corral.memory.planner import align, place
from corral.quant.types import DType
from corral.tensor.build import GraphBuilder
from corral.tensor.graph import ShapeClass
from corral.tensor.ops import Activation, Op
from corral.tensor.rewrite import fuse
from corral.tensor.tensor import Tensor
from evaluation import Evaluation, decoded, random_weights
from golden import nmse

ALIGNMENT = 64


@st.composite
def spans(draw):
    """Return intervals of any size and life."""
    found = []
    for number in range(draw(st.integers(0, 40))):
        first = draw(st.integers(0, 30))
        last = first + draw(st.integers(0, 12))
        key = Tensor(str(number), Op.EMBED, DType.F32, (1, 1))
        found.append(Interval(key, draw(st.integers(1, 5000)), first, last))
    return found


@given(spans())
def test_no_two_live_values_share_a_byte(intervals):
    """Replayed node by node, every live value has its bytes to itself."""
    layout = place(intervals, ALIGNMENT)
    for moment in {interval.first for interval in intervals}:
        live = [i for i in intervals if i.first <= moment <= i.last]
        ends = sorted((layout.offsets[i.key], layout.offsets[i.key] + i.size_bytes) for i in live)
        assert all(one[1] <= two[0] for one, two in pairwise(ends))


@given(spans())
def test_the_peak_is_exact_and_everything_is_aligned(intervals):
    """The arena ends where its last value ends, and each value starts on a multiple."""
    layout = place(intervals, ALIGNMENT)
    ends = [layout.offsets[i.key] + align(i.size_bytes, ALIGNMENT) for i in intervals]
    assert layout.size_bytes == max(ends, default=0)
    assert all(offset % ALIGNMENT == 0 for offset in layout.offsets.values())


@given(spans())
def test_the_peak_is_between_its_bounds(intervals):
    """No less than what lives at once, no more than everything side by side."""
    sizes = {i.key: align(i.size_bytes, ALIGNMENT) for i in intervals}
    moments = {interval.first for interval in intervals}
    least = max(
        (sum(sizes[i.key] for i in intervals if i.first <= m <= i.last) for m in moments), default=0
    )
    assert least <= place(intervals, ALIGNMENT).size_bytes <= sum(sizes.values())


WIDTH = 32
SHAPE = ShapeClass(rows=4, outputs=2, sequences=1, blocks=1)
TOKENS = [3, 1, 4]

UNARY = {
    "silu": (lambda g, n, x: g.activate(n, x, Activation.SILU), formulas.silu),
    "gelu": (lambda g, n, x: g.activate(n, x, Activation.GELU), formulas.gelu),
    "cap": (lambda g, n, x: g.softcap(n, x, 1.5), lambda x: 1.5 * np.tanh(x / 1.5)),
}
BINARY = {
    "add": (GraphBuilder.add, np.add),
    "mul": (GraphBuilder.mul, np.multiply),
}
KINDS = (*UNARY, *BINARY, "norm", "matmul", "views")


@st.composite
def programs(draw):
    """Return a list of steps; a step names its operation and the numbers of earlier values."""
    steps = []
    for number in range(2, 2 + draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(KINDS))
        steps.append((kind, draw(st.integers(0, number - 1)), draw(st.integers(0, number - 1))))
    last = len(steps) + 1
    outputs = draw(st.sets(st.integers(2, last), min_size=0, max_size=3))
    return steps, sorted(outputs | {last})


def build(steps, outputs):
    """Return the graph of a program."""
    g = GraphBuilder(SHAPE)
    table = g.weight("table", DType.F32, (8, WIDTH))
    norm = g.weight("norm", DType.F32, (WIDTH,))
    matrix = g.weight("matrix", DType.Q8_0, (WIDTH, WIDTH))
    first = g.embed(g.tokens, table)
    values = [first, g.rms_norm("start", first, norm, 1e-5)]
    for number, (kind, a, b) in enumerate(steps):
        name, x, y = f"{kind}.{number}", values[a], values[b]
        if kind in UNARY:
            values.append(UNARY[kind][0](g, name, x))
        elif kind in BINARY:
            values.append(BINARY[kind][0](g, name, x, y))
        elif kind == "norm":
            values.append(g.rms_norm(name, x, norm, 1e-5))
        elif kind == "matmul":
            values.append(g.matmul(name, x, matrix))
        else:
            shifted = g.view(f"{name}.view", x, 0, WIDTH)
            values.append(g.mul(name, shifted, g.view(f"{name}.other", y, 0, WIDTH)))
    return g.finish(*(values[number] for number in outputs))


def compute(steps, outputs, weights):
    """Return the outputs of a program, each value in an array of its own."""
    first = weights["table"][TOKENS]
    norm, matrix = weights["norm"], weights["matrix"]
    values = [first, formulas.rms_norm(first, norm, 1e-5, WIDTH)]
    for kind, a, b in steps:
        x, y = values[a], values[b]
        if kind in UNARY:
            values.append(UNARY[kind][1](x))
        elif kind in BINARY:
            values.append(BINARY[kind][1](x, y))
        elif kind == "norm":
            values.append(formulas.rms_norm(x, norm, 1e-5, WIDTH))
        elif kind == "matmul":
            values.append(x @ matrix.T)
        else:
            values.append(x * y)
    return [values[number] for number in outputs]


@settings(max_examples=60, deadline=None)
@given(programs(), st.sampled_from([frozenset(), frozenset({Op.MATMUL_ADD, Op.GATED})]))
def test_planned_memory_gives_the_values_of_unplanned_memory(program, fused):
    """Taking over, sharing and viewing bytes changes no number of any random graph."""
    graph = fuse(build(*program), fused)
    weights = random_weights(graph)
    with ReferenceDevice(fused) as device, Evaluation(device, graph, weights) as evaluation:
        actual = evaluation.run(tokens=TOKENS)
    unread = {"norm": np.zeros(WIDTH), "matrix": np.zeros((WIDTH, WIDTH))}
    expected = compute(*program, unread | decoded(graph, weights))
    for one, other in zip(actual, expected, strict=True):
        assert np.isfinite(one).all()
        assert nmse(one, other) <= 1e-9 or np.abs(one - other).max() <= 1e-9


@settings(max_examples=60, deadline=None)
@given(programs())
def test_liveness_covers_every_use(program):
    """A value's bytes are held from the node that makes it to the last that reads it."""
    graph = build(*program)
    result = liveness(graph)
    held = {i.key: (i.first, i.last) for i in result.intervals}
    for number, node in enumerate(graph):
        for tensor in (node, *(s for s in node.sources if not s.op.traits.is_leaf)):
            first, last = held[result.owner[tensor]]
            assert first <= number <= last
    for output in graph.outputs:
        assert held[result.owner[output]][1] == len(graph)
