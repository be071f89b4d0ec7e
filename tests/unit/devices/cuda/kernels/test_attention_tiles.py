"""Attention over the paged cache on tensor cores, against the formula in float64.

Head dimensions of 64 and 128 use wgmma where there is a device, mma.sync on the emulator.
"""

from dataclasses import replace

import numpy as np
import pytest

import emulation
from corral.devices.binding import float_word
from corral.devices.cuda import prefill_launch
from corral.devices.cuda.prefill_launch import Chip, Heads, Mixed
from corral.devices.reference.storage import decode, encode
from corral.quant.types import DType
from emulation import Memory, address, emulate_kernel, needs_emulator, prepare_missing
from factors import from_bf16, from_tiles
from golden import nmse

pytestmark = needs_emulator

IS_DEVICE = getattr(emulation, "IS_DEVICE", False)
TOKENS = 32
TABLE_BLOCKS = 20
DIM = 64 if IS_DEVICE else 32
STORED = (DType.F16, DType.BF16, DType.F32, DType.Q8_0)
HEAD_DIMS = (32, 64, 80, 96, 128, 256)
GROUPS = (1, 3, 5, 8)


@pytest.fixture(scope="module", autouse=True)
def instances():
    """Compile what the tests below share, at once."""
    shapes = [Heads(4, 2, dim, stored) for stored in STORED for dim in (32, 64)]
    shapes += [Heads(4, 1, 32, stored) for stored in STORED]
    shapes += [Heads(2, 1, dim, DType.F16) for dim in HEAD_DIMS]
    shapes += [Heads(group, 1, 32, DType.F16) for group in GROUPS]
    shapes += [replace(shapes[0], is_windowed=True), replace(shapes[0], is_capped=True)]
    kernels = [prefill_launch.mma_attention(heads, 1, to=Mixed.FLOATS) for heads in shapes]
    factors = (Mixed.TILES, Mixed.ROWS)
    kernels += [
        prefill_launch.mma_attention(Heads(3, 1, 32, DType.F16), 1, to=to) for to in factors
    ]
    prepare_missing(kernel.instance for kernel in kernels)


class Cache:
    """Sequences of some lengths, their keys and values random, in mixed blocks; the rest is NaN."""

    def __init__(self, heads, lengths, seed=0):
        generator = np.random.default_rng(seed)
        self.heads, self.lengths = heads, lengths
        kv, dim = heads.kv_heads, heads.head_dim
        blocks = len(lengths) * TABLE_BLOCKS
        raw = np.full((blocks, 2, kv, TOKENS, dim), np.nan, np.float32)
        # Entries that no sequence has reached point outside of everything.
        self.tables = np.full((len(lengths), TABLE_BLOCKS), 1 << 28, np.int32)
        free = list(generator.permutation(blocks))
        self.history = [generator.normal(size=(2, n, kv, dim)) for n in lengths]
        for sequence, length in enumerate(lengths):
            for position in range(length):
                if position % TOKENS == 0:
                    self.tables[sequence, position // TOKENS] = free.pop()
                block = self.tables[sequence, position // TOKENS]
                raw[block, :, :, position % TOKENS] = self.history[sequence][:, position]
        missing = np.isnan(raw)
        raw[missing] = 0
        self.state = encode(raw, heads.stored)
        self.history = [
            decode(encode(h.astype(np.float32), heads.stored), heads.stored).astype(np.float64)
            for h in self.history
        ]
        if heads.stored is not DType.Q8_0:
            self.state[missing] = encode(np.float32([np.nan]), heads.stored)[0]

    def expected(self, q, positions, sequences, scale, window, softcap):
        out = np.empty((len(q), self.heads.heads, self.heads.head_dim))
        for row, (position, sequence) in enumerate(zip(positions, sequences, strict=True)):
            first = max(0, position - window + 1) if window else 0
            keys, values = self.history[sequence][:, first : position + 1]
            for head in range(self.heads.heads):
                at = head // self.heads.group
                query = q[row].reshape(self.heads.heads, -1)[head].astype(np.float64)
                scores = keys[:, at] @ query * scale
                if softcap:
                    scores = softcap * np.tanh(scores / softcap)
                weights = np.exp(scores - scores.max())
                out[row, head] = weights @ values[:, at] / weights.sum()
        return out.reshape(len(q), -1)


def run(cache, q, positions, sequences, *, capacity=None, window=0, softcap=0.0, **more):
    """Return the rows that the kernel writes."""
    to, without_wgmma = more.get("to", Mixed.FLOATS), more.get("without_wgmma", False)
    heads, memory = cache.heads, Memory()
    capacity = capacity or len(q)
    rows = np.full((capacity, q.shape[1]), np.nan, np.float32)
    rows[: len(q)] = q
    wide = -(-q.shape[1] // 64)
    out = memory.empty(rows.shape)
    if to is Mixed.TILES:
        out = memory.empty(128 * wide * 64, np.uint16)
    elif to is Mixed.ROWS:
        out = memory.empty(rows.shape, np.uint16)
    where = [np.full(capacity, -1, np.int32) for _ in range(2)]
    where[0][: len(q)], where[1][: len(q)] = positions, sequences
    arrays = [memory.of(a) for a in (rows, cache.state, np.array([len(q)], np.int64), *where)]
    tables = memory.of(cache.tables)
    q_at, state, count, positions_at, sequences_at = map(address, arrays)
    fields = {
        "q": q_at,
        "state": state,
        "out": address(out),
        "count": count,
        "positions": positions_at,
        "sequences": sequences_at,
        "tables": address(tables),
        "q_stride": rows.strides[0],
        "out_stride": wide if to is Mixed.TILES else out.strides[0],
        "tables_stride": tables.strides[0],
        "kv_heads": heads.kv_heads,
        "scale": float_word(heads.head_dim**-0.5),
        "window": window,
        "softcap": float_word(softcap),
    }
    chip = Chip(132, has_wgmma=IS_DEVICE and not without_wgmma)
    kernel = prefill_launch.attention(heads, capacity, chip, to=to)
    words = [fields[name] for name in prefill_launch.ATTENTION_FIELDS]
    emulate_kernel(kernel, words)
    memory.check()
    if to is Mixed.TILES:
        return from_bf16(from_tiles(out, 64 * wide))[:, : q.shape[1]]
    return from_bf16(out) if to is Mixed.ROWS else out


def check(heads, batch, *, window=0, softcap=0.0, tolerance=1e-5, **more):
    """Compare rows of a batch, (sequence, positions) each, with the formula."""
    sequences = np.concatenate([np.full(len(at), s) for s, at in batch])
    positions = np.concatenate([np.array(at) for _, at in batch])
    lengths = [1 + max(max(at) for s, at in batch if s == i) for i in range(max(sequences) + 1)]
    cache = Cache(heads, lengths)
    q = np.random.default_rng(1).normal(size=(len(positions), heads.heads * heads.head_dim))
    q = (2 * q).astype(np.float32)
    actual = run(cache, q, positions, sequences, window=window, softcap=softcap, **more)
    scale = heads.head_dim**-0.5
    expected = cache.expected(q, positions, sequences, scale, window, softcap)
    assert nmse(actual[: len(q)], expected) <= tolerance
    assert np.isnan(actual[len(q) :]).all()


ONE = ((0, range(70)),)
MIXED = ((1, range(30, 50)), (0, range(90, 91)), (2, range(40)), (1, range(50, 52)))


@pytest.mark.parametrize("without_wgmma", [False, True] if IS_DEVICE else [True])
@pytest.mark.parametrize("stored", STORED)
def test_each_way_the_cache_is_stored(stored, without_wgmma):
    for dim in (64, 128) if IS_DEVICE else (64,):
        check(Heads(4, 2, dim, stored), ONE, without_wgmma=without_wgmma)


@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_each_head_dim(dim):
    check(Heads(2, 1, dim, DType.F16), ONE)


@pytest.mark.parametrize("group", GROUPS)
def test_each_group(group):
    check(Heads(2 * group, 2, DIM, DType.F16), ONE)


@pytest.mark.parametrize("stored", [DType.F16, DType.Q8_0])
def test_rows_of_several_sequences_in_one_tile(stored):
    check(Heads(4, 2, DIM, stored), MIXED, capacity=100)


@pytest.mark.parametrize("stored", STORED)
def test_many_tiles_of_keys(stored):
    for dim in (64, 128) if IS_DEVICE else (32,):
        check(Heads(4, 2, dim, stored), ((0, range(590, 600)), (1, range(250, 260))))
        check(Heads(4, 1, dim, stored), ((0, range(608, 640)),))


@pytest.mark.parametrize("window", [1, 9, 32, 64, 100])
def test_windows(window):
    heads = Heads(4, 2, DIM, DType.F16, is_windowed=True)
    check(heads, MIXED, window=window)
    check(heads, ((0, range(100, 140)),), window=window)


def test_softcap():
    check(Heads(4, 2, DIM, DType.F16, is_capped=True), ONE, softcap=1.5)


def test_the_result_can_be_the_factor_of_the_next_product():
    for to in (Mixed.TILES, Mixed.ROWS):
        check(Heads(6, 2, DIM, DType.F16), ONE, to=to, capacity=80)


def test_rows_do_not_depend_on_their_neighbours():
    heads = Heads(4, 2, DIM, DType.F16)
    cache = Cache(heads, [120, 120])
    q = np.random.default_rng(1).normal(size=(50, 4 * DIM)).astype(np.float32)
    positions = np.arange(50) + 70
    alone = run(cache, q[30:31], positions[30:31], [0])
    together = run(cache, q, positions, [0] * 40 + [1] * 10)
    np.testing.assert_array_equal(alone[0], together[30])


def test_blocks_that_a_window_has_left_are_not_looked_at():
    heads = Heads(2, 1, DIM, DType.F16, is_windowed=True)
    cache = Cache(heads, [150])
    q = np.random.default_rng(1).normal(size=(20, 2 * DIM)).astype(np.float32)
    positions = np.arange(130, 150)
    expected = cache.expected(q, positions, [0] * 20, DIM**-0.5, 40, 0)
    cache.tables[0, :2] = 1 << 28
    assert nmse(run(cache, q, positions, [0] * 20, window=40), expected) <= 1e-5
