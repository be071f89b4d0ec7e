"""Where a model goes, and who goes for it: a pure function of one snapshot of the machine.

    ways to place it ──▶ some have room ─────────────────────────────▶ Load the best of them
      (options.py)   └─▶ some will, once who is leaving left ────────▶ Wait
                     └─▶ some have if others go (victims.py) ────────▶ Evict the fewest
                     └─▶ some have if others may go later ───────────▶ Wait, and for whom
                     └─▶ none ───────────────────────────────────────▶ Refuse, and why

What can be had of a memory is the least of what is free beyond reservations that no reading shows
yet, and of what is not in the ledger, less the margin; and no more than its budget leaves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from corral.errors import DeviceUnavailable
from corral.router.account import Accounts, missing
from corral.router.entry import HOST
from corral.router.options import Ways, ways
from corral.router.placing import (
    Cause,
    Decision,
    Evict,
    Holder,
    Load,
    Machine,
    Need,
    Policy,
    Refuse,
    Shortage,
    Wait,
    Wanted,
)
from corral.router.refusals import eviction_text, refusal_text
from corral.router.victims import Victims, choose_victims

DEFAULT_POLICY = Policy()


def place(
    wanted: Wanted,
    machine: Machine,
    holders: Sequence[Holder],
    *,
    now: float,
    policy: Policy = DEFAULT_POLICY,
) -> Decision:
    """Decide where a model goes; every holder counts, one of the same name too."""
    try:
        groups = ways(wanted, machine, policy)
    except DeviceUnavailable as error:
        return Refuse(Cause.NO_DEVICE, (), True, str(error))
    refusals = []
    for group in groups:
        decision = _Case(group, machine, tuple(holders), now).decide()
        if not isinstance(decision, Refuse) or decision.cause is not Cause.TOO_LARGE:
            return decision
        refusals.append(decision)
    return refusals[0]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A way that becomes possible when some holders go."""

    need: Need
    victims: Victims

    @property
    def merit(self) -> tuple[int, int, int, int, tuple[float, ...]]:
        """As of the victims, fewer devices before fewer bytes: the least is the best."""
        priority, count, excess, used = self.victims.merit
        return priority, count, len(self.need.sites), excess, used


class _Case:
    """One group of ways on one snapshot."""

    def __init__(
        self, group: Ways, machine: Machine, holders: tuple[Holder, ...], now: float
    ) -> None:
        self._group = group
        self._whole = group.whole()
        self._holders = holders
        self._now = now
        self._accounts = Accounts(machine, holders)
        self._free = self._accounts.available()

    def decide(self) -> Decision:
        """Go through the cases of the module's drawing, from the best to the worst."""
        if (need := self._fitting(self._free)) is not None:
            return Load(need)
        leaving = [holder for holder in self._holders if holder.is_leaving]
        staying = [holder for holder in self._holders if not holder.is_leaving]
        later = self._accounts.available(leaving)
        if leaving and (need := self._fitting(later)) is not None:
            return self._wait(Cause.LEAVING, leaving, need)
        if chosen := self._choose(later, [h for h in staying if self._may_go(h)]):
            names, shortages = chosen.victims.names, self._shortages(chosen.need)
            reason = eviction_text(self._group.wanted, chosen.need, shortages, names)
            return Evict(chosen.need, names, chosen.victims.frees(), reason)
        if chosen := self._choose(later, [h for h in staying if _is_idle(h)]):
            until = max(self._stays_until(holder) for holder in chosen.victims.holders)
            return self._wait(Cause.RESIDENCY, chosen.victims.holders, chosen.need, until)
        if chosen := self._choose(later, [h for h in staying if not h.is_pinned]):
            return self._wait(Cause.BUSY, chosen.victims.holders, chosen.need)
        if chosen := self._choose(later, staying):
            return self._refuse(Cause.PINNED, chosen.need)
        return self._refuse(*self._why_never((*self._whole, *self._splits)))

    def _fitting(self, sizes: Mapping[str, int | None]) -> Need | None:
        """Return the best way if so much is to be had of each memory, and no model goes."""
        whole = [need for need in self._whole if missing(need, sizes) == {}]
        if whole:
            return max(whole, key=lambda need: _room_left(need, sizes))
        return _first_within(self._group.splits(sizes, sizes), sizes)

    @cached_property
    def _splits(self) -> tuple[Need, ...]:
        """Return the splits worth considering if models go, or if nothing at all were there."""
        orders = self._free, self._free_but_one()
        without = self._accounts.available(h for h in self._holders if not h.is_pinned)
        splits = self._group.splits(without, *orders)
        if not splits and _first_within(self._whole, without) is None:
            splits = self._group.splits(self._accounts.empty(), *orders)
        return splits

    def _choose(
        self, sizes: Mapping[str, int | None], candidates: Sequence[Holder]
    ) -> _Chosen | None:
        """Return the way for which the fewest models go; of equal ways the one on fewer devices."""
        if not candidates:
            return None
        best = _best(self._whole, sizes, candidates)
        lowest = min(holder.priority for holder in candidates)
        if best is not None and best.victims.merit[:2] == (lowest, 1):
            return best  # no split needs less
        return _better(best, _best(self._splits, sizes, candidates))

    def _free_but_one(self) -> dict[str, int | None]:
        """Return what could be had of each memory if the one model there that frees most went."""
        sizes = dict(self._free)
        for memory, free in self._free.items():
            may_go = (h.bytes.get(memory, 0) for h in self._holders if self._may_go(h))
            if free is not None:
                sizes[memory] = free + max(may_go, default=0)
        return sizes

    def _may_go(self, holder: Holder) -> bool:
        return _is_idle(holder) and self._stays_until(holder) <= self._now

    def _stays_until(self, holder: Holder) -> float:
        """Return when a model has been there, or unused, for long enough to go."""
        policy = self._group.policy
        return min(holder.ready_s + policy.min_residency_s, holder.used_s + policy.idle_s)

    def _why_never(self, needs: Sequence[Need]) -> tuple[Cause, Need | None]:
        """Return why no way is possible even if every model goes, and of which way that is said."""
        empty = self._accounts.empty()
        if (need := _first_within(needs, empty)) is not None:
            return Cause.FOREIGN, need
        lacking = {place: missing(need, empty) for place, need in enumerate(needs)}
        if any(one is None for one in lacking.values()):
            unknown = next(needs[place] for place, one in lacking.items() if one is None)
            return Cause.MEMORY_UNKNOWN, unknown
        if not needs:
            return Cause.TOO_LARGE, None
        nearest = min(lacking, key=lambda place: sum((lacking[place] or {}).values()))
        return Cause.TOO_LARGE, needs[nearest]

    def _wait(
        self, cause: Cause, blockers: Sequence[Holder], need: Need, until: float | None = None
    ) -> Wait:
        names = tuple(holder.name for holder in blockers)
        return Wait(cause, names, until, self._shortages(need))

    def _refuse(self, cause: Cause, need: Need | None) -> Refuse:
        shortages = () if need is None else self._shortages(need)
        is_permanent = cause in (Cause.PINNED, Cause.TOO_LARGE)
        text = refusal_text(self._group.wanted, cause, need, shortages)
        return Refuse(cause, shortages, is_permanent, text)

    def _shortages(self, need: Need) -> tuple[Shortage, ...]:
        """Return what each memory lacks now, and who holds it."""
        without = self._accounts.available(h for h in self._holders if not h.is_pinned)
        short = []
        for memory, size in need.bytes.items():
            free = self._free.get(memory)
            if free is None or size > max(free, 0):
                held = {h.name: h.bytes[memory] for h in self._holders if h.bytes.get(memory)}
                available = without.get(memory)
                account = self._accounts.get(memory)
                short.append(
                    Shortage(
                        memory,
                        account.room.name if account else memory,
                        size,
                        None if available is None else max(0, available),
                        held,
                        account.foreign_bytes if account else None,
                    )
                )
        return tuple(short)


def _first_within(needs: Sequence[Need], sizes: Mapping[str, int | None]) -> Need | None:
    return next((need for need in needs if missing(need, sizes) == {}), None)


def _is_idle(holder: Holder) -> bool:
    return not (holder.is_pinned or holder.is_busy or holder.is_loading or holder.is_reserved)


def _room_left(need: Need, sizes: Mapping[str, int | None]) -> int:
    """Return what stays free of the memory that the model's layers lie in."""
    left = {memory: (sizes.get(memory) or 0) - size for memory, size in need.bytes.items()}
    return min((size for memory, size in left.items() if memory != HOST), default=left[HOST])


def _best(
    needs: Sequence[Need], sizes: Mapping[str, int | None], candidates: Sequence[Holder]
) -> _Chosen | None:
    best = None
    for need in needs:
        lacking = missing(need, sizes)
        victims = choose_victims(lacking, candidates) if lacking else None
        if victims is not None:
            best = _better(best, _Chosen(need, victims))
    return best


def _better(one: _Chosen | None, other: _Chosen | None) -> _Chosen | None:
    """Return the better way, the first one of equals; None if there is none."""
    if one is None or other is None:
        return one or other
    return other if other.merit < one.merit else one
