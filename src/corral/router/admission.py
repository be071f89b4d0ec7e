"""Who of those that are wanted is loaded now, who goes for it, who waits, who is told never.

One reading of all memories, one look at all who wait: the highest priority first, then who came
first; but whoever waited too long comes before all, and then

- no newcomer is let through to the models in its place, so that they become idle and go;
- nobody else is placed where it lacks room.
"""

from collections.abc import Sequence
from typing import Protocol

from corral.contract.events import error_of
from corral.contract.fleet import ExitKind, HeldBytes, ModelState, PlanAnswer, Verdict
from corral.errors import CorralError, MemoryTaken, OutOfMemory
from corral.router.effects import Start
from corral.router.entry import Planned, Unusable
from corral.router.moves import Moves
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
from corral.router.register import Register, Seen
from corral.router.residence import Residence


class Decide(Protocol):
    """`placement.place`, or a script in a test."""

    def __call__(
        self,
        wanted: Wanted,
        machine: Machine,
        holders: Sequence[Holder],
        *,
        now: float,
        policy: Policy,
    ) -> Decision:
        """Decide where a model goes."""
        ...


class Admission:
    """Decides for everybody who waits for room, under the router's lock."""

    def __init__(self, register: Register, moves: Moves, decide: Decide, policy: Policy) -> None:
        """Decide for the models of a register."""
        self._register = register
        self._moves = moves
        self._decide = decide
        self._policy = policy
        self.machine: Machine | None = None
        """As last read."""

    def candidates(self) -> list[Residence]:
        """Return who waits for room and can be decided for, who is next first."""
        now = self._register.now_s
        ready = [
            residence
            for residence in self._register.active()
            if residence.state is ModelState.PLANNING
            and isinstance(residence.entry.header, Planned)
            and residence.not_before_s <= now
            and not any(map(self._register.is_leaving, residence.victims))
        ]
        return sorted(ready, key=self._turn)

    def _turn(self, residence: Residence) -> tuple[bool, int, float, str]:
        is_punctual = not self._is_overdue(residence)
        priority = -residence.priority if is_punctual else 0
        return is_punctual, priority, residence.wanted_s, residence.name

    def _is_overdue(self, residence: Residence) -> bool:
        return self._register.now_s - residence.wanted_s >= self._policy.max_wait_s

    def overdue_s(self, residence: Residence) -> float:
        """Return when a model that waits for room will have waited too long."""
        return residence.wanted_s + self._policy.max_wait_s

    def decide_all(self, machine: Machine, seen: Seen) -> None:
        """Decide for all candidates, given one reading of all memories."""
        self.machine = machine
        contested: set[str] = set()
        yielding: set[str] = set()
        for residence in self.candidates():
            residence.need, residence.victims, residence.retry_s = None, (), None
            match self._decision(residence, machine, seen):
                case Load(need=need) if not contested & set(need.bytes):
                    self._place(residence, need, machine)
                case Evict() as eviction if not contested & set(eviction.need.bytes):
                    self._evict_for(residence, eviction)
                case Load() | Evict():
                    self._note(residence, "somebody who has waited longer is next there")
                case Wait() as wait:
                    residence.retry_s = wait.retry_s
                    self._note(residence, _waits_for(wait))
                    if self._is_overdue(residence):
                        contested |= {shortage.memory for shortage in wait.shortages}
                        yielding |= set(wait.blockers) if wait.cause is Cause.BUSY else set()
                case Refuse() as refusal:
                    self._refuse(residence, refusal)
        self.let_yield(yielding)

    def let_yield(self, names: set[str]) -> None:
        """Let these models take nobody new, and all others whoever waits for them."""
        for residence in self._register.active():
            residence.is_yielding = residence.name in names
            self._register.grant_all(residence)

    def _decision(self, residence: Residence, machine: Machine, seen: Seen) -> Decision:
        planned = residence.entry.header
        assert isinstance(planned, Planned), "only such are candidates"
        wanted = Wanted(
            preset=residence.entry.preset,
            footprints=planned.footprints,
            observed=residence.observed,
        )
        holders = self._register.holders(seen, besides=residence.name)
        now = self._register.now_s
        return self._decide(wanted, machine, holders, now=now, policy=self._policy)

    def _place(self, residence: Residence, need: Need, machine: Machine) -> None:
        register = self._register
        residence.need, residence.planned = need, need.bytes
        residence.free = {room.memory: room.free_bytes or 0 for room in machine.rooms}
        residence.generation += 1
        residence.started_s = register.now_s
        residence.error, residence.pid = None, None
        register.move(residence, ModelState.LOADING, f"goes to {', '.join(need.sites)}")
        register.order(Start(residence.name, residence.generation, need))

    def _evict_for(self, residence: Residence, eviction: Evict) -> None:
        residence.need, residence.victims = eviction.need, eviction.victims
        self._note(residence, f"{' and '.join(eviction.victims)} must go first")
        for name in eviction.victims:
            victim = self._register.of(name)
            victim.counts.evictions += 1
            reason = f"evicted for {residence.name}: {eviction.reason}"
            self._moves.drain(victim, ExitKind.EVICTED, reason)

    def _note(self, residence: Residence, reason: str) -> None:
        if residence.reason != reason:
            residence.reason = reason
            self._register.tell(residence)

    def _refuse(self, residence: Residence, refusal: Refuse) -> None:
        inner = residence.error if residence.tries else None
        error = inner or refusal_error(residence.name, refusal)
        residence.tries = 0
        residence.observed = {}
        self._moves.give_up(residence, error)

    def would(self, residence: Residence, machine: Machine, seen: Seen) -> PlanAnswer:
        """Say what would be decided for a model now; nothing changes."""
        name, header = residence.name, residence.entry.header
        if residence.state.holds_bytes and residence.need is not None:
            held = residence.status().held
            verdict = Verdict.LOADED if residence.state is ModelState.READY else Verdict.WAITS
            return PlanAnswer(model=name, verdict=verdict, held=held, reason=residence.reason)
        if not isinstance(header, Planned):
            raise _unusable(header)
        return _plan_answer(name, self._decision(residence, machine, seen))


def _unusable(header: Unusable | None) -> CorralError:
    if header is None:
        return MemoryTaken("the model's header was not read yet: try again")
    return error_of(header.code, header.message)


def _waits_for(wait: Wait) -> str:
    blockers = f": {', '.join(wait.blockers)}" if wait.blockers else ""
    return f"waits for room ({wait.cause.value}{blockers})"


def refusal_error(model: str, refusal: Refuse) -> OutOfMemory:
    """Return what is told to whoever wanted a model that there is no room for."""
    kind = OutOfMemory if refusal.is_permanent else MemoryTaken
    worst = _worst(refusal.shortages)
    return kind(
        refusal.message or f"{model} does not fit ({refusal.cause.value})",
        needed_bytes=worst.needed_bytes if worst else None,
        available_bytes=worst.available_bytes if worst else None,
        holders=tuple(worst.held) if worst else (),
    )


def _worst(shortages: Sequence[Shortage]) -> Shortage | None:
    """Return the memory that lacks most; one that nobody knows lacks all."""
    return max(shortages, key=lambda s: s.needed_bytes - (s.available_bytes or 0), default=None)


def _plan_answer(name: str, decision: Decision) -> PlanAnswer:
    match decision:
        case Load(need=need):
            return PlanAnswer(model=name, verdict=Verdict.FITS, held=_held(need))
        case Evict():
            return PlanAnswer(
                model=name,
                verdict=Verdict.EVICTS,
                held=_held(decision.need),
                evicts=decision.victims,
                reason=decision.reason,
            )
    worst = _worst(decision.shortages)
    return PlanAnswer(
        model=name,
        verdict=Verdict.WAITS if isinstance(decision, Wait) else Verdict.NEVER,
        needed_bytes=worst.needed_bytes if worst else 0,
        available_bytes=worst.available_bytes if worst else None,
        holders=tuple(worst.held) if worst else (),
        reason=_waits_for(decision) if isinstance(decision, Wait) else decision.message,
    )


def _held(need: Need) -> tuple[HeldBytes, ...]:
    return tuple(
        HeldBytes(device=memory, planned_bytes=size) for memory, size in need.bytes.items()
    )
