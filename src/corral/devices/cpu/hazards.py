"""Where threads must wait for each other: a pure function of which bytes instructions touch.

Two instructions may run side by side if neither writes what the other reads or writes. Bytes are
compared, not tensors, because the planner lets values that are done with share their bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes from `first` up to `last`, the latter excluded."""

    first: int
    last: int

    def meets(self, other: "Span") -> bool:
        """Whether both hold some byte."""
        return self.first < other.last and other.first < self.last


@dataclass(frozen=True, slots=True)
class Touched:
    """The bytes one instruction reads and writes."""

    reads: tuple[Span, ...]
    writes: tuple[Span, ...]

    def clashes(self, later: "Touched") -> bool:
        """Whether a later instruction must wait for this one."""
        return (
            _any_meet(self.writes, later.reads)
            or _any_meet(self.writes, later.writes)
            or _any_meet(self.reads, later.writes)
        )


def _any_meet(some: tuple[Span, ...], others: tuple[Span, ...]) -> bool:
    return any(a.meets(b) for a in some for b in others)


def barriers_after(instructions: Sequence[Touched]) -> tuple[bool, ...]:
    """Return for each instruction whether all threads must finish it before the next starts.

    A barrier stands as late as possible; the last instruction always has one, since whoever
    started the program reads its results.
    """
    waits = [False] * len(instructions)
    since: list[Touched] = []
    for number, touched in enumerate(instructions):
        if any(earlier.clashes(touched) for earlier in since):
            waits[number - 1] = True
            since = []
        since.append(touched)
    if waits:
        waits[-1] = True
    return tuple(waits)
