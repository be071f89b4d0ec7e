"""Offsets and the peak: small cases by hand, and a whole model against the lower bound."""

import pytest

from corral.memory.lifetime import Interval, liveness
from corral.memory.planner import align, place
from corral.quant.types import DType
from corral.tensor.graph import ShapeClass
from corral.tensor.ops import Op
from corral.tensor.rewrite import fuse
from corral.tensor.tensor import Tensor
from transformers import transformer


def value(name):
    return Tensor(name, Op.EMBED, DType.F32, (1, 1))


def lay_out(*spans, alignment=16):
    """Return (offsets by number, peak) of intervals given as (size, first, last)."""
    intervals = [Interval(value(str(n)), *span) for n, span in enumerate(spans)]
    layout = place(intervals, alignment)
    return [layout.offsets[interval.key] for interval in intervals], layout.size_bytes


def lower_bound(intervals, alignment):
    """Return the most bytes that are needed at one moment: no placement needs less."""
    moments = {interval.first for interval in intervals}
    return max(
        sum(align(i.size_bytes, alignment) for i in intervals if i.first <= moment <= i.last)
        for moment in moments
    )


@pytest.mark.parametrize(("size", "expected"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_align(size, expected):
    """Sizes go up to the next multiple, and multiples stay."""
    assert align(size, 64) == expected


def test_nothing_takes_nothing():
    """A graph without scratch values has an arena of no bytes."""
    assert lay_out() == ([], 0)


def test_values_that_never_meet_share_bytes():
    """The second lies where the first was."""
    assert lay_out((16, 0, 1), (16, 2, 3)) == ([0, 0], 16)


def test_values_that_meet_lie_apart():
    """One shared node is enough."""
    assert lay_out((16, 0, 2), (16, 2, 3)) == ([0, 16], 32)


def test_a_gap_is_used():
    """A small value goes between two that live at the same time as it."""
    offsets, peak = lay_out((64, 0, 9), (48, 0, 3), (48, 6, 9), (32, 0, 9), (16, 4, 5))
    assert peak == 64 + 48 + 32
    assert offsets[4] == 64


def test_offsets_and_peak_are_aligned():
    """Odd sizes are rounded up, in the peak too."""
    offsets, peak = lay_out((5, 0, 1), (7, 0, 1), (100, 0, 1))
    assert [offset % 16 for offset in offsets] == [0, 0, 0]
    assert peak == 112 + 16 + 16


@pytest.mark.parametrize("fused", [frozenset(), frozenset(Op)], ids=["plain", "fused"])
@pytest.mark.parametrize("rows", [1, 64, 512])
def test_a_model_comes_close_to_the_lower_bound(rows, fused):
    """On a transformer of 12 layers the arena is within 5 % of what any placement needs."""
    shape = ShapeClass(rows=rows, outputs=min(rows, 32), sequences=4, blocks=64)
    graph = transformer(
        shape,
        layers=12,
        width=576,
        heads=9,
        kv_heads=3,
        ffn=1536,
        vocabulary=4096,
        dtype=DType.Q8_0,
    )
    intervals = liveness(fuse(graph, fused)).intervals
    peak = place(intervals, 64).size_bytes
    assert peak <= 1.05 * lower_bound(intervals, 64)


def test_the_arena_does_not_grow_with_layers():
    """A second dozen of layers lives in the bytes of the first."""
    sizes = {
        place(liveness(transformer(layers=layers)).intervals, 64).size_bytes for layers in (3, 24)
    }
    assert len(sizes) == 1
