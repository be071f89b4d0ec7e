"""Keys, values and queries put through a cache batch by batch, against the formula over history.

Queries, keys and values are rows of three tables, chosen by token, so that what each position
holds is known without asking the device.
"""

from collections import defaultdict
from dataclasses import dataclass, replace

import formulas
from corral.quant.types import DType
from corral.tensor.build import GraphBuilder
from corral.tensor.graph import ShapeClass
from corral.tensor.ops import Attend
from evaluation import Evaluation, decoded, random_weights
from golden import nmse

SHAPE = ShapeClass(rows=40, outputs=1, sequences=3, blocks=4)
TABLE_ROWS = 50
BLOCKS = SHAPE.sequences * SHAPE.blocks


@dataclass(frozen=True)
class Case:
    """A kind of attention, and how exact it can be given what the cache rounds to."""

    name: str
    attend: Attend
    kv_dtype: DType = DType.F32
    tolerance: float = 1e-12

    def __repr__(self):
        return self.name


_PLAIN = Attend(heads=4, kv_heads=2, head_dim=32, scale=0.7)
CASES = (
    Case("plain", _PLAIN),
    Case("one-kv-head", replace(_PLAIN, kv_heads=1)),
    Case("all-kv-heads", replace(_PLAIN, kv_heads=4)),
    Case("softcap", replace(_PLAIN, scale=3.0, softcap=2.0)),
    Case("window", replace(_PLAIN, window=9)),
    Case("window-of-a-block", replace(_PLAIN, window=32)),
    Case("window-of-one", replace(_PLAIN, window=1)),
    Case("small-heads", Attend(6, 2, 16, 0.25)),
    Case("f16", _PLAIN, DType.F16, 1e-6),
    Case("bf16", _PLAIN, DType.BF16, 1e-4),
    Case("q8_0", _PLAIN, DType.Q8_0, 1e-4),
)

WIDE_HEADS = tuple(
    Case(f"{dim}-{kv_dtype.name}", Attend(9, 3, dim, dim**-0.5), kv_dtype, tolerance)
    for dim in (64, 80, 96, 128, 256)
    for kv_dtype, tolerance in ((DType.F16, 1e-5), (DType.BF16, 1e-4), (DType.Q8_0, 1e-4))
    if dim % kv_dtype.block_elements == 0
)
"""Nine heads of the sizes that models have."""

# (sequence, how many tokens) in each batch: prefill, a second one across a block border, mixed
# decode and prefill, one row alone.
BATCHES = (
    ((0, 20), (1, 3)),
    ((0, 25), (1, 1)),
    ((2, 33), (0, 1), (1, 6)),
    ((1, 30), (2, 1), (0, 2)),
    ((0, 1),),
)


class CachedAttention:
    """One attention node on a device, and the history of each sequence."""

    def __init__(self, device, case):
        self.case = case
        self.graph = _graph(case)
        weights = random_weights(self.graph)
        self.tables = {name: 4 * w for name, w in decoded(self.graph, weights).items()}
        self.evaluation = Evaluation(device, self.graph, weights)
        self.histories = defaultdict(list)

    def run(self, batch, tables=None):
        """Return (actual, expected) of a batch."""
        tokens, positions, sequences, seen = [], [], [], []
        for sequence, length in batch:
            history = self.histories[sequence]
            for _ in range(length):
                token = (13 * len(history) + 5 * sequence) % TABLE_ROWS
                positions.append(len(history))
                history.append(token)
                tokens.append(token)
                sequences.append(sequence)
                seen.append(list(history))
        (actual,) = self.evaluation.run(
            tokens=tokens,
            positions=positions,
            sequences=sequences,
            tables=tables or block_tables(),
        )
        return actual, self._expected(tokens, seen)

    def _expected(self, tokens, seen):
        attend = self.case.attend
        shape = (-1, attend.kv_heads, attend.head_dim)
        cached = [
            (self.tables["k"][past].reshape(shape), self.tables["v"][past].reshape(shape))
            for past in seen
        ]
        return formulas.attention(self.tables["q"][tokens], cached, attend)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.evaluation.__exit__()


def block_tables():
    """Return tables whose blocks are mixed among the sequences."""
    return [[(5 * (SHAPE.blocks * s + b) + 2) % BLOCKS for b in range(4)] for s in range(3)]


def _graph(case):
    g, attend = GraphBuilder(SHAPE), case.attend

    def rows(name, heads):
        width = heads * attend.head_dim
        x = g.embed(g.tokens, g.weight(name, DType.F32, (TABLE_ROWS, width)), scale=4.0)
        return replace(x, name=name + "_rows")

    q, k, v = rows("q", attend.heads), rows("k", attend.kv_heads), rows("v", attend.kv_heads)
    shape = (BLOCKS, 2, attend.kv_heads, 32, attend.head_dim)
    state = g.state("kv", case.kv_dtype, shape)
    appended = g.kv_append("append", k, v, state, g.tables("tables"))
    mixed = g.attention("mixed", q, appended, attend)
    return type(g.finish(mixed))((q, k, v, appended, mixed), (mixed,), SHAPE)


def check(device, case, *, least=0.0):
    """Put a device through all batches of a case; `least` is an error that is never too large."""
    with CachedAttention(device, case) as attention:
        for batch in BATCHES:
            actual, expected = attention.run(batch)
            error, limit = nmse(actual, expected), max(case.tolerance, least)
            assert error <= limit, f"NMSE {error:.2e}, at most {limit:.0e}"
