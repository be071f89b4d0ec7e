"""The one list of models, and what changes in it: moves between states, orders, bookings.

Whoever calls holds the router's lock. It knows no clock, no thread and no process.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from corral.contract.fleet import FleetEvent, ModelState
from corral.errors import CorralError, InternalError, ModelNotFound
from corral.router.effects import Deny, Effect, Grant, Look, Tell
from corral.router.entry import ModelEntry
from corral.router.placing import Holder
from corral.router.residence import MOVES, Residence, Ticket

_RESTING = (ModelState.UNLOADED, ModelState.FAILED)
_LEAVING = (ModelState.DRAINING, ModelState.STOPPING)
Seen = Mapping[str, Mapping[str, int]]
"""By model and memory, what a reading shows of its process."""


class Register:
    """Every model's record, and the orders that were given since they were last taken."""

    def __init__(self, *, epoch_s: float = 0.0) -> None:
        """Begin without models; `epoch_s` is when the router's clock stood at 0, since 1970."""
        self.now_s = 0.0
        self._epoch_s = epoch_s
        self._residences: dict[str, Residence] = {}
        self._names: dict[str, str] = {}
        self._active: dict[str, Residence] = {}
        """Those that are wanted or hold something."""
        self._effects: list[Effect] = []
        self._tickets: dict[str, str] = {}
        """The model of each live ticket."""
        self._num_events = 0
        self._is_looking = False
        self._changes = 0
        """How often bytes came or went, so that a reading from before counts no more."""
        self._should_look = False

    # Models by name.

    def list_entries(self, entries: Iterable[ModelEntry]) -> None:
        """Know these models, with what happened to those already known."""
        listed = {entry.name: entry for entry in entries}
        for name, entry in listed.items():
            residence = self._residences.get(name)
            if residence is None:
                self._residences[name] = Residence(entry, is_pinned=entry.preset.pinned)
                continue
            if entry.preset.pinned != residence.entry.preset.pinned:
                residence.is_pinned = entry.preset.pinned
            residence.entry, residence.is_removed = entry, False
        for name, residence in self._residences.items():
            residence.is_removed = name not in listed
        self._index()

    def forget_removed(self) -> None:
        """Strike models that are listed no more, as soon as they hold nothing."""
        gone = [
            name
            for name, residence in self._residences.items()
            if residence.is_removed and residence.state in _RESTING
        ]
        for name in gone:
            del self._residences[name]
        if gone:
            self._index()

    def _index(self) -> None:
        listed = {n: r for n, r in self._residences.items() if not r.is_removed}
        aliases = {alias: n for n, r in listed.items() for alias in r.entry.preset.aliases}
        self._names = aliases | {name: name for name in listed}

    def find(self, name: str) -> str:
        """Return the model's own name; raises ModelNotFound."""
        own = self._names.get(name)
        if own is None:
            raise ModelNotFound(
                f"there is no model {name[:60]!r} here; /v1/models lists those there are"
            )
        return own

    def of(self, model: str) -> Residence:
        """Return a model's record by its own name; raises ModelNotFound."""
        residence = self._residences.get(model)
        if residence is None:
            raise ModelNotFound(f"the model {model[:60]!r} is gone")
        return residence

    def of_generation(self, model: str, generation: int) -> Residence | None:
        """Return a model's record if that is its process now."""
        residence = self._residences.get(model)
        return residence if residence and residence.generation == generation else None

    def all(self) -> Iterable[Residence]:
        """Return every record."""
        return self._residences.values()

    def active(self) -> list[Residence]:
        """Return the records of models that are wanted or hold something."""
        return list(self._active.values())

    # Moves and orders.

    def move(self, residence: Residence, state: ModelState, reason: str) -> None:
        """Take a model into another state, and tell it.

        Raises:
            InternalError: no arrow leads there.
        """
        if state not in MOVES[residence.state]:
            raise InternalError(f"{residence.name} goes from {residence.state} to {state}")
        residence.state, residence.reason = state, reason
        if state in _RESTING:
            self._active.pop(residence.name, None)
        else:
            self._active[residence.name] = residence
        self.tell(residence)

    def tell(self, residence: Residence) -> None:
        """Tell where a model is now."""
        self._num_events += 1
        progress = residence.progress
        event = FleetEvent(
            number=self._num_events,
            at=self._epoch_s + self.now_s,
            model=residence.name,
            state=residence.state,
            reason=residence.reason,
            stage=progress.stage,
            done=progress.done,
            total=progress.total,
        )
        self.order(Tell(event))

    def order(self, effect: Effect) -> None:
        """Have something done once the lock is free."""
        self._effects.append(effect)

    def take_orders(self) -> list[Effect]:
        """Return what is to be done, once."""
        taken, self._effects = self._effects, []
        return taken

    # Tickets.

    def enter(self, residence: Residence, ticket: Ticket) -> None:
        """Let a ticket wait for its model."""
        residence.waiting[ticket.name] = ticket
        self._tickets[ticket.name] = residence.name

    def holder_of(self, ticket: str) -> Residence | None:
        """Return the model that a live ticket waits for or uses."""
        return self._residences.get(self._tickets.get(ticket, ""))

    def num_waiting(self) -> int:
        """Return how many tickets wait."""
        return sum(len(residence.waiting) for residence in self._active.values())

    def strike(self, ticket: str) -> Residence | None:
        """Forget a ticket; return its model, None if it is forgotten already."""
        residence = self._residences.get(self._tickets.pop(ticket, ""))
        if residence is not None:
            residence.waiting.pop(ticket, None)
            residence.running.pop(ticket, None)
        return residence

    def grant_all(self, residence: Residence) -> None:
        """Let everybody through who waits for a model that is ready."""
        is_lost = residence.lost_generation == residence.generation
        if residence.state is not ModelState.READY or residence.is_yielding or is_lost:
            return
        waiting, residence.waiting = residence.waiting, {}
        for name, ticket in waiting.items():
            residence.running[name] = ticket
            residence.used_s = self.now_s
            self.order(Grant(name, residence.name, residence.generation))

    def deny_all(self, residence: Residence, error: CorralError) -> None:
        """Tell everybody who waits for a model why it does not come."""
        residence.is_kept = False
        for name in list(residence.waiting):
            self.strike(name)
            self.order(Deny(name, error))

    # Bytes.

    def changed(self) -> None:
        """Note that bytes came or went: readings from before count no more."""
        self._changes += 1
        self._should_look = True

    def look_again(self) -> None:
        """Have memories read, if anybody waits for room."""
        self._should_look = True

    def begin_look(self) -> None:
        """Order a reading, unless one is under way or nobody needs one."""
        if self._should_look and not self._is_looking:
            self._is_looking, self._should_look = True, False
            self.order(Look(self._changes))

    def end_look(self, number: int) -> bool:
        """Take note of a reading; return whether it still counts."""
        self._is_looking = False
        if number != self._changes:
            self._should_look = True
            return False
        return True

    def is_leaving(self, model: str) -> bool:
        """Whether a model is going and not gone."""
        residence = self._active.get(model)
        return residence is not None and residence.state in _LEAVING

    def holders(self, seen: Seen, *, besides: str = "") -> list[Holder]:
        """Return who holds bytes or has them reserved.

        What somebody waits for that is going counts as held by whoever waits, not twice.
        """
        others = [one for one in self._active.values() if one.name != besides]
        found = {one.name: one.holder(seen.get(one.name, {})) for one in others}
        holders = {name: holder for name, holder in found.items() if holder is not None}
        for residence in others:
            if residence.state is ModelState.PLANNING and residence.name in holders:
                for victim in filter(self.is_leaving, residence.victims):
                    if victim in holders:
                        _inherit(holders, residence.name, victim)
        return list(holders.values())

    def booked(self) -> dict[str, int]:
        """Return by memory the bytes of all models that hold some."""
        sums: dict[str, int] = {}
        for residence in self._active.values():
            if residence.need is not None and residence.state.holds_bytes:
                for memory, size in residence.need.bytes.items():
                    sums[memory] = sums.get(memory, 0) + size
        return sums


def _inherit(holders: dict[str, Holder], heir: str, leaving: str) -> None:
    """Let bytes that are going count for whoever waits for them: no reading shows them free."""
    unseen, left = dict(holders[heir].unseen), dict(holders[leaving].bytes)
    for memory, size in unseen.items():
        passed = min(size, left.get(memory, 0))
        unseen[memory] -= passed
        if passed:
            left[memory] -= passed
    holders[heir] = replace(holders[heir], unseen=unseen)
    holders[leaving] = replace(holders[leaving], bytes=left)
