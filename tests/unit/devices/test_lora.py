"""Adapters attached to products, on every device that computes, against float64."""

import numpy as np
import pytest

from corral.devices.base import AdapterTables
from corral.lora.packing import pack
from corral.memory.lifetime import Lifetime
from corral.memory.plan import place_tables
from corral.quant.types import DType
from corral.tensor.attach import ADAPTER_WORDS, AdapterRoom, Attachment, table_name
from corral.tensor.build import GraphBuilder
from corral.tensor.graph import ShapeClass
from corral.tensor.rewrite import fuse
from evaluation import Evaluation, decoded, random_weights
from golden import nmse

SHAPE = ShapeClass(rows=23, outputs=6, sequences=4, blocks=2)
ROOM = AdapterRoom(slots=4, spans=16, units=8)
TABLE_ROWS = 40
NAMES = ("w", "v", "o")


def graph_of(device, dtype, width, rows):
    """Return a graph with two products of one x, and one of selected rows with a residual."""
    g = GraphBuilder(SHAPE)
    x = g.embed(g.tokens, g.weight("x", DType.F32, (TABLE_ROWS, width)))
    w = g.matmul("y", x, g.weight("w", dtype, (rows, width)))
    v = g.matmul("z", x, g.weight("v", dtype, (rows, width)))
    both = g.select_rows("selected", g.add("sum", w, v))
    out = g.matmul("out", both, g.weight("o", dtype, (rows, rows)))
    graph = g.finish(g.add("last", out, both), w)
    attachment = Attachment(NAMES, ROOM, device.traits.adapter_part_columns)
    return fuse(graph, device.traits.fused, attachment=attachment)


class Attached(Evaluation):
    """An evaluation with adapters in its tables."""

    def __init__(self, device, graph, weights, adapters):
        layout = place_tables(graph, device.traits)
        self.table = device.allocate(layout.size_bytes, Lifetime.ADAPTER)
        self.kept = []
        for slot, adapter in adapters.items():
            for name, (a, b) in adapter.items():
                packed = pack(a, b, 1.0)
                units = -(-len(a) // 8)
                buffers = [self._buffer(device, half) for half in (packed.a, packed.b)]
                words = [*(buffer.address for buffer in buffers), units, packed.factor_word]
                at = layout.offsets[table_name(name)] + slot * 8 * ADAPTER_WORDS
                device.put(self.table, at, np.array(words, np.int64).view(np.uint8))
        super().__init__(device, graph, weights, AdapterTables(self.table, layout))

    def _buffer(self, device, data):
        buffer = device.allocate(data.nbytes, Lifetime.ADAPTER)
        device.put(buffer, 0, data)
        self.kept.append(buffer)
        return buffer

    def __exit__(self, *error):
        super().__exit__(*error)
        for buffer in (self.table, *self.kept):
            buffer.close()


def random_adapter(seed, names, rank, width, rows):
    generator = np.random.default_rng(seed)
    found = {}
    for name in names:
        columns = rows if name == "o" else width
        a = generator.normal(size=(rank, columns)) / np.sqrt(columns)
        b = generator.normal(size=(rows, rank)) * 1e-3
        found[name] = a.astype(np.float32), b.astype(np.float32)
    return found


def as_input(spans):
    """Return spans (first, end, slot, unit, scale) as devices read them."""
    rows = [[len(spans), 0, 0, 0, 0]]
    for *numbers, scale in spans:
        rows.append([*numbers, int(np.float32(scale).view(np.int32))])
    return np.array(rows, np.int32)


ROW_SPANS = (
    (0, 1, 0, 0, 1.0),
    (1, 3, 2, 0, 300.0),
    (3, 14, 1, 0, -50.0),
    (14, 15, 0, 0, 100.0),
    (14, 15, 1, 2, 20.0),
    (17, 23, 2, 1, 5.0),
)
OUTPUT_SPANS = ((0, 1, 0, 0, 1.0), (1, 5, 1, 3, 40.0), (2, 3, 2, 0, 7.0))
OUTPUT_ROWS = np.array([0, 3, 14, 15, 20, 22])


def run(device, dtype, width, rows, spans=(ROW_SPANS, OUTPUT_SPANS)):
    """Return what a device computes, and what float64 says of the same."""
    adapters = {
        0: random_adapter(0, ("w", "o"), 16, width, rows),
        1: random_adapter(1, NAMES, 3, width, rows),
        2: random_adapter(2, ("v", "o"), 8, width, rows),
    }
    graph = graph_of(device, dtype, width, rows)
    weights = random_weights(graph, seed=3)
    tokens = np.random.default_rng(1).permutation(TABLE_ROWS)[: SHAPE.rows]
    with Attached(device, graph, weights, adapters) as evaluation:
        outputs = evaluation.run(
            tokens=tokens,
            output_rows=OUTPUT_ROWS,
            adapter_rows=as_input(spans[0]),
            adapter_outputs=as_input(spans[1]),
            outputs=len(OUTPUT_ROWS),
        )
    known = decoded(graph, weights)
    return outputs, expected(known, adapters, tokens, spans)


def expected(known, adapters, tokens, spans):
    x = known["x"][tokens]

    def product(name, x, own):
        y = x @ known[name].T
        for first, end, slot, _unit, scale in own:
            if name in adapters[slot]:
                a, b = (half.astype(np.float64) for half in adapters[slot][name])
                y[first:end] += scale * (x[first:end] @ a.T @ b.T)
        return y

    y = product("w", x, spans[0])
    both = (y + product("v", x, spans[0]))[OUTPUT_ROWS]
    return product("o", both, spans[1]) + both, y


@pytest.mark.parametrize(("width", "rows"), [(64, 64), (96, 40), (35, 17)])
def test_adapters_add_what_they_should(computing, width, rows):
    """Several adapters of other ranks, scales and weights in one batch, and rows with none."""
    outputs, formulas = run(computing, DType.F32, width, rows)
    for actual, formula in zip(outputs, formulas, strict=True):
        assert nmse(actual, formula) <= 1e-6


@pytest.mark.parametrize("dtype", [DType.Q8_0, DType.Q4_0])
def test_adapters_meet_quantized_weights(computing, dtype):
    """Where rows become codes for the product, adapters see them as they were."""
    outputs, formulas = run(computing, dtype, 64, 64)
    for actual, formula in zip(outputs, formulas, strict=True):
        assert nmse(actual, formula) <= 1e-4


def test_without_spans_nothing_is_added(computing):
    """A batch without adapters computes what the model does."""
    outputs, formulas = run(computing, DType.F32, 64, 64, ((), ()))
    for actual, formula in zip(outputs, formulas, strict=True):
        assert nmse(actual, formula) <= 1e-12


def test_neighbours_change_no_bit(computing):
    """A row has the same bits whether its span is long or short, and whatever stands beside it."""
    together, _ = run(computing, DType.F32, 96, 40, (((0, 23, 1, 0, 30.0),), ()))
    apart = tuple((row, row + 1, 1, row % 3, 30.0) for row in range(10))
    alone, _ = run(computing, DType.F32, 96, 40, (apart, ()))
    if computing.name == "cpu":
        assert np.array_equal(together[1][:10], alone[1][:10])
    else:
        assert nmse(together[1][:10], alone[1][:10]) <= 1e-12
