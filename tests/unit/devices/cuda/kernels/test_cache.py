"""Appending to the cache and attending to it, on odd shapes, against the reference's NumPy."""

from dataclasses import replace

import numpy as np
import pytest

from corral.devices.cuda.attention_rules import attention_splits, partial_bytes
from corral.devices.reference.storage import encode
from corral.quant.types import DType
from corral.tensor.ops import Attend, Op
from corral.tensor.steps import Step
from corral.tensor.tensor import Extent, Tensor
from emulation import needs_emulator, prepare_missing
from emulation.nodes import compute, compute_step, expected, instances_of, leaf, rows_of
from golden import nmse

pytestmark = needs_emulator

SEQUENCES, BLOCKS = 3, 8
POOL = SEQUENCES * BLOCKS
CAPACITY = 5
POSITIONS = (0, 31, 32, 200, 255)
TOLERANCES = {DType.F32: 1e-11, DType.F16: 1e-6, DType.BF16: 1e-4, DType.Q8_0: 1e-6}
"""Keys and values are rounded before; F16 and BF16 round queries and weights as well."""


class Case:
    """A cache with random history, and rows that attend to it."""

    def __init__(self, attend, dtype, *, positions=POSITIONS, seed=0):
        random = np.random.default_rng(seed)
        shape = (POOL, 2, attend.kv_heads, 32, attend.head_dim)
        rows = len(positions)
        self.attend, self.rows = attend, rows
        self.state = leaf("kv", shape, op=Op.STATE, dtype=dtype, extent=Extent.FIXED)
        self.positions = leaf("positions", (rows,), dtype=DType.I32)
        self.sequences = leaf("sequences", (rows,), dtype=DType.I32)
        tables = (SEQUENCES, BLOCKS)
        self.tables = leaf("tables", tables, dtype=DType.I32, extent=Extent.FIXED)
        width = attend.kv_heads * attend.head_dim
        self.k, self.v = rows_of("k", rows, width), rows_of("v", rows, width)
        self.q = rows_of("q", rows, attend.heads * attend.head_dim)
        where = (self.positions, self.sequences, self.tables)
        sources = (self.k, self.v, self.state, *where)
        self.append = Tensor("append", Op.KV_APPEND, dtype, shape, sources)
        result = (rows, attend.heads * attend.head_dim)
        inputs = (self.q, self.append, *where)
        self.node = Tensor("y", Op.ATTENTION, DType.F32, result, inputs, attend, Extent.ROWS)

        def normal(*size):
            return random.normal(size=size).astype(np.float32)

        self.values = {
            self.state: encode(normal(*shape), dtype),
            self.positions: np.array(positions, np.int32),
            self.sequences: np.arange(rows, dtype=np.int32) * 2 % SEQUENCES,
            self.tables: random.permutation(POOL).astype(np.int32).reshape(tables),
            self.k: normal(*self.k.shape),
            self.v: normal(*self.v.shape),
            self.q: normal(*self.q.shape),
        }

    def check(self, splits=1):
        """Compare all rows but the last, which is past the batch."""
        rows = self.rows - 1
        scratch = splits * partial_bytes(self.attend, self.rows) if splits > 1 else 0
        actual = compute(self.node, self.values, rows=rows, segments_bytes=scratch)
        wanted = expected(self.node, self.values, rows=rows)
        assert nmse(actual[:rows], wanted) <= TOLERANCES[self.state.dtype]
        assert np.isnan(actual[rows:]).all()


def attend(heads, kv_heads, head_dim, **more):
    return Attend(heads, kv_heads, head_dim, head_dim**-0.5, **more)


SHAPES = (
    attend(9, 3, 64),
    attend(5, 5, 80),
    attend(8, 2, 96),
    attend(8, 1, 128),
    attend(7, 1, 64),
    attend(12, 1, 32),
    attend(4, 2, 256),
    attend(2, 1, 16),
)
PLAIN = attend(4, 2, 32)
WINDOWED = attend(4, 2, 64, window=40)
BENT = replace(WINDOWED, softcap=3.0)
ODD = attend(4, 2, 80)


def describe(shape):
    return f"{shape.heads}x{shape.head_dim}/{shape.kv_heads}"


def pairs():
    """Return every shape with every type whose blocks fit it."""
    return [
        pytest.param(shape, dtype, id=f"{describe(shape)}-{dtype.name}")
        for dtype in TOLERANCES
        for shape in SHAPES
        if shape.head_dim % dtype.block_elements == 0
    ]


@pytest.fixture(scope="module", autouse=True)
def instances():
    """Compile what the tests below share, at once."""
    shapes = [pair.values for pair in pairs()]
    shapes += [(PLAIN, dtype) for dtype in TOLERANCES]
    shapes += [(shape, dtype) for shape in (BENT, WINDOWED) for dtype in (DType.F32, DType.F16)]
    shapes.append((ODD, DType.F16))
    wanted = []
    for shape, dtype in shapes:
        case = Case(shape, dtype)
        wanted += instances_of(case.node) + instances_of(case.append)
    prepare_missing(wanted)


@pytest.mark.parametrize(("shape", "dtype"), pairs())
def test_attention(shape, dtype):
    """Whole, and cut in parts that are folded afterwards."""
    case = Case(shape, dtype)
    case.check()
    case.check(splits=3)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("window", [1, 9, 32, 100, 1000])
def test_windows_and_caps(dtype, window):
    """A row sees its window only, and scores are bent inside the cap."""
    shape = replace(BENT, window=window)
    for splits in (1, 4):
        Case(shape, dtype).check(splits)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("splits", [1, 4])
def test_neighbours_do_not_matter(dtype, splits):
    """A row gets the same bits whatever the other rows are."""
    one, other = Case(PLAIN, dtype), Case(PLAIN, dtype, positions=(7, 255, 32, 9, 60))
    scratch = splits * partial_bytes(PLAIN, CAPACITY)
    for case in (one, other):
        case.values[case.sequences][2] = 1
        for name in ("state", "tables", "q"):
            case.values[getattr(case, name)] = one.values[getattr(one, name)]
    first = compute(one.node, one.values, rows=3, segments_bytes=scratch)
    second = compute(other.node, other.values, rows=5, segments_bytes=scratch)
    assert np.array_equal(first[2], second[2])


def test_what_lies_past_a_row_is_not_read():
    """NaN in tokens that a row does not see never reaches its sum."""
    for dtype in (DType.F32, DType.F16):
        case = Case(WINDOWED, dtype, positions=(50, 50))
        state, table = case.values[case.state], case.values[case.tables][0]
        block = state[table[1]].copy()
        state[...] = np.nan
        state[table[1]] = block
        state[table[1], :, :, 19:] = np.nan
        state[table[0], :, :, 11:] = 0.5
        case.check()


@pytest.mark.parametrize(("shape", "dtype"), pairs())
def test_append_bit_by_bit(shape, dtype):
    """Each row's key and value stand where its position is, and nothing else changes."""
    case = Case(shape, dtype)
    case.values[case.k][1, : shape.head_dim] = 0
    actual = compute(case.append, case.values, rows=4)
    assert np.array_equal(actual, expected(case.append, case.values, rows=4))


def coded(case, dtype):
    """Return the step of attention and codes of its result."""
    codes = Tensor("codes", Op.QUANTIZE, dtype, case.node.shape, (case.node,), None, Extent.ROWS)
    return Step((case.node, codes))


CODED = [
    (SHAPES[0], DType.F16, DType.A8),
    (SHAPES[2], DType.Q8_0, DType.A16),
    (SHAPES[3], DType.BF16, DType.A8),
    (SHAPES[5], DType.F32, DType.A16),
    (SHAPES[6], DType.F32, DType.A8),
    (SHAPES[6], DType.F16, DType.A16),
]


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(
    ("shape", "dtype", "codes"), CODED, ids=lambda value: getattr(value, "name", None)
)
def test_codes_of_attention_bit_by_bit(shape, dtype, codes, splits):
    """The codes are those of the result; nobody needs the result itself, so it is not there."""
    case = Case(shape, dtype)
    rows, scratch = case.rows - 1, splits * partial_bytes(shape, case.rows) if splits > 1 else 0
    step = coded(case, codes)
    place, launches = compute_step(step, case.values, rows=rows, segments_bytes=scratch)
    assert len(launches) == 1
    assert case.node not in place.arrays
    mixed = compute(case.node, case.values, rows=rows, segments_bytes=scratch)
    wanted = expected(step.nodes[1], {case.node: mixed}, rows=rows)
    actual = place.array(step.nodes[1])
    assert np.array_equal(actual[:rows], wanted)
    assert (actual[rows:] == 0xFF).all()


@pytest.mark.parametrize("shape", [SHAPES[7], ODD], ids=describe)
def test_codes_of_heads_that_groups_do_not_divide(shape):
    """A group of 32 columns lies in two heads: codes are made by themselves."""
    case = Case(shape, DType.F16)
    step = coded(case, DType.A8)
    place, launches = compute_step(step, case.values, rows=3)
    assert [launch.instance.stem for launch in launches] == ["attention_mma", "elementwise"]
    wanted = expected(step.nodes[1], {case.node: place.array(case.node)}, rows=3)
    assert np.array_equal(place.array(step.nodes[1])[:3], wanted)


def test_splits():
    """Few rows are cut until the card is busy, the blocks are shared out or scratch is full."""
    llama = attend(32, 8, 128)
    plenty = 1 << 40
    assert attention_splits(llama, 1, 256, plenty) == 33
    assert attention_splits(llama, 1, 256, plenty, wanted_blocks=132) == 16
    assert attention_splits(llama, 1, 20, plenty) == 5
    assert attention_splits(llama, 8, 256, plenty) == 4
    assert attention_splits(llama, 512, 256, plenty) == 1
    assert attention_splits(llama, 1, 256, 0) == 1
    assert attention_splits(llama, 1, 256, 5 * partial_bytes(llama, 1)) == 5
    assert attention_splits(replace(llama, window=128), 1, 256, plenty) == 2
