"""What happens to models, one thing at a time: each method is one hold of the router's lock.

    what happened ──▶ Residents ──▶ what is to be done (effects.py)

It has no thread, no clock and no process: moments come with each call, and whoever calls carries
out the orders. So every interleaving of threads is an order of calls, and tests go through them.
"""

from collections.abc import Iterable
from dataclasses import replace

from corral.contract.fleet import ExitKind, ModelState, PlanAnswer
from corral.contract.sessions import SessionsSaved
from corral.errors import (
    Closed,
    CorralError,
    ModelNotFound,
    ModelUnloaded,
    OutOfMemory,
    QueueFull,
)
from corral.memory.ledger import format_bytes
from corral.router.admission import Admission, Decide
from corral.router.effects import Effect
from corral.router.entry import ModelEntry
from corral.router.moves import Moves, Patience
from corral.router.placing import Machine, Policy
from corral.router.register import Register, Seen
from corral.router.residence import Measured, Progress, Residence, Ticket

_State = ModelState


class Residents:
    """Every model's life, decided."""

    def __init__(
        self,
        entries: Iterable[ModelEntry],
        decide: Decide,
        *,
        policy: Policy | None = None,
        patience: Patience | None = None,
        epoch_s: float = 0.0,
    ) -> None:
        """Begin with these models, none of them loaded."""
        self._register = Register(epoch_s=epoch_s)
        self._register.list_entries(entries)
        self._patience = patience or Patience()
        self._moves = Moves(self._register, self._patience)
        self._admission = Admission(self._register, self._moves, decide, policy or Policy())
        self._is_closing = False

    # What is wanted.

    def claim(self, ticket: Ticket) -> list[Effect]:
        """Let a request in: it is granted at once if its model is ready, or waits for it.

        Raises:
            ModelNotFound: there is no such model.
            QueueFull: as many wait as may.
            Closed: the router ends.
        """
        residence = self._open(ticket.model, ticket.arrived_s)
        if self._register.num_waiting() >= self._patience.most_waiting:
            raise QueueFull("too many requests wait for models to be loaded: try again later")
        if len(residence.waiting) > residence.entry.preset.queue:
            raise QueueFull(
                f"{len(residence.waiting)} requests wait for {residence.name}, the most there may "
                "be: try again later"
            )
        self._register.enter(residence, ticket)
        self._moves.want(residence)
        self._register.grant_all(residence)
        return self._orders()

    def release(self, ticket: str, now_s: float) -> list[Effect]:
        """Take note that a request has ended, or that its client left; a second call is nothing."""
        self._at(now_s)
        residence = self._register.strike(ticket)
        if residence is None:
            return self._orders()
        residence.used_s = now_s
        is_idle = residence.state is _State.PLANNING and not residence.is_wanted
        if is_idle:
            self._moves.rest(residence, "nobody waits for it any more")
        self._moves.save_if_idle(residence)
        self._register.look_again()
        return self._orders()

    def put_back(self, ticket: str, generation: int, now_s: float) -> list[Effect]:
        """Let a request wait again whose process died before it did anything for it."""
        self._at(now_s)
        residence = self._register.holder_of(ticket)
        given = residence.running.pop(ticket, None) if residence else None
        if residence is None or given is None:
            return self._orders()
        residence.waiting = {ticket: given, **residence.waiting}
        residence.lost_generation = max(residence.lost_generation, generation)
        self._moves.want(residence)
        self._register.grant_all(residence)
        self._moves.save_if_idle(residence)
        return self._orders()

    def load(self, model: str, now_s: float) -> list[Effect]:
        """Have a model loaded though nobody asks it anything."""
        residence = self._open(model, now_s)
        if residence.state is not _State.READY:
            residence.is_kept = True
            residence.not_before_s = min(residence.not_before_s, now_s)
            self._moves.want(residence)
        return self._orders()

    def unload(self, model: str, now_s: float, kind: ExitKind = ExitKind.UNLOADED) -> list[Effect]:
        """Have a model go: what runs may end, what waits for a load that is under way is told."""
        self._at(now_s)
        residence = self._register.of(model)
        residence.is_kept = False
        if residence.state is _State.READY:
            self._moves.drain(residence, kind, f"{kind.value} by request")
        elif residence.state in (_State.PLANNING, _State.LOADING):
            self._register.deny_all(residence, ModelUnloaded(f"{model} was unloaded meanwhile"))
            if residence.state is _State.LOADING:
                self._moves.end(residence, kind, "unloaded by request", is_there=True)
            else:
                self._moves.rest(residence, "unloaded by request")
        return self._orders()

    def pin(self, model: str, is_pinned: bool, now_s: float) -> list[Effect]:
        """Keep a model from making room for others, or no longer."""
        residence = self._open(model, now_s)
        residence.is_pinned = is_pinned
        self._register.tell(residence)
        self._register.look_again()
        return self._orders()

    def relist(self, entries: Iterable[ModelEntry], now_s: float) -> list[Effect]:
        """Go on with these models; those that are loaded and not among them go."""
        self._at(now_s)
        self._register.list_entries(entries)
        for residence in list(self._register.all()):
            if residence.is_removed:
                self._remove(residence)
            elif residence.state is _State.PLANNING:
                self._moves.look_up(residence)
        self._register.forget_removed()
        self._register.look_again()
        return self._orders()

    def _remove(self, residence: Residence) -> None:
        """Let a model go that is listed no more; one that loads goes when it is ready."""
        error = ModelNotFound(f"the model {residence.name} was removed")
        self._register.deny_all(residence, error)
        if residence.state is _State.READY:
            self._moves.drain(residence, ExitKind.UNLOADED, "it is listed no more")
        elif residence.state is _State.PLANNING:
            self._moves.rest(residence, "it is listed no more")

    def close(self, now_s: float) -> list[Effect]:
        """End everything: who waits is told, what runs may end."""
        self._at(now_s)
        self._is_closing = True
        for residence in self._register.active():
            self._register.deny_all(residence, Closed("the server is shutting down"))
            if residence.state is _State.READY:
                self._moves.drain(residence, ExitKind.SHUT_DOWN, "the server ends")
            elif residence.state is _State.LOADING:
                self._moves.end(residence, ExitKind.SHUT_DOWN, "the server ends", is_there=True)
            elif residence.state is _State.PLANNING:
                self._moves.rest(residence, "the server ends")
        return self._orders()

    # What was found, read and done.

    def found(self, entry: ModelEntry, now_s: float) -> list[Effect]:
        """Take note of what a model's header told."""
        self._at(now_s)
        residence = self._register.of(entry.name)
        residence.is_looked_for = False
        if entry.preset == residence.entry.preset:  # else it was listed anew meanwhile
            residence.entry = entry
        if residence.state is _State.PLANNING:
            self._moves.look_up(residence)
        self._register.look_again()
        return self._orders()

    def not_found(self, model: str, error: CorralError, now_s: float) -> list[Effect]:
        """Take note that a model's header could not be looked for."""
        self._at(now_s)
        residence = self._register.of(model)
        residence.is_looked_for = False
        if residence.state is _State.PLANNING:
            self._moves.give_up(residence, error)
        return self._orders()

    def looked(self, number: int, machine: Machine, seen: Seen, now_s: float) -> list[Effect]:
        """Take a reading of all memories, and decide for everybody who waits for room."""
        self._at(now_s)
        if self._register.end_look(number) and not self._is_closing:
            self._admission.decide_all(machine, seen)
        return self._orders()

    def progressed(
        self, model: str, generation: int, progress: Progress, pid: int | None, now_s: float
    ) -> list[Effect]:
        """Take note of how far a load is."""
        self._at(now_s)
        residence = self._register.of_generation(model, generation)
        if residence is not None and residence.state is _State.LOADING:
            residence.progress, residence.pid = progress, pid
            self._register.tell(residence)
        return self._orders()

    def loaded(self, model: str, generation: int, measured: Measured, now_s: float) -> list[Effect]:
        """Take note that a process is ready, and what it holds by memory; let everybody in."""
        self._at(now_s)
        residence = self._register.of_generation(model, generation)
        if residence is None or residence.state is not _State.LOADING or residence.need is None:
            return self._orders()
        planned = residence.need.bytes
        taken = {memory: sum(lifetimes.values()) for memory, lifetimes in measured.items()}
        booked = {memory: max(size, taken.get(memory, 0)) for memory, size in planned.items()}
        residence.need = replace(residence.need, bytes=booked)
        more = {memory: size for memory, size in booked.items() if size > planned[memory]}
        residence.observed = {residence.need.sites: more} if more else {}
        residence.measured, residence.progress = measured, Progress()
        residence.tries, residence.is_kept, residence.error = 0, False, None
        residence.ready_s = residence.used_s = now_s
        residence.counts.loads += 1
        residence.counts.load_s = now_s - residence.started_s
        excess = sum(size - planned[memory] for memory, size in more.items())
        told = (
            f"loaded; it holds {format_bytes(excess)} more than was planned" if more else "loaded"
        )
        self._register.move(residence, _State.READY, told)
        self._register.changed()
        self._register.grant_all(residence)
        if residence.is_removed:
            self._remove(residence)
        return self._orders()

    def ended(
        self,
        model: str,
        generation: int,
        error: CorralError,
        now_s: float,
        *,
        is_refused: bool = False,
    ) -> list[Effect]:
        """Take note that a process ended by itself; `is_refused` if it said it cannot load."""
        self._at(now_s)
        residence = self._register.of_generation(model, generation)
        if residence is None or residence.state not in (
            *(_State.LOADING, _State.READY, _State.DRAINING),
        ):
            return self._orders()
        residence.error = error
        if isinstance(error, OutOfMemory) and residence.state is _State.LOADING:
            self._moves.lack_memory(residence, error)
        elif is_refused and residence.state is _State.LOADING:
            residence.not_before_s = now_s + self._patience.failure_s
            self._register.deny_all(residence, error)
            self._moves.end(residence, ExitKind.LOAD_FAILED, str(error), is_there=False)
        else:
            self._moves.crash(residence, error)
        return self._orders()

    def saved(
        self, model: str, generation: int, now_s: float, saved: SessionsSaved | None = None
    ) -> list[Effect]:
        """Take note that a draining process kept its sessions, or could not: it may end."""
        self._at(now_s)
        residence = self._register.of_generation(model, generation)
        if residence is not None and saved is not None:
            residence.sessions = residence.sessions.after(saved)
        if residence is not None and residence.state is _State.DRAINING:
            self._moves.end(residence, residence.exit_kind, residence.reason, is_there=True)
        return self._orders()

    def gone(self, model: str, generation: int, now_s: float) -> list[Effect]:
        """Take note that nothing is left of a process."""
        self._at(now_s)
        residence = self._register.of_generation(model, generation)
        if residence is None or residence.state is not _State.STOPPING:
            return self._orders()
        residence.need, residence.measured, residence.pid = None, {}, None
        self._register.changed()
        if residence.is_wanted and not self._is_closing:
            residence.wanted_s = min([t.arrived_s for t in residence.waiting.values()] or [now_s])
            self._register.move(residence, _State.PLANNING, "wanted again")
        elif residence.error is not None:
            self._register.move(residence, _State.FAILED, str(residence.error))
        else:
            self._register.move(residence, _State.UNLOADED, residence.reason)
        self._register.forget_removed()
        return self._orders()

    def tick(self, now_s: float) -> list[Effect]:
        """Do what it is time for."""
        self._at(now_s)
        for residence in self._register.active():
            idle_s = residence.idle_deadline_s()
            if idle_s is not None and idle_s <= now_s:
                self._moves.drain(residence, ExitKind.IDLE, "nobody used it")
            is_late = residence.state is _State.DRAINING and residence.drained_s <= now_s
            if is_late and not residence.is_saving:
                self._moves.end(residence, residence.exit_kind, residence.reason, is_there=True)
            if residence.state is _State.PLANNING:
                self._register.look_again()
        return self._orders()

    def next_s(self) -> float | None:
        """Return when `tick` is to be called next; None if only events change anything."""
        moments: list[float] = []
        for residence in self._register.active():
            idle_s = residence.idle_deadline_s()
            if idle_s is not None:
                moments.append(idle_s)
            if residence.state is _State.DRAINING and not residence.is_saving:
                moments.append(residence.drained_s)
            if residence.state is _State.PLANNING:
                moments += self._moments_of_waiting(residence)
        return min(moments, default=None)

    def _moments_of_waiting(self, residence: Residence) -> list[float]:
        now = self._register.now_s
        possible = (
            *(residence.not_before_s, self._admission.overdue_s(residence)),
            residence.retry_s or 0.0,
        )
        return [moment for moment in possible if moment > now]

    # What is told.

    def find(self, name: str) -> str:
        """Return the own name of the model that a name means; raises ModelNotFound."""
        return self._register.find(name)

    def is_waiting(self, ticket: str) -> bool:
        """Whether a ticket was not let through yet."""
        residence = self._register.holder_of(ticket)
        return residence is not None and ticket in residence.waiting

    def residence(self, model: str) -> Residence:
        """Return a model's record, to be read under the lock; raises ModelNotFound."""
        return self._register.of(model)

    def all(self) -> Iterable[Residence]:
        """Return every model's record, to be read under the lock."""
        return self._register.all()

    def would(self, model: str, machine: Machine, seen: Seen) -> PlanAnswer:
        """Say what would be decided for a model now; raises what its header is refused for."""
        return self._admission.would(self._register.of(model), machine, seen)

    def booked(self) -> dict[str, int]:
        """Return by memory the bytes of all models that hold some."""
        return self._register.booked()

    @property
    def machine(self) -> Machine | None:
        """All memories as they were read last."""
        return self._admission.machine

    @property
    def is_closing(self) -> bool:
        """Whether nothing new is let in."""
        return self._is_closing

    @property
    def is_closed(self) -> bool:
        """Whether, after `close`, nothing is left."""
        return self._is_closing and not self._register.active()

    # What all methods share.

    def _at(self, now_s: float) -> None:
        self._register.now_s = max(self._register.now_s, now_s)

    def _open(self, model: str, now_s: float) -> Residence:
        self._at(now_s)
        if self._is_closing:
            raise Closed("the server is shutting down")
        return self._register.of(self._register.find(model))

    def _orders(self) -> list[Effect]:
        """Return what is to be done; memories are read if somebody waits for room."""
        if self._admission.candidates():
            self._register.begin_look()
        else:
            self._admission.let_yield(set())
        return self._register.take_orders()
