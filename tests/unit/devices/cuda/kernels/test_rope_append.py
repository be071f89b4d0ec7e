"""Heads turned, normed before or not, and appended, against the reference's separate nodes."""

from dataclasses import dataclass

import numpy as np
import pytest

from corral.devices.reference.storage import decode, encode
from corral.quant.types import DType
from corral.tensor.ops import Norm, Op, Rope, RopePairs
from corral.tensor.steps import Step
from corral.tensor.tensor import Extent, Tensor
from emulation import needs_emulator, prepare_missing
from emulation.nodes import (
    compute_step,
    expected_step,
    instances_of_step,
    leaf,
    rows_of,
    view,
    weight,
)
from golden import nmse

pytestmark = needs_emulator

SEQUENCES, BLOCKS = 3, 4
POOL = SEQUENCES * BLOCKS
POSITIONS = (0, 31, 32, 77, 127, 5)
ROWS = 5
TOLERANCES = {DType.F32: 1e-12, DType.F16: 1e-9, DType.BF16: 1e-6, DType.Q8_0: 1e-5}
"""A value that lies between two of the cache may fall to either."""
HALVES, NEIGHBOURS = RopePairs.HALVES, RopePairs.NEIGHBOURS


@dataclass(frozen=True)
class Shape:
    """Heads, how they turn and what they become."""

    heads: int
    kv_heads: int
    head_dim: int
    turned: int
    pairs: RopePairs
    dtype: DType
    norms: str = ""
    """Which of q and k are normed."""

    def __repr__(self):
        heads = f"{self.heads}x{self.head_dim}/{self.kv_heads}"
        return f"{heads}-{self.turned}-{self.pairs.name}-{self.dtype.name}-{self.norms}"


SHAPES = (
    Shape(9, 3, 64, 64, NEIGHBOURS, DType.F16),
    Shape(32, 8, 128, 128, NEIGHBOURS, DType.F16),
    Shape(4, 2, 128, 128, HALVES, DType.F16, "qk"),
    Shape(4, 1, 256, 256, HALVES, DType.BF16, "qk"),
    Shape(5, 5, 80, 32, HALVES, DType.F16),
    Shape(5, 5, 80, 80, NEIGHBOURS, DType.F32, "qk"),
    Shape(8, 2, 96, 96, HALVES, DType.Q8_0),
    Shape(8, 2, 96, 64, NEIGHBOURS, DType.Q8_0, "q"),
    Shape(3, 1, 128, 64, HALVES, DType.Q8_0, "k"),
    Shape(7, 7, 64, 64, HALVES, DType.BF16),
    Shape(1, 1, 16, 16, NEIGHBOURS, DType.F32),
    Shape(2, 1, 32, 2, HALVES, DType.F32, "k"),
)


def norm(name, x, shape):
    w = weight(f"{name}_norm", (shape.head_dim,))
    attributes = Norm(1e-5 if name == "q" else 1e-3, shape.head_dim)
    return Tensor(name, Op.RMS_NORM, DType.F32, x.shape, (x, w), attributes, Extent.ROWS)


class Case:
    """A step on a cache with random history."""

    def __init__(self, shape, *, positions=POSITIONS, seed=0, first=None):
        """Make q, k and v rows of their own, or columns from `first` on of rows with all three."""
        self.shape, rows = shape, len(positions)
        widths = [n * shape.head_dim for n in (shape.heads, shape.kv_heads, shape.kv_heads)]
        if first is None:
            sources = [rows_of(n, rows, w) for n, w in zip("qkv", widths, strict=True)]
            leaves = sources
        else:
            whole = rows_of("qkv", rows, first + sum(widths))
            starts = (first, first + widths[0], first + widths[0] + widths[1])
            sources = [view(whole, s, w) for s, w in zip(starts, widths, strict=True)]
            leaves = [whole]
        self.turns = rows_of("turns", rows, shape.turned)
        cache = (POOL, 2, shape.kv_heads, 32, shape.head_dim)
        self.state = leaf("kv", cache, op=Op.STATE, dtype=shape.dtype, extent=Extent.FIXED)
        self.step, self.q = self._step(*sources, rows)
        random = np.random.default_rng(seed)
        floats = [*leaves, self.turns, *(t for n in self.step.nodes for t in n.sources[1:2])]
        self.values = {t: random.normal(size=t.shape).astype(np.float32) for t in floats}
        self.values |= {
            self.state: encode(random.normal(size=cache).astype(np.float32), shape.dtype),
            self.positions: np.array(positions, np.int32),
            self.sequences: np.arange(rows, dtype=np.int32) * 2 % SEQUENCES,
            self.tables: np.random.default_rng(1).permutation(POOL).astype(np.int32).reshape(3, 4),
        }

    def _step(self, q, k, v, rows):
        shape = self.shape
        self.positions = leaf("positions", (rows,), dtype=DType.I32)
        self.sequences = leaf("sequences", (rows,), dtype=DType.I32)
        tables = (SEQUENCES, BLOCKS)
        self.tables = leaf("tables", tables, dtype=DType.I32, extent=Extent.FIXED)
        nodes, turned = [], []
        for name, x in (("q", q), ("k", k)):
            if name in shape.norms:
                x = norm(name, x, shape)
                nodes.append(x)
            rope = Rope(shape.head_dim, shape.pairs)
            sources = (x, self.turns)
            node = Tensor(f"{name}_rope", Op.ROPE, DType.F32, x.shape, sources, rope, Extent.ROWS)
            nodes.append(node)
            turned.append(node)
        where = (self.positions, self.sequences, self.tables)
        sources = (turned[1], v, self.state, *where)
        append = Tensor("append", Op.KV_APPEND, shape.dtype, self.state.shape, sources)
        return Step((*nodes, append)), turned[0]

    def run(self, rows=ROWS):
        """Return the turned q and the state after one launch."""
        place, launches = compute_step(self.step, self.values, rows=rows)
        assert [launch.instance.stem for launch in launches] == ["rope_append"]
        inner = {node for node in self.step.nodes if node is not self.q}
        assert not inner & set(place.arrays), "only q and the state are there afterwards"
        return place.array(self.q), place.array(self.state)

    def check(self):
        """Compare all rows but the last, which is past the batch."""
        q, state = self.run()
        wanted = expected_step(self.step, self.values, rows=ROWS)
        assert nmse(q[:ROWS], wanted[self.q]) <= 1e-12
        assert np.isnan(q[ROWS:]).all()
        tokens = self.written()
        wanted_state, dtype = wanted[self.step.nodes[-1]], self.shape.dtype
        key, wanted_key = (decode(s[:, 0], dtype).swapaxes(1, 2) for s in (state, wanted_state))
        assert nmse(key[tokens], wanted_key[tokens]) <= TOLERANCES[dtype]
        assert np.array_equal(state[:, 1], wanted_state[:, 1]), "values are taken as they are"
        before = self.values[self.state][:, 0].swapaxes(1, 2)
        assert np.array_equal(state[:, 0].swapaxes(1, 2)[~tokens], before[~tokens])

    def written(self):
        """Return which tokens of which blocks are of this batch."""
        written = np.zeros((POOL, 32), bool)
        for row in range(ROWS):
            position = self.values[self.positions][row]
            table = self.values[self.tables][self.values[self.sequences][row]]
            written[table[position // 32], position % 32] = True
        return written


@pytest.fixture(scope="module", autouse=True)
def instances():
    """Compile what the tests below share, at once."""
    prepare_missing(i for shape in SHAPES for i in instances_of_step(Case(shape).step))


@pytest.mark.parametrize("shape", SHAPES, ids=repr)
def test_one_launch_for_all(shape):
    """q is turned, k too and in the cache, v is in the cache; nothing else changes."""
    case = Case(shape)
    for tensor in (case.step.nodes[-1].sources[1], case.turns):  # groups of zeros have no scale
        case.values[tensor][1, : shape.head_dim] = 0
    case.check()


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[2]], ids=repr)
def test_columns_of_wider_rows(shape, first):
    """q, k and v may lie side by side, aligned or not."""
    Case(shape, first=first).check()


@pytest.mark.parametrize("shape", [SHAPES[2], SHAPES[6]], ids=repr)
def test_neighbours_do_not_matter(shape):
    """A row gets the same bits whatever the other rows are, and however many."""
    one, other = Case(shape), Case(shape, positions=(7, 8, POSITIONS[2], 9, 60, 1))
    for tensor, values in other.values.items():
        if tensor.extent is Extent.ROWS and tensor.dtype is DType.F32:
            values[[0, 1, 3, 4, 5]] += 1
    (q, state), (other_q, other_state) = one.run(3), other.run()
    assert np.array_equal(q[2], other_q[2])
    block = one.values[one.tables][one.values[one.sequences][2], POSITIONS[2] // 32]
    assert np.array_equal(state[block, :, :, 0], other_state[block, :, :, 0])


def test_rows_past_the_batch_are_not_looked_at():
    """Their positions may be anything."""
    case = Case(SHAPES[0])
    case.values[case.positions][ROWS:] = case.values[case.sequences][ROWS:] = -1
    case.check()
    before = case.values[case.state]
    q, state = case.run(0)
    assert np.isnan(q).all()
    assert np.array_equal(state, before)


def test_large_heads_are_turned_one_by_one():
    """A warp has no registers for them."""
    case = Case(Shape(1, 1, 512, 512, HALVES, DType.F32))
    place, launches = compute_step(case.step, case.values, rows=ROWS)
    assert [launch.instance.stem for launch in launches] == ["rope", "rope", "kv_append"]
    wanted = expected_step(case.step, case.values, rows=ROWS)
    assert nmse(place.array(case.q)[:ROWS], wanted[case.q]) <= 1e-12
