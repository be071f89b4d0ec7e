"""The planner: intervals in, offsets and an exact peak out. Pure; it owns nothing."""

from collections.abc import Iterable
from dataclasses import dataclass

from corral.memory.lifetime import Interval
from corral.tensor.tensor import Tensor


@dataclass(frozen=True, slots=True)
class ScratchLayout:
    """Where each value lies in the scratch arena, and how large the arena must be."""

    offsets: dict[Tensor, int]
    size_bytes: int


def align(size: int, alignment: int) -> int:
    """Return the next multiple of `alignment`, a power of two."""
    return (size + alignment - 1) & -alignment


def place(intervals: Iterable[Interval], alignment: int) -> ScratchLayout:
    """Give each interval an offset so that no two that overlap in time overlap in bytes.

    Largest first, each at the lowest offset where it fits: within a few per cent of the lower bound
    on graphs of transformers, and the size it returns is what it uses, to the byte.
    """
    placed: list[tuple[int, int, Interval]] = []
    offsets: dict[Tensor, int] = {}
    peak = 0
    for interval in sorted(intervals, key=lambda i: (-i.size_bytes, i.first)):
        size = align(interval.size_bytes, alignment)
        offset = 0
        for start, end, other in sorted(placed, key=lambda p: p[0]):
            if interval.overlaps(other):
                if start - offset >= size:
                    break
                offset = max(offset, end)
        placed.append((offset, offset + size, interval))
        offsets[interval.key] = offset
        peak = max(peak, offset + size)
    return ScratchLayout(offsets, peak)
