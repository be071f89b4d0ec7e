"""Many models behind one door: the states of a model, what is told of all, and what may be asked.

The one side is whoever answers clients, the other whoever keeps the models; neither knows the
other. All data is plain and frozen.
"""

import enum
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

import msgspec

from corral.contract.messages import GenerationRequest
from corral.contract.sampling import SamplingParams
from corral.contract.service import Deliver, Service
from corral.contract.sessions import SessionTotals
from corral.errors import ProtocolError

_T = TypeVar("_T")


class ModelState(enum.Enum):
    """Where a model is in its life; every arrow is taken under the router's one lock.

                  wanted             placed              loaded
        UNLOADED ────────▶ PLANNING ────────▶ LOADING ────────────▶ READY
          ▲  ▲                │ never fits       │ fails, dies        │ unload, idle, evicted
          │  │                ▼                  ▼                    ▼
          │  └─────────── FAILED ◀────────── (STOPPING)           DRAINING ──idle──▶ STOPPING
          │    wanted again: PLANNING            ▲                    │ dies            │
          │                                      └────────────────────┘                 │
          └───────────────────────── the process is gone, its bytes free ◀──────────────┘

    PLANNING holds no bytes; LOADING, READY, DRAINING and STOPPING hold what was booked for them.
    """

    UNLOADED = "unloaded"
    PLANNING = "planning"
    """It is wanted: its footprint is found, or it waits for room."""
    LOADING = "loading"
    """Its bytes are booked, and its process is on the way."""
    READY = "ready"
    DRAINING = "draining"
    """It takes nothing new and ends what runs; its sessions go to disk."""
    STOPPING = "stopping"
    """Its process is ending, and its bytes are not free yet."""
    FAILED = "failed"
    """`ModelStatus.exit_kind` and `error` say why."""

    @property
    def holds_bytes(self) -> bool:
        """Whether bytes are booked for a model in this state."""
        return self in _HOLDING


_HOLDING = {ModelState.LOADING, ModelState.READY, ModelState.DRAINING, ModelState.STOPPING}


class ExitKind(enum.Enum):
    """Why a model's last process ended."""

    NEVER_STARTED = "never_started"
    UNLOADED = "unloaded"
    """Somebody asked for it."""
    IDLE = "idle"
    """Nobody used it for its `ttl`."""
    EVICTED = "evicted"
    """Another model needed the room."""
    OUT_OF_MEMORY = "out_of_memory"
    LOAD_FAILED = "load_failed"
    CRASHED = "crashed"
    SHUT_DOWN = "shut_down"
    """The router ends."""


class HeldBytes(msgspec.Struct, frozen=True, kw_only=True):
    """What a model holds of one device."""

    device: str
    planned_bytes: int
    measured_bytes: int | None = None
    """What its process says it allocated; None until it is loaded."""
    lifetimes: dict[str, int] = msgspec.field(default_factory=dict)
    """The same by lifetime."""


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a model at one moment."""

    name: str
    aliases: tuple[str, ...] = ()
    state: ModelState = ModelState.UNLOADED
    exit_kind: ExitKind = ExitKind.NEVER_STARTED
    reason: str = ""
    """Of the last change of state, for people."""
    error_code: str = ""
    error: str = ""
    is_pinned: bool = False
    stage: str = ""
    done: int = 0
    total: int = 0
    """Of `done`, while it loads; 0 if that is not known."""
    waiting: int = 0
    running: int = 0
    held: tuple[HeldBytes, ...] = ()
    generation: int = 0
    """How many processes were started for it; each has a number of its own."""
    loads: int = 0
    evictions: int = 0
    crashes: int = 0
    load_s: float | None = None
    """How long the last load took."""
    pid: int | None = None
    sessions: SessionTotals = SessionTotals()


class DeviceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A memory as the router sees it; None is unknown."""

    memory: str
    """`host`, or the UUID of a card."""
    name: str
    total_bytes: int | None
    free_bytes: int | None
    booked_bytes: int
    margin_bytes: int
    budget_bytes: int | None = None
    foreign_bytes: int | None = None
    source: str = ""


class FleetStatus(msgspec.Struct, frozen=True, kw_only=True):
    """All models and devices at one moment."""

    models: tuple[ModelStatus, ...]
    devices: tuple[DeviceStatus, ...] = ()
    waiting: int = 0
    longest_wait_s: float = 0.0
    """How long the oldest request waits without any load under way; 0 while one is."""
    is_closing: bool = False


class FleetEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something happened to a model."""

    number: int
    at: float
    """Seconds since the epoch."""
    model: str
    state: ModelState
    reason: str = ""
    stage: str = ""
    done: int = 0
    total: int = 0


class Verdict(enum.Enum):
    """What would happen if a model were asked for now."""

    LOADED = "loaded"
    FITS = "fits"
    EVICTS = "evicts"
    """It fits when others have gone."""
    WAITS = "waits"
    """It fits when those that are busy have ended."""
    NEVER = "never"


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a model would fit, where, and what would go for it."""

    model: str
    verdict: Verdict
    held: tuple[HeldBytes, ...] = ()
    """What it would hold, by device."""
    evicts: tuple[str, ...] = ()
    needed_bytes: int = 0
    available_bytes: int | None = None
    """The most there could be for it; None where nothing lacks, or nobody knows."""
    holders: tuple[str, ...] = ()
    """Who holds what lacks."""
    reason: str = ""


def fleet_status_of(reply: object) -> FleetStatus:
    """Return what JSON says of a fleet; raises ProtocolError if it says something else."""
    return _converted(reply, FleetStatus)


def plan_answer_of(reply: object) -> PlanAnswer:
    """Return what JSON says of a plan; raises ProtocolError if it says something else."""
    return _converted(reply, PlanAnswer)


def _converted(reply: object, kind: type[_T]) -> _T:
    try:
        return msgspec.convert(reply, kind)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"the reply is no {kind.__name__}: {error}") from error


class Hold(Protocol):
    """A model that stays loaded until it is given back."""

    @property
    def service(self) -> Service:
        """The model, ready to answer."""
        ...

    def release(self) -> None:
        """Give the model back; a second call does nothing."""
        ...


class Fleet(Protocol):
    """Models by name, loaded when they are wanted. Every method may be called from any thread."""

    def find(self, name: str) -> str:
        """Return the one name of the model that a name or alias means.

        Raises:
            ModelNotFound: there is none.
        """
        ...

    def names(self) -> tuple[str, ...]:
        """Return the own names of all models."""
        ...

    def sampling(self, model: str) -> SamplingParams:
        """Return what counts for a model where a request does not say."""
        ...

    def status(self) -> FleetStatus:
        """Return what is known of everything."""
        ...

    def model_status(self, model: str) -> ModelStatus:
        """Return what is known of one model."""
        ...

    def submit(self, model: str, request: GenerationRequest, deliver: Deliver) -> None:
        """Queue a request and return; it is answered when its model is loaded.

        What goes wrong with the load arrives as its ErrorEvent.

        Raises:
            InvalidArgument: the id belongs to a live request.
            QueueFull: as many requests wait as may.
            ModelNotFound: there is no such model.
            Closed: the router ends.
        """
        ...

    def cancel(self, request_id: str) -> None:
        """End a request soon; a load that was started goes on."""
        ...

    def hold(self, model: str) -> "Future[Hold]":
        """Load a model and keep it until the hold is released; cancel the future to give up.

        Raises:
            QueueFull: as many requests wait as may.
            ModelNotFound: there is no such model.
            Closed: the router ends.
        """
        ...

    def peek(self, model: str) -> Service | None:
        """Return a model that is loaded, to look at it; None if it is not.

        It counts as no use of the model, which may go at any time.
        """
        ...

    def load(self, model: str) -> None:
        """Have a model loaded, and return; `subscribe` tells how it goes."""
        ...

    def unload(self, model: str) -> None:
        """Have a model's process end when what runs has ended, and return."""
        ...

    def pin(self, model: str, is_pinned: bool) -> None:
        """Keep a model from being evicted or unloaded for being idle, or no longer."""
        ...

    def reload(self) -> tuple[str, ...]:
        """Read the configuration and the folders again; return what changed, for people.

        Raises:
            CorralError: something in them is wrong; then nothing changes.
        """
        ...

    def plan(self, model: str) -> PlanAnswer:
        """Say what would happen if a model were asked for now; nothing is done."""
        ...

    def subscribe(self, listen: Callable[[FleetEvent], None]) -> Callable[[], None]:
        """Have events told, from any thread, until the returned function is called."""
        ...
