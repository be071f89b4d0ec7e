"""Keys turn as float64 says, in place or on their way to another block; the rest stays."""

import numpy as np
import pytest

from corral.devices.cpu.compile import KernelSpec
from corral.devices.cpu.kernels.kv_shift import FIELDS, kv_shift
from corral.quant.types import DType
from unit.devices.cpu.kernel_call import HOST, TARGETS, call, count
from unit.devices.cpu.kv_cache import Cache, rounded
from unit.devices.cpu.test_rope import exact_turn, rotated

STEPS = {DType.F32: 1e-6, DType.F16: 2**-11, DType.BF16: 2**-8, DType.Q8_0: 1 / 254 + 2**-11}
"""What rounding an element may add: relative to it, of Q8_0 to the greatest of its group, by its
code and by the scale."""
TYPES = pytest.mark.parametrize("dtype", STEPS, ids=lambda t: t.name)
BLOCKS, DISTANCES = 6, (-64, -1024, 96)
MOVES = np.array([(4, 4), (0, 3), (2, 2)], np.int32)


def filled(dtype, heads, dim):
    """Return a cache whose every token is known, and what it keeps: (blocks, K|V, 32, heads, dim).

    Some tokens are zero.
    """
    random = np.random.default_rng(dim)
    values = random.standard_normal((BLOCKS, 2, 32, heads, dim)).astype(np.float32)
    values[4, :, 5] = 0
    cache = Cache(dtype, BLOCKS, heads, dim)
    for block in range(BLOCKS):
        cache.write(block, 0, *values[block])
    return cache, rounded(values, dtype)


def shift(target, cache, turns, pairs, *, threads=1):
    sources, targets = (np.ascontiguousarray(column) for column in MOVES.T)
    words = {
        "state": cache.state,
        "count": count(len(MOVES)),
        "rotations": turns,
        "from_blocks": sources,
        "to_blocks": targets,
        "rotations_stride": turns.strides[0],
        "kv_heads": cache.kv_heads,
    }
    spec = KernelSpec.of(
        kv_shift, head_dim=cache.dim, turned=turns.shape[1], pairs=pairs, dtype=cache.dtype.name
    )
    call(target, spec, FIELDS, words, threads=threads)


def turned_keys(kept, turns, pairs):
    """Return the keys of each move as float64 turns them: (moves, 32, heads, dim)."""
    heads = kept.shape[3]
    return np.stack(
        [
            exact_turn(
                kept[source, 0].reshape(32, -1), np.repeat(turns[n : n + 1], 32, 0), heads, pairs
            ).reshape(kept[source, 0].shape)
            for n, (source, _) in enumerate(MOVES)
        ]
    )


@TARGETS
@TYPES
@pytest.mark.parametrize("pairs", ["HALVES", "NEIGHBOURS"])
@pytest.mark.parametrize(("heads", "dim", "dims"), [(3, 64, 64), (1, 96, 24)])
def test_keys_turn(target, dtype, pairs, heads, dim, dims):
    """Every key is that of the other position up to one rounding; values are copied as they are."""
    cache, kept = filled(dtype, heads, dim)
    before = cache.state.copy()
    frequencies = 10000.0 ** (-np.arange(dims // 2) * 2.0 / dims)
    turns = rotated(target, DISTANCES, frequencies)
    shift(target, cache, turns, pairs)
    for wanted, (source, block) in zip(turned_keys(kept, turns, pairs), MOVES, strict=True):
        actual = cache.read_keys(block)
        scale = np.abs(wanted)
        if dtype is DType.Q8_0:
            groups = np.abs(wanted).reshape(*wanted.shape[:-1], -1, 32).max(-1, keepdims=True)
            scale = np.broadcast_to(groups, (*groups.shape[:-1], 32)).reshape(wanted.shape)
        assert (np.abs(actual - wanted) <= STEPS[dtype] * scale + 1e-6).all()
        assert np.array_equal(cache.state[block, 1], before[source, 1])
    untouched = sorted(set(range(BLOCKS)) - set(MOVES[:, 1].tolist()))
    assert np.array_equal(cache.state[untouched], before[untouched])


@TYPES
def test_threads_change_nothing(dtype):
    """Heads of blocks are shared among threads, and each is the same by itself."""
    turns = rotated(HOST, DISTANCES, 10000.0 ** (-np.arange(32) / 32))
    one, three = (filled(dtype, 3, 64)[0] for _ in range(2))
    shift(HOST, one, turns, "HALVES")
    shift(HOST, three, turns, "HALVES", threads=3)
    assert np.array_equal(one.state, three.state)
