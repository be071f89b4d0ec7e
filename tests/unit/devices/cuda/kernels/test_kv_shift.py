"""Keys of blocks turned to other positions, against the reference's NumPy."""

import numpy as np
import pytest

import formulas
from corral.devices.reference.storage import decode, encode
from corral.quant.types import DType
from corral.tensor.ops import Op, Rope, RopePairs
from corral.tensor.tensor import Extent, Tensor
from emulation import needs_emulator, prepare_missing
from emulation.device import EmulatedDevice
from emulation.nodes import compute, expected, instances_of, leaf, rows_of
from golden import nmse
from shift_cases import CASES, check

pytestmark = needs_emulator

BLOCKS = 7
MOVES = ((6, 6), (1, 3), (4, 4), (2, 0))
"""The last is past the batch."""
TOLERANCES = {DType.F32: 1e-13, DType.F16: 1e-8, DType.BF16: 1e-6, DType.Q8_0: 1e-6}
"""An element may fall to the other side of a tie."""
WHOLE = [case for case in CASES if case.name in ("factors", "q8_0")]
SHAPES = (
    (3, 64, 64, RopePairs.HALVES),
    (1, 128, 128, RopePairs.NEIGHBOURS),
    (2, 96, 48, RopePairs.HALVES),
    (2, 80, 20, RopePairs.NEIGHBOURS),
    (2, 16, 16, RopePairs.HALVES),
)


def node_of(dtype, heads, dim, turned, pairs):
    state = leaf("kv", (BLOCKS, 2, heads, 32, dim), op=Op.STATE, dtype=dtype, extent=Extent.FIXED)
    rows = len(MOVES)
    blocks = (leaf(name, (rows,), dtype=DType.I32) for name in ("from_blocks", "to_blocks"))
    sources = (state, rows_of("rotations", rows, turned), *blocks)
    return Tensor("shift", Op.KV_SHIFT, dtype, state.shape, sources, Rope(dim, pairs))


def values_of(node):
    state, rotations, from_blocks, to_blocks = node.sources
    normal = np.random.default_rng(1).normal(size=state.shape).astype(np.float32)
    frequencies = 10000.0 ** (-np.arange(rotations.columns // 2) * 2.0 / rotations.columns)
    turns = formulas.rotations((-64, -1024, 96, -32), frequencies)
    return {
        state: encode(normal, node.dtype),
        rotations: turns.astype(np.float32),
        from_blocks: np.array([source for source, _ in MOVES], np.int32),
        to_blocks: np.array([target for _, target in MOVES], np.int32),
    }


def pairs():
    return [
        pytest.param(dtype, *shape, id=f"{dtype.name}-{shape[1]}-{shape[2]}-{shape[3].name}")
        for dtype in TOLERANCES
        for shape in SHAPES
        if shape[1] % dtype.block_elements == 0
    ]


@pytest.fixture(scope="module", autouse=True)
def instances():
    """Compile what the tests below share, at once."""
    prepare_missing([one for pair in pairs() for one in instances_of(node_of(*pair.values))])


@pytest.mark.parametrize(("dtype", "heads", "dim", "turned", "pairing"), pairs())
def test_blocks_turn(dtype, heads, dim, turned, pairing):
    """In place and to other blocks, with their values; what is not named stays as it was."""
    node = node_of(dtype, heads, dim, turned, pairing)
    values = values_of(node)
    rows = len(MOVES) - 1
    actual, wanted = compute(node, values, rows=rows), expected(node, values, rows=rows)
    assert np.array_equal(actual[:, 1], wanted[:, 1])
    others = [block for block in range(BLOCKS) if block not in (6, 3, 4)]
    assert np.array_equal(actual[others], wanted[others])
    keys = [decode(np.ascontiguousarray(one[:, 0]), dtype) for one in (actual, wanted)]
    assert nmse(*keys) <= TOLERANCES[dtype]


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name in ("factors", "q8_0")], ids=repr
)
def test_a_whole_program(case):
    """Planned, lowered and launched as on a card: the next token sees what is left."""
    with EmulatedDevice() as device:
        check(device, case, spare=True, least=1e-6)
