"""Which models go so that another has room: the fewest, then the least too much, then the idlest.

Pure arithmetic on bytes by memory. Who may go at all is decided by the caller.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import sub

from corral.router.placing import Holder

MOST_STEPS = 400
"""Steps of the search among sets of one size; beyond them the best one so far is taken."""

Bytes = Mapping[str, int]
Merit = tuple[int, int, int, tuple[float, ...]]
"""(highest priority, models, bytes too many, when used): the least is the best."""


@dataclass(frozen=True, slots=True)
class Victims:
    """Models whose going frees what is missing."""

    holders: tuple[Holder, ...]
    merit: Merit

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, the one that was idle longest first."""
        return tuple(h.name for h in sorted(self.holders, key=lambda h: (h.used_s, h.name)))

    def frees(self) -> dict[str, int]:
        """Return the bytes by memory that will be free."""
        freed: dict[str, int] = {}
        for holder in self.holders:
            for memory, size in holder.bytes.items():
                freed[memory] = freed.get(memory, 0) + size
        return freed


def choose_victims(missing: Bytes, candidates: Sequence[Holder]) -> Victims | None:
    """Return the best set of models whose bytes cover what each memory lacks; None if none does.

    A model of a higher priority stays as long as some set of lower ones is enough. Among sets of
    these: fewest models, then fewest bytes freed beyond what is missing, then the set whose most
    recently used model was used longest ago.
    """
    lacking = {memory: size for memory, size in missing.items() if size > 0}
    useful = [h for h in candidates if any(h.bytes.get(memory, 0) > 0 for memory in lacking)]
    for priority in sorted({holder.priority for holder in useful}):
        level = [holder for holder in useful if holder.priority <= priority]
        if all(sum(h.bytes.get(m, 0) for h in level) >= size for m, size in lacking.items()):
            return _fewest(lacking, level, priority)
    return None


def _fewest(lacking: Bytes, candidates: Sequence[Holder], priority: int) -> Victims:
    """Return the best set of candidates that are enough all together."""
    sizes = _Sizes.of(lacking, candidates)
    for count in range(sizes.least_count, len(candidates)):
        search = _Search(sizes, count)
        search.extend((), 0, sizes.lacking)
        if search.best is not None:
            excess, used, chosen = search.best
            return Victims(chosen, (priority, count, excess, used))
    excess, used, chosen = _judged(candidates, sizes.lacking)
    return Victims(chosen, (priority, len(chosen), excess, used))


_Found = tuple[int, tuple[float, ...], tuple[Holder, ...]]


def _judged(chosen: Sequence[Holder], lacking: Sequence[int]) -> _Found:
    excess = sum(sum(holder.bytes.values()) for holder in chosen) - sum(lacking)
    used = tuple(sorted((holder.used_s for holder in chosen), reverse=True))
    return excess, used, tuple(chosen)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Candidates in the order in which they are tried, those that free the most first."""

    lacking: tuple[int, ...]
    holders: tuple[Holder, ...]
    of_each: tuple[tuple[int, ...], ...]
    """Bytes of each holder in each memory that lacks some."""
    most: tuple[tuple[int, ...], ...]
    """The most bytes that a holder has of those from a place on, for each memory."""

    @classmethod
    def of(cls, lacking: Bytes, candidates: Sequence[Holder]) -> "_Sizes":
        def useful(holder: Holder) -> int:
            return sum(min(holder.bytes.get(m, 0), size) for m, size in lacking.items())

        holders = sorted(candidates, key=lambda h: (-useful(h), h.used_s, h.name))
        sizes = [tuple(holder.bytes.get(m, 0) for m in lacking) for holder in holders]
        most = accumulate(reversed(sizes), lambda one, other: tuple(map(max, one, other)))
        return cls(tuple(lacking.values()), tuple(holders), tuple(sizes), tuple(most)[::-1])

    @property
    def least_count(self) -> int:
        """How many holders it takes at least, by what each memory lacks alone."""
        counts = [1]
        for place, size in enumerate(self.lacking):
            sums = accumulate(sorted((each[place] for each in self.of_each), reverse=True))
            counts.append(next(n for n, total in enumerate(sums, 1) if total >= size))
        return max(counts)


class _Search:
    """Looks through the sets of one size."""

    def __init__(self, sizes: _Sizes, count: int) -> None:
        self._sizes = sizes
        self._count = count
        self._left = MOST_STEPS
        self.best: _Found | None = None

    def extend(self, chosen: tuple[Holder, ...], start: int, lacking: tuple[int, ...]) -> None:
        """Try all holders from a place on as the next of a set that still lacks some bytes."""
        wanted = self._count - len(chosen)
        if not wanted:
            found = _judged(chosen, self._sizes.lacking)
            if self.best is None or found[:2] < self.best[:2]:
                self.best = found
            return
        for place in range(start, len(self._sizes.holders) - wanted + 1):
            for size, most in zip(lacking, self._sizes.most[place], strict=True):
                if size > wanted * most:
                    return  # nor will later ones do, which have less
            self._left -= 1
            if self._left < 0:
                return
            rest = tuple(map(sub, lacking, self._sizes.of_each[place]))
            if wanted > 1 or max(rest) <= 0:
                self.extend((*chosen, self._sizes.holders[place]), place + 1, rest)
