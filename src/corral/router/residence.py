"""One model's record: its state, who waits for it, what it holds. `Residents` alone writes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from corral.contract.fleet import ExitKind, HeldBytes, ModelState, ModelStatus
from corral.contract.sessions import SessionTotals
from corral.errors import CorralError
from corral.router.entry import ModelEntry
from corral.router.placing import Holder, Need

_S = ModelState
MOVES: Mapping[ModelState, frozenset[ModelState]] = {
    _S.UNLOADED: frozenset({_S.PLANNING}),
    _S.PLANNING: frozenset({_S.LOADING, _S.FAILED, _S.UNLOADED}),
    _S.LOADING: frozenset({_S.READY, _S.STOPPING}),
    _S.READY: frozenset({_S.DRAINING, _S.STOPPING}),
    _S.DRAINING: frozenset({_S.STOPPING}),
    _S.STOPPING: frozenset({_S.UNLOADED, _S.FAILED, _S.PLANNING}),
    _S.FAILED: frozenset({_S.PLANNING, _S.UNLOADED}),
}
"""Where each state may lead."""


Measured = Mapping[str, Mapping[str, int]]
"""By memory and lifetime, the bytes that a process says it allocated."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """One request for a model, from its arrival to its end."""

    name: str
    model: str
    arrived_s: float


@dataclass(slots=True)
class Progress:
    """How far a load is."""

    stage: str = ""
    done: int = 0
    total: int = 0


@dataclass(slots=True)
class Counts:
    """What happened to a model since the router started."""

    loads: int = 0
    evictions: int = 0
    crashes: int = 0
    load_s: float | None = None


@dataclass(slots=True)
class Residence:
    """Everything known of one model."""

    entry: ModelEntry
    is_pinned: bool = False
    state: ModelState = ModelState.UNLOADED
    reason: str = ""
    generation: int = 0
    waiting: dict[str, Ticket] = field(default_factory=dict)
    """Not let through yet, in the order of their arrival."""
    running: dict[str, Ticket] = field(default_factory=dict)
    is_kept: bool = False
    """It is wanted though nobody waits: somebody had it loaded."""
    wanted_s: float = 0.0
    """Since when it is wanted and not there."""
    need: Need | None = None
    """Where it is, or goes as soon as `victims` are gone."""
    victims: tuple[str, ...] = ()
    """Who goes for it."""
    planned: Mapping[str, int] = field(default_factory=dict)
    """By memory, what was planned for the process that is there; `need` has what is booked."""
    measured: Measured = field(default_factory=dict)
    """By memory, what its process said it allocated."""
    free: Mapping[str, int] = field(default_factory=dict)
    """By memory, what was free when it was placed."""
    observed: dict[tuple[str, ...], dict[str, int]] = field(default_factory=dict)
    """By devices and then memory, what it turned out to need at least."""
    tries: int = 0
    """Loads in a row that failed for want of memory."""
    is_looked_for: bool = False
    """Its header is being read."""
    is_saving: bool = False
    is_yielding: bool = False
    """It lets no newcomers through, for somebody who waited long for its place."""
    lost_generation: int = 0
    """Its process that is dead, though nobody has waited for it yet."""
    is_removed: bool = False
    """It is in no folder and no configuration any more."""
    retry_s: float | None = None
    """When time alone may change what is decided for it."""
    not_before_s: float = 0.0
    """No load is tried before, after it failed."""
    started_s: float = 0.0
    ready_s: float = 0.0
    used_s: float = 0.0
    drained_s: float = 0.0
    """When it may drain no longer."""
    crashed_s: list[float] = field(default_factory=list)
    """When it crashed lately."""
    exit_kind: ExitKind = ExitKind.NEVER_STARTED
    error: CorralError | None = None
    progress: Progress = field(default_factory=Progress)
    counts: Counts = field(default_factory=Counts)
    sessions: SessionTotals = field(default_factory=SessionTotals)
    pid: int | None = None

    @property
    def name(self) -> str:
        """What it is called."""
        return self.entry.name

    @property
    def is_wanted(self) -> bool:
        """Whether it is to be loaded."""
        return bool(self.waiting) or self.is_kept

    @property
    def priority(self) -> int:
        """Of those that wait, the highest is next."""
        return self.entry.preset.priority

    def idle_deadline_s(self) -> float | None:
        """Return when it is to go for being idle; None is never, or not as things are."""
        ttl_s = self.entry.preset.ttl_s
        is_idle = self.state is ModelState.READY and not self.running and not self.waiting
        return self.used_s + ttl_s if ttl_s is not None and is_idle and not self.is_pinned else None

    def holder(self, seen: Mapping[str, int]) -> Holder | None:
        """Return what it holds or has reserved; None if that is nothing.

        Args:
            seen: by memory, what a reading shows of its process while it loads.
        """
        if self.need is None:
            return None
        needed = self.need.bytes
        is_coming = self.state in (ModelState.PLANNING, ModelState.LOADING)
        unseen = {memory: max(0, size - seen.get(memory, 0)) for memory, size in needed.items()}
        return Holder(
            name=self.name,
            bytes=needed,
            unseen=unseen if is_coming else {},
            is_pinned=self.is_pinned,
            is_busy=bool(self.running),
            is_loading=is_coming,
            is_leaving=self.state in (ModelState.DRAINING, ModelState.STOPPING),
            ready_s=self.ready_s,
            used_s=self.used_s,
            priority=self.priority,
        )

    def status(self) -> ModelStatus:
        """Return what is told of it."""
        return ModelStatus(
            name=self.name,
            aliases=self.entry.preset.aliases,
            state=self.state,
            exit_kind=self.exit_kind,
            reason=self.reason,
            error_code=self.error.code if self.error else "",
            error=str(self.error) if self.error else "",
            is_pinned=self.is_pinned,
            stage=self.progress.stage,
            done=self.progress.done,
            total=self.progress.total,
            waiting=len(self.waiting),
            running=len(self.running),
            held=self._held(),
            generation=self.generation,
            loads=self.counts.loads,
            evictions=self.counts.evictions,
            crashes=self.counts.crashes,
            load_s=self.counts.load_s,
            pid=self.pid,
            sessions=self.sessions,
        )

    def _held(self) -> tuple[HeldBytes, ...]:
        if self.need is None or not self.state.holds_bytes:
            return ()
        return tuple(self._held_of(memory, size) for memory, size in self.planned.items())

    def _held_of(self, memory: str, planned: int) -> HeldBytes:
        lifetimes = self.measured.get(memory)
        return HeldBytes(
            device=memory,
            planned_bytes=planned,
            measured_bytes=None if lifetimes is None else sum(lifetimes.values()),
            lifetimes=dict(lifetimes or {}),
        )
