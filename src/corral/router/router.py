"""Many models behind one door: one lock, and threads that carry out what is decided under it.

    submit, hold, load … ─┐                                ┌─▶ processes start, save, end
    news of processes ────┼─▶ lock ─▶ Residents ─▶ orders ─┼─▶ memories and headers are read
    the clock ────────────┘                                └─▶ requests go in, or are told why not

Nothing is waited for under the lock. A request that waits costs a record and no thread. The process
of the router loads no arrays and no driver; what reads memory and starts processes is handed in.
"""

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from corral.contract.fleet import (
    FleetEvent,
    FleetStatus,
    Hold,
    ModelState,
    ModelStatus,
    PlanAnswer,
)
from corral.contract.messages import GenerationRequest
from corral.contract.sampling import SamplingParams
from corral.contract.service import Deliver, Service
from corral.errors import InvalidArgument
from corral.log import logger
from corral.router.admission import Decide
from corral.router.children import Launch
from corral.router.claims import Claim, Holding, Run
from corral.router.effects import (
    Confirm,
    Deny,
    Effect,
    Find,
    Grant,
    Look,
    Save,
    Start,
    Stop,
    Tell,
)
from corral.router.entry import ModelEntry
from corral.router.errands import Catalog, Errands
from corral.router.moves import Patience
from corral.router.placement import place
from corral.router.placing import Policy
from corral.router.residence import Ticket
from corral.router.residents import Residents
from corral.router.sight import Read, Sights
from corral.router.telling import fleet_status

_HANDS = 64
"""Processes that can be started, saved or ended at once."""
_DOORS = 4
"""Threads that let requests through to processes."""
_log = logger(__name__)


class Router:
    """A `contract.fleet.Fleet` of worker processes."""

    def __init__(
        self,
        catalog: Catalog,
        launch: Launch,
        read: Read,
        *,
        sampling: Callable[[ModelEntry], SamplingParams] | None = None,
        policy: Policy | None = None,
        patience: Patience | None = None,
        decide: Decide = place,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Serve the models of a catalog; nothing is loaded yet but what is to be preloaded.

        Args:
            launch: starts a worker process.
            read: reads all memories.
            sampling: what counts for a model where a request does not say.
        """
        self._catalog = catalog
        self._launch = launch
        self._sights = Sights(read, clock)
        self._sampling = sampling or (lambda _: SamplingParams())
        self._clock = clock
        self._lock = threading.Condition()
        """Guards all that follows."""
        self._residents = Residents(
            catalog.entries(),
            decide,
            policy=policy,
            patience=patience,
            epoch_s=time.time() - clock(),
        )
        self._errands = Errands(
            self._residents,
            self._lock,
            self._apply,
            catalog=catalog,
            launch=launch,
            sights=self._sights,
        )
        self._claims: dict[str, Claim] = {}
        self._listeners: dict[object, Callable[[FleetEvent], None]] = {}
        self._told: deque[FleetEvent] = deque()
        self._is_over = False
        self._hands = ThreadPoolExecutor(_HANDS, "corral-router-hand")
        self._doors = ThreadPoolExecutor(_DOORS, "corral-router-door")
        self._eyes = ThreadPoolExecutor(1, "corral-router-eye")
        self._thread = threading.Thread(target=self._keep_time, name="corral-router", daemon=True)
        self._thread.start()
        for entry in catalog.entries():
            if entry.preset.preload:
                self.load(entry.name)

    # What is asked.

    def find(self, name: str) -> str:
        """Return the own name of the model that a name or alias means; raises ModelNotFound."""
        with self._lock:
            return self._residents.find(name)

    def names(self) -> tuple[str, ...]:
        """Return the names of all models."""
        with self._lock:
            return tuple(residence.name for residence in self._residents.all())

    def sampling(self, model: str) -> SamplingParams:
        """Return what counts for a model where a request does not say."""
        with self._lock:
            entry = self._residents.residence(model).entry
        return self._sampling(entry)

    def submit(self, model: str, request: GenerationRequest, deliver: Deliver) -> None:
        """Queue a request and return; raises as `contract.fleet.Fleet` says."""
        request.validate()
        self._claim(model, request.request_id, Run(self, request, deliver))

    def cancel(self, request_id: str) -> None:
        """End a request soon; an unknown or finished one is no error."""
        effects: list[Effect] = []
        with self._lock:
            claim = self._claims.get(request_id)
            is_waiting = self._residents.is_waiting(request_id)
            if is_waiting:  # from now on nobody lets it through
                del self._claims[request_id]
                effects = self._residents.release(request_id, self._clock())
                self._prepare(effects)
        if isinstance(claim, Run):
            claim.cancel(is_waiting=is_waiting)
        self._carry_out(effects)

    def hold(self, model: str) -> Future[Hold]:
        """Load a model and keep it until the hold is released; raises as `Fleet` says."""
        ticket = f"hold-{uuid.uuid4().hex}"
        holding = Holding(self, ticket)
        self._claim(model, ticket, holding)
        return holding.future

    def peek(self, model: str) -> Service | None:
        """Return a model that is loaded, to look at it; None if it is not."""
        with self._lock:
            residence = self._residents.residence(model)
            is_ready, generation = residence.state is ModelState.READY, residence.generation
        return self._errands.service(model, generation) if is_ready else None

    def load(self, model: str) -> None:
        """Have a model loaded, and return."""
        self._apply(lambda now: self._residents.load(model, now))

    def unload(self, model: str) -> None:
        """Have a model's process end when what runs has ended, and return."""
        self._apply(lambda now: self._residents.unload(self._residents.find(model), now))

    def pin(self, model: str, is_pinned: bool) -> None:
        """Keep a model from being evicted or unloaded for being idle, or no longer."""
        self._apply(lambda now: self._residents.pin(model, is_pinned, now))

    def reload(self) -> tuple[str, ...]:
        """Read the configuration and the folders again; return what changed."""
        changes = tuple(self._catalog.reload())
        entries = self._catalog.entries()
        self._apply(lambda now: self._residents.relist(entries, now))
        return changes

    def plan(self, model: str) -> PlanAnswer:
        """Say what would happen if a model were asked for now."""
        name = self.find(model)
        with self._lock:
            is_cold = self._residents.residence(name).entry.header is None
        if is_cold:
            entry = self._catalog.planned(name)
            self._apply(lambda now: self._residents.found(entry, now))
        sight = self._sights.newest(0.0)
        with self._lock:
            seen = self._sights.seen(sight, self._errands.pids())
            return self._residents.would(name, sight.machine, seen)

    def status(self) -> FleetStatus:
        """Return what is known of everything."""
        sight = self._sights.newest(1.0)
        with self._lock:
            return fleet_status(self._residents, sight.machine, self._clock())

    def model_status(self, model: str) -> ModelStatus:
        """Return what is known of one model."""
        with self._lock:
            return self._residents.residence(model).status()

    def subscribe(self, listen: Callable[[FleetEvent], None]) -> Callable[[], None]:
        """Have events told until the returned function is called."""
        key = object()
        with self._lock:
            self._listeners[key] = listen

        def end() -> None:
            with self._lock:
                self._listeners.pop(key, None)

        return end

    def close(self) -> None:
        """End everything: who waits is told, what runs may end, nothing is left of any process."""
        self._apply(self._residents.close)
        with self._lock:
            self._lock.wait_for(lambda: self._residents.is_closed)
            self._is_over = True
            self._lock.notify_all()
        self._thread.join()
        for threads in (self._hands, self._doors, self._eyes):
            threads.shutdown()

    # Tickets.

    def release(self, ticket: str) -> None:
        """Take note that a ticket is used no more; a second call does nothing."""

        def give_back(now: float) -> list[Effect]:
            self._claims.pop(ticket, None)
            return self._residents.release(ticket, now)

        self._apply(give_back)

    def put_back(self, ticket: str, generation: int) -> None:
        """Let a ticket wait again: that process of its model is dead."""
        self._apply(lambda now: self._residents.put_back(ticket, generation, now))

    def _claim(self, model: str, ticket: str, claim: Claim) -> None:
        def enter(now: float) -> list[Effect]:
            if ticket in self._claims:
                raise InvalidArgument(
                    f"request_id {ticket!r} belongs to a request that is not finished; expected a "
                    "new one"
                )
            effects = self._residents.claim(Ticket(ticket, self._residents.find(model), now))
            self._claims[ticket] = claim
            return effects

        self._apply(enter, own=ticket)

    # The lock, and what is done when it is free.

    def _apply(self, happen: Callable[[float], list[Effect]], *, own: str = "") -> None:
        """Let something happen under the lock, then carry out what it leads to."""
        with self._lock:
            effects = happen(self._clock())
            self._prepare(effects)
        self._carry_out(effects, own=own)

    def _prepare(self, effects: Sequence[Effect]) -> None:
        """Do under the lock what must keep its order."""
        for effect in effects:
            if isinstance(effect, Tell):
                self._told.append(effect.event)
            elif isinstance(effect, Start):
                self._errands.expect(effect)
        self._lock.notify_all()

    def _carry_out(self, effects: Sequence[Effect], *, own: str = "") -> None:
        for effect in effects:
            match effect:
                case Grant(ticket=ticket) if ticket == own:
                    self._grant(effect)
                case Grant():
                    self._doors.submit(self._grant, effect)
                case Deny():
                    self._deny(effect)
                case Look():
                    self._eyes.submit(self._errands.run, effect)
                case Find() | Start() | Save() | Stop() | Confirm():
                    self._hands.submit(self._errands.run, effect)

    def _grant(self, grant: Grant) -> None:
        with self._lock:
            claim = self._claims.get(grant.ticket)
        service = self._errands.service(grant.model, grant.generation)
        if service is None:  # its process died, and is cleared away already
            self.put_back(grant.ticket, grant.generation)
        elif claim is not None:
            claim.granted(service, grant.generation)

    def _deny(self, denial: Deny) -> None:
        with self._lock:
            claim = self._claims.pop(denial.ticket, None)
        if claim is not None:
            claim.denied(denial.error)

    # The clock, and what is told.

    def _keep_time(self) -> None:
        """Tell listeners what happened, in order, and do what it is time for."""
        while True:
            with self._lock:
                self._lock.wait_for(self._is_something_to_do, self._seconds_left())
                if self._is_over and not self._told:
                    return
                events, listeners = list(self._told), list(self._listeners.values())
                self._told.clear()
                is_time = self._seconds_left() == 0.0
            for event in events:
                for listen in listeners:
                    _tell(listen, event)
            if is_time:
                self._apply(self._residents.tick)

    def _is_something_to_do(self) -> bool:
        return self._is_over or bool(self._told) or self._seconds_left() == 0.0

    def _seconds_left(self) -> float | None:
        """Return how long there is nothing to do but for events; None is for ever."""
        next_s = self._residents.next_s()
        return None if next_s is None else max(0.0, next_s - self._clock())


def _tell(listen: Callable[[FleetEvent], None], event: FleetEvent) -> None:
    try:
        listen(event)
    except Exception:  # whoever listens broke the promise not to raise
        _log.error("an event was not taken", exc_info=True)
