"""The planner: intervals in, offsets and an exact peak out. Pure; it owns nothing."""

from collections import defaultdict
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
    busy: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)  # bytes in use at each node
    offsets: dict[Tensor, int] = {}
    peak = 0
    for interval in sorted(intervals, key=lambda i: (-i.size_bytes, i.first)):
        size = align(interval.size_bytes, alignment)
        nodes = range(interval.first, interval.last + 1)
        offset = _lowest_gap({span for node in nodes for span in busy[node]}, size)
        for node in nodes:
            busy[node].append((offset, offset + size))
        offsets[interval.key] = offset
        peak = max(peak, offset + size)
    return ScratchLayout(offsets, peak)


def _lowest_gap(spans: Iterable[tuple[int, int]], size: int) -> int:
    """Return the lowest offset at which `size` bytes touch none of the spans."""
    offset = 0
    for start, end in sorted(spans):
        if start - offset >= size:
            break
        offset = max(offset, end)
    return offset
