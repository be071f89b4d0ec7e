"""Attention agrees with float64, whatever the batch, the tile, the threads and the garbage."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from corral.devices.cpu.compile import KernelSpec
from corral.devices.cpu.features import runnable
from corral.devices.cpu.kernels.attention import (
    FIELDS,
    attention,
    attention_merge,
    partials_bytes,
)
from corral.quant.types import DType
from unit.devices.cpu.kernel_call import HOST, TARGETS, call, count, poisoned
from unit.devices.cpu.kv_cache import Cache, rounded

BLOCKS = 40
"""Width of the block tables."""


@dataclass(frozen=True)
class Case:
    """Heads, and what is done to scores."""

    heads: int = 9
    kv_heads: int = 3
    dim: int = 64
    dtype: DType = DType.F16
    window: int | None = None
    softcap: float | None = None
    scale: float = 0.125

    @property
    def parameters(self):
        return {
            "head_dim": self.dim,
            "group": self.heads // self.kv_heads,
            "dtype": self.dtype.name,
            "windowed": self.window is not None,
            "capped": self.softcap is not None,
        }


class Sequences:
    """Sequences of given lengths in one cache, whose unused slots hold NaN."""

    def __init__(self, case, lengths):
        random = np.random.default_rng(sum(lengths))
        self.case, shape = case, (case.kv_heads, case.dim)
        blocks = [-(-length // 32) for length in lengths]
        self.cache = Cache(case.dtype, sum(blocks) + 1, *shape)
        ids = random.permutation(sum(blocks)).astype(np.int32) + 1
        self.tables = np.zeros((len(lengths), BLOCKS), np.int32)
        self.keys, self.values = [], []
        for n, length in enumerate(lengths):
            self.tables[n, : blocks[n]] = ids[sum(blocks[:n]) :][: blocks[n]]
            k, v = (random.standard_normal((length, *shape)).astype(np.float32) for _ in "kv")
            k *= 2
            self.write(n, 0, k, v)
            self.keys.append(rounded(k, case.dtype))
            self.values.append(rounded(v, case.dtype))

    def write(self, sequence, first, k, v):
        """Store tokens of a sequence from a position on."""
        for t in range(len(k)):
            position = first + t
            block = self.tables[sequence, position // 32]
            if t == 0 or position % 32 == 0:
                end = t + 32 - position % 32
                self.cache.write(block, position % 32, k[t:end], v[t:end])

    def exact(self, q, sequence, position):
        """Return the attention of one row: (heads, dim) → (heads, dim)."""
        case = self.case
        first = max(0, position + 1 - (case.window or position + 1))
        seen = slice(first, position + 1)
        group = case.heads // case.kv_heads
        keys = np.repeat(self.keys[sequence][seen], group, axis=1).astype(np.float64)
        values = np.repeat(self.values[sequence][seen], group, axis=1).astype(np.float64)
        scores = np.einsum("hd,thd->ht", q.astype(np.float64), keys) * case.scale
        if case.softcap:
            scores = case.softcap * np.tanh(scores / case.softcap)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return np.einsum("ht,thd->hd", weights, values)

    def attend(self, target, q, rows, *, threads=1, partials=0):
        """Run the kernels for rows of (sequence, position)."""
        case = self.case
        out = poisoned(len(rows) + 1, case.heads * case.dim + 3)
        scratch = np.full(max(partials, 64), 0xFF, np.uint8)
        words = {
            "q": q,
            "state": self.cache.state,
            "out": out,
            "count": count(len(rows)),
            "positions": np.array([position for _, position in rows], np.int32),
            "sequences": np.array([sequence for sequence, _ in rows], np.int32),
            "tables": self.tables,
            "q_stride": q.strides[0],
            "out_stride": out.strides[0],
            "tables_stride": self.tables.strides[0],
            "kv_heads": case.kv_heads,
            "scale": np.float32(case.scale),
            "window": case.window or 0,
            "softcap": np.float32(case.softcap or 0),
            "partials": scratch,
            "partials_bytes": partials,
        }
        for emit in (attention, attention_merge):
            call(target, KernelSpec.of(emit, **case.parameters), FIELDS, words, threads=threads)
        assert np.isnan(out[-1]).all() and np.isnan(out[:, case.heads * case.dim :]).all()
        return out[:-1, : case.heads * case.dim]


def queries(case, rows):
    random = np.random.default_rng(rows)
    return random.standard_normal((rows, case.heads * case.dim + 5)).astype(np.float32)


def check(target, case, lengths, rows, *, threads=1, partials=0):
    """Compare a batch with float64 and return it."""
    sequences, q = Sequences(case, lengths), queries(case, len(rows))
    actual = sequences.attend(target, q, rows, threads=threads, partials=partials)
    for n, (sequence, position) in enumerate(rows):
        split = q[n, : case.heads * case.dim].reshape(case.heads, case.dim)
        expected = sequences.exact(split, sequence, position).reshape(-1)
        np.testing.assert_allclose(actual[n], expected, rtol=2e-5, atol=1e-5)
    return actual


@TARGETS
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16", "Q8_0"])
def test_every_type_of_state(target, dtype):
    """A prompt, and one row alone, in each data type."""
    case = Case(dtype=DType[dtype])
    check(target, case, [70], [(0, p) for p in range(70)])
    check(target, case, [70], [(0, 69)])


SHAPES = [(1, 1, 64), (4, 2, 80), (8, 2, 96), (16, 2, 128), (4, 1, 256), (14, 2, 64), (2, 2, 16)]


@pytest.mark.parametrize(
    ("target", "heads", "kv_heads", "dim"),
    [(HOST, *shape) for shape in SHAPES] + [(target, 7, 1, 80) for target in runnable()],
    ids=lambda value: getattr(value, "path", None),
)
def test_every_shape_of_heads(target, heads, kv_heads, dim):
    """Groups from 1 to 8 query heads, all head sizes, tiles that are not full."""
    case = Case(heads, kv_heads, dim, scale=dim**-0.5)
    check(target, case, [45], [(0, p) for p in range(45)])
    check(target, case, [45], [(0, 44)])


@TARGETS
@pytest.mark.parametrize("window", [1, 5, 32, 50])
def test_windows_hide_the_past(target, window):
    """A row sees exactly its window, across blocks and tiles."""
    case = Case(window=window)
    check(target, case, [150], [(0, p) for p in range(40, 150)])
    check(target, case, [150], [(0, 149)])


@TARGETS
def test_soft_caps_bend_scores(target):
    """Scores far beyond the cap are bent to it."""
    case = Case(softcap=5.0, scale=1.0)
    check(target, case, [40], [(0, p) for p in range(40)])


@TARGETS
def test_batches_mix_sequences(target):
    """Rows of several sequences, prompts beside single rows, in one batch."""
    rows = [(1, 99), *((0, p) for p in range(30, 61)), (2, 0), *((3, p) for p in range(5))]
    check(target, Case(), [61, 100, 1, 5], rows)


@TARGETS
@pytest.mark.parametrize(
    "case", [Case(), Case(window=33), Case(4, 4, 80), Case(dtype=DType.Q8_0)], ids=str
)
def test_bits_depend_on_nothing_but_the_row(target, case):
    """A row alone, in chunks, in a batch, and for any threads with or without scratch."""
    sequences, length = Sequences(case, [333, 40]), 333
    rows = [(0, p) for p in range(280, length)] + [(1, 39)]
    q = queries(case, len(rows))
    together = sequences.attend(target, q, rows)
    room = partials_bytes(len(rows), case.heads, case.dim, BLOCKS)
    for threads, partials in ((2, 0), (3, 0), (2, room), (5, room)):
        other = sequences.attend(target, q, rows, threads=threads, partials=partials)
        assert np.array_equal(other, together)
    for start, stop in ((0, 1), (1, 18), (18, 30), (30, 53), (53, 54)):
        chunk = sequences.attend(target, q[start:stop], rows[start:stop])
        assert np.array_equal(chunk, together[start:stop])
    for n in (0, 7, 23, 52, 53):
        alone = sequences.attend(target, q[n:][:1], rows[n : n + 1])
        assert np.array_equal(alone[0], together[n])


def test_tokens_after_a_row_change_nothing():
    """Later tokens of the same block, already written, have no weight at all."""
    case = Case()
    q = queries(case, 1)
    short, long = Sequences(case, [40]), Sequences(case, [64])
    long.write(0, 0, short.keys[0], short.values[0])
    long.write(0, 40, long.keys[0][40:] * 1e3, long.values[0][40:])
    first = short.attend(HOST, q, [(0, 39)])
    assert np.array_equal(long.attend(HOST, q, [(0, 39)]), first)


def test_segments_are_shared_only_where_scratch_is_enough():
    """One byte less than needed: threads share whole rows instead, with the same bits."""
    case = Case()
    sequences, q = Sequences(case, [600]), queries(case, 1)
    room = partials_bytes(1, case.heads, case.dim, BLOCKS)
    results = [
        sequences.attend(HOST, q, [(0, 599)], threads=2, partials=size)
        for size in (0, room - 1, room)
    ]
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])
    check(HOST, replace(case, window=400), [600], [(0, 599)], threads=2, partials=room)


def test_great_scores_do_not_overflow():
    """Scores of thousands give the value of the best token."""
    case = Case(1, 1, 16, DType.F32, scale=1000.0)
    check(HOST, case, [100], [(0, p) for p in range(100)])
