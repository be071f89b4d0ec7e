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


class _Case:
    """One group of ways on one snapshot."""

    def __init__(
        self, group: Ways, machine: Machine, holders: tuple[Holder, ...], now: float
    ) -> None:
        self._group = group
        self._holders = holders
        self._now = now
        self._accounts = Accounts(machine, holders)
        self._free = self._accounts.available()

    def decide(self) -> Decision:
        """Go through the cases of the module's drawing, from the best to the worst."""
        if (need := self._fitting()) is not None:
            return Load(need)
        leaving = [holder for holder in self._holders if holder.is_leaving]
        staying = [holder for holder in self._holders if not holder.is_leaving]
        later = self._accounts.available(leaving)
        needs = self._needs()
        if (need := _first_within(needs, later)) is not None:
            return self._wait(Cause.LEAVING, leaving, need)
        if chosen := _choose(needs, later, [h for h in staying if self._may_go(h)]):
            names, shortages = chosen.victims.names, self._shortages(chosen.need)
            reason = eviction_text(self._group.wanted, chosen.need, shortages, names)
            return Evict(chosen.need, names, chosen.victims.frees(), reason)
        if chosen := _choose(needs, later, [h for h in staying if _is_idle(h)]):
            until = max(self._stays_until(holder) for holder in chosen.victims.holders)
            return self._wait(Cause.RESIDENCY, chosen.victims.holders, chosen.need, until)
        if chosen := _choose(needs, later, [h for h in staying if not h.is_pinned]):
            return self._wait(Cause.BUSY, chosen.victims.holders, chosen.need)
        if chosen := _choose(needs, later, staying):
            return self._refuse(Cause.PINNED, chosen.need)
        return self._refuse(*self._why_never(needs))

    def _fitting(self) -> Need | None:
        """Return the best way for which there is room now."""
        whole = [need for need in self._group.whole() if missing(need, self._free) == {}]
        if whole:
            return max(whole, key=self._room_left)
        return _first_within(self._group.splits(self._free, self._free), self._free)

    def _room_left(self, need: Need) -> int:
        """Return what stays free of the memory that the model's layers lie in."""
        left = {m: (self._free[m] or 0) - size for m, size in need.bytes.items()}
        return min((size for m, size in left.items() if m != HOST), default=left.get(HOST, 0))

    def _needs(self) -> tuple[Need, ...]:
        """Return all ways worth considering if models go, and otherwise if nothing were there."""
        whole = self._group.whole()
        without = self._accounts.available(h for h in self._holders if not h.is_pinned)
        orders = self._free, self._free_but_one()
        splits = self._group.splits(without, *orders)
        if not splits and _first_within(whole, without) is None:
            splits = self._group.splits(self._accounts.empty(), *orders)
        return (*whole, *splits)

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


def _choose(
    needs: Sequence[Need], sizes: Mapping[str, int | None], candidates: Sequence[Holder]
) -> _Chosen | None:
    """Return the way for which the fewest models go; of equal ways the one on fewer devices."""
    found: list[tuple[tuple[object, ...], _Chosen]] = []
    for place, need in enumerate(needs):
        lacking = missing(need, sizes)
        victims = choose_victims(lacking, candidates) if lacking else None
        if victims is not None:
            priority, count, excess, used = victims.merit
            merit = priority, count, len(need.sites), excess, used, place
            found.append((merit, _Chosen(need, victims)))
    return min(found, key=lambda pair: pair[0])[1] if found else None
