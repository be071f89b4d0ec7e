"""Keys put into a cache, turned there to other positions, and attended to: against the formula.

What a sequence holds is known without asking the device: rows of tables, turned by the position
that a key has had last.
"""

from dataclasses import dataclass, replace

import numpy as np

import formulas
from corral.quant.types import DType
from corral.tensor.build import GraphBuilder
from corral.tensor.graph import Graph, ShapeClass
from corral.tensor.ops import Attend, Rope, RopePairs
from corral.tensor.shift import FROM_BLOCKS, POSITIONS, TO_BLOCKS, shift_graph
from evaluation import Evaluation, decoded, random_weights
from golden import nmse

SHAPE = ShapeClass(rows=100, outputs=1, sequences=2, blocks=4)
TABLE_ROWS = 50
BLOCKS = 9
TABLES = ([5, 0, 7, 2], [1, 8, 3, 6])
SPARE = 4
LENGTHS = (100, 40)
KEPT, DROPPED = 1, 1


@dataclass(frozen=True)
class Case:
    """How heads turn, and how exact the result can be given what the cache rounds to."""

    name: str
    rope: Rope
    turned: int
    kv_dtype: DType = DType.F32
    tolerance: float = 1e-12
    has_factors: bool = False

    def __repr__(self):
        return self.name

    @property
    def attend(self):
        return Attend(heads=4, kv_heads=2, head_dim=self.rope.head_dim, scale=0.7)


_HALVES, _NEIGHBOURS = Rope(32, RopePairs.HALVES), Rope(32, RopePairs.NEIGHBOURS)
CASES = (
    Case("halves", _HALVES, 32),
    Case("neighbours", _NEIGHBOURS, 32),
    Case("factors", _HALVES, 32, has_factors=True),
    Case("some-dimensions", Rope(48, RopePairs.HALVES), 24),
    Case("some-neighbours", Rope(48, RopePairs.NEIGHBOURS), 24),
    Case("f16", _HALVES, 32, DType.F16, 2e-6),
    Case("bf16", _NEIGHBOURS, 32, DType.BF16, 2e-4),
    Case("q8_0", _HALVES, 32, DType.Q8_0, 2e-4),
)


def _graph(case):
    g, attend = GraphBuilder(SHAPE), case.attend

    def rows(name, heads):
        width = heads * attend.head_dim
        table = g.weight(name, DType.F32, (TABLE_ROWS, width))
        return replace(g.embed(g.tokens, table, scale=4.0), name=name + "_rows")

    q, k, v = rows("q", attend.heads), rows("k", attend.kv_heads), rows("v", attend.kv_heads)
    frequencies = g.constant("frequencies", _frequencies(case))
    half = case.turned // 2
    factors = g.weight("factors", DType.F32, (half,)) if case.has_factors else None
    rotations = g.rotations("rotations", frequencies, factors, magnitude=1.5)
    turned = g.rope("k_rope", k, rotations, case.rope)
    state = g.state("kv", case.kv_dtype, (BLOCKS, 2, attend.kv_heads, 32, attend.head_dim))
    appended = g.kv_append("append", turned, v, state, g.tables("tables"))
    mixed = g.attention("mixed", q, appended, attend)
    return Graph((q, k, v, rotations, turned, appended, mixed), (mixed,), SHAPE)


def _frequencies(case):
    return tuple(100.0 ** (-2.0 * pair / case.turned) for pair in range(case.turned // 2))


class ShiftedAttention:
    """Two sequences of one layer on a device; the first is shifted."""

    def __init__(self, device, case):
        self.case, graph = case, _graph(case)
        weights = random_weights(graph)
        if case.has_factors:
            weights["factors"] = np.linspace(1, 3, case.turned // 2, dtype=np.float32).tobytes()
        self.known = {name: 4 * w for name, w in decoded(graph, weights).items()}
        self.evaluation = Evaluation(device, graph, weights, also=[shift_graph(graph)])
        self.tables = [list(table) for table in TABLES]
        self.histories = [self._tokens(n, length) for n, length in enumerate(LENGTHS)]

    @staticmethod
    def _tokens(sequence, count):
        return [(13 * n + 5 * sequence) % TABLE_ROWS for n in range(count)]

    def fill(self):
        """Compute all tokens of both sequences but their last."""
        for sequence, history in enumerate(self.histories):
            self._run([(sequence, position) for position in range(len(history) - 1)])

    def shift(self, spare):
        """Drop a block of the first sequence behind its first one; the next goes to a spare one."""
        table, history = self.tables[0], self.histories[0]
        del table[KEPT : KEPT + DROPPED]
        del history[32 * KEPT : 32 * (KEPT + DROPPED)]
        sources = table[KEPT:]
        if spare:
            table[KEPT] = SPARE
        inputs = {
            POSITIONS: [-32 * DROPPED] * len(sources),
            FROM_BLOCKS: sources,
            TO_BLOCKS: table[KEPT:],
        }
        self.evaluation.run(program=1, **inputs)

    def last(self):
        """Return (actual, expected) of the last token of both."""
        return self._run([(n, len(history) - 1) for n, history in enumerate(self.histories)])

    def _run(self, rows):
        tables = [(table + [0] * 4)[:4] for table in self.tables]
        (actual,) = self.evaluation.run(
            tokens=[self.histories[sequence][position] for sequence, position in rows],
            positions=[position for _, position in rows],
            sequences=[sequence for sequence, _ in rows],
            tables=tables,
        )
        return actual, self._expected(rows)

    def _expected(self, rows):
        case, attend = self.case, self.case.attend
        shape = (-1, attend.kv_heads, attend.head_dim)
        factors = self.known["factors"] / 4 if case.has_factors else None
        history = []
        for sequence, position in rows:
            past = self.histories[sequence][: position + 1]
            turns = formulas.rotations(range(len(past)), _frequencies(case), factors, 1.5)
            keys = formulas.rope(self.known["k"][past], turns, attend.head_dim, self._pair_of)
            history.append((keys.reshape(shape), self.known["v"][past].reshape(shape)))
        tokens = [self.histories[sequence][position] for sequence, position in rows]
        return formulas.attention(self.known["q"][tokens], history, attend)

    def _pair_of(self, pair, half):
        is_halves = self.case.rope.pairs is RopePairs.HALVES
        return (pair, pair + half) if is_halves else (2 * pair, 2 * pair + 1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.evaluation.__exit__()


def check(device, case, *, spare=False, least=0.0):
    """Shift on a device, and compare the next token of both sequences with the formula."""
    with ShiftedAttention(device, case) as attention:
        attention.fill()
        attention.shift(spare)
        actual, expected = attention.last()
        error, limit = nmse(actual, expected), max(case.tolerance, least)
        assert error <= limit, f"NMSE {error:.2e}, at most {limit:.0e}"
