"""Worker processes as the router has them: started for one load, watched, ended; never restarted.

Whether another process is started in place of one that died is decided for all models together.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from corral.contract.events import error_of
from corral.contract.questions import Description
from corral.contract.service import Service
from corral.contract.sessions import SessionsSaved
from corral.contract.worker import AdapterSpec, WorkerExit, WorkerSpec, WorkerState, WorkerStatus
from corral.errors import CorralError
from corral.log import logger
from corral.router.entry import HOST, ModelEntry
from corral.router.orphans import Records
from corral.router.placing import Machine, Need, Site
from corral.router.residence import Measured, Progress
from corral.router.scan import require_unchanged
from corral.router.supervisor import Supervisor, supervise
from corral.router.watchdog import STUCK_S

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Loading:
    """How far a process is."""

    progress: Progress
    pid: int | None


@dataclass(frozen=True, slots=True)
class Loaded:
    """A process is ready."""

    measured: Measured = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ended:
    """A process ended by itself."""

    error: CorralError
    is_refused: bool
    """Whether it said that it cannot load the model."""


News = Loading | Loaded | Ended
Watch = Callable[[News], None]
"""Hears of a process, in a thread of its own."""


class Child(Protocol):
    """A process that holds a model, or is about to."""

    @property
    def service(self) -> Service:
        """The model; it answers once the process is loaded."""
        ...

    @property
    def pid(self) -> int | None:
        """Number of the process; None before it is there."""
        ...

    def save(self) -> SessionsSaved | None:
        """Keep its sessions, where that is wanted, and return which; raises nothing."""
        ...

    def stop(self) -> None:
        """End the process, and return when nothing is left of it; a second call only waits."""
        ...


@dataclass(frozen=True, slots=True)
class Order:
    """What process is to be started."""

    entry: ModelEntry
    need: Need
    machine: Machine
    """As it was when the place was chosen."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """Where the sessions of models that go are kept."""

    folder: str
    quota_bytes: int = 8 << 30
    seconds: float = 20.0
    """That saving may take when a model goes, and restoring when it comes."""


Launch = Callable[[Order, Watch], Child]
"""Starts a process; raises CorralError if there is none."""


def sites_of(order: Order) -> tuple[Site, ...]:
    """Return the devices that a model was placed on, in the order of its layers."""
    named = {site.name: site for site in order.machine.sites}
    return tuple(named[name] for name in order.need.sites)


def spec_of(order: Order, keeping: Keeping | None = None) -> WorkerSpec:
    """Return what a worker is told: it sees its own cards and no others, and counts from 0."""
    preset, sites = order.entry.preset, sites_of(order)
    cards = [site for site in sites if site.uuid is not None]
    names = {site.name: f"cuda:{number}" for number, site in enumerate(cards)}
    return WorkerSpec(
        model=order.entry.paths[0],
        name=preset.name,
        devices=tuple(names.get(site.name, site.name) for site in sites),
        split=order.need.split,
        visible_devices=tuple(site.uuid for site in cards if site.uuid is not None),
        context=preset.context,
        parallel=preset.parallel,
        kv_type=preset.kv_type,
        kv_blocks=preset.kv_blocks,
        context_shift=preset.context_shift,
        keep=preset.keep,
        threads=preset.threads,
        chunk_beside=preset.chunk_beside,
        embeddings=preset.embeddings,
        template=preset.template,
        adapters=tuple(AdapterSpec(path, scale) for path, scale in preset.adapters),
        queue_capacity=preset.queue,
        drain_s=preset.drain_s,
        sessions=None if keeping is None else keeping.folder,
        sessions_bytes=0 if keeping is None else keeping.quota_bytes,
        sessions_s=0.0 if keeping is None else keeping.seconds,
    )


def measured_bytes(description: Description, sites: tuple[Site, ...]) -> Measured:
    """Return what a worker says it allocated, by its own names of devices."""
    cards = [site for site in sites if site.uuid is not None]
    memories = {f"cuda:{number}": site.memory for number, site in enumerate(cards)}
    sums: dict[str, dict[str, int]] = {}
    for row in description.memory:
        held = sums.setdefault(memories.get(row.device, HOST), {})
        held[row.lifetime] = held.get(row.lifetime, 0) + row.allocated_bytes
    return sums


class WorkerChild:
    """A supervised worker process."""

    def __init__(
        self,
        order: Order,
        watch: Watch,
        keeping: Keeping | None = None,
        *,
        records: Records | None = None,
        stuck_s: float | None = STUCK_S,
    ) -> None:
        """Start it; without `keeping` its sessions end with it.

        It is written down in `records` as long as it is there, and killed if a step takes longer
        than `stuck_s`.

        Raises:
            ModelNotFound: if a file of the model is gone.
            InvalidModelFile: if one was written since the header was read.
        """
        require_unchanged(order.entry)
        self._records = records
        self._sites = sites_of(order)
        self._watch = watch
        self._pid: int | None = None
        self._supervisor: Supervisor | None = None
        self._supervisor = supervise(
            spec_of(order, keeping), stuck_s=stuck_s, restarts=False, on_change=self._take
        )

    @property
    def service(self) -> Service:
        """The model."""
        assert self._supervisor is not None, "there from the beginning"
        return self._supervisor

    @property
    def pid(self) -> int | None:
        """Number of the process, after its end too."""
        return self._pid

    def save(self) -> SessionsSaved | None:
        """Have the process keep its sessions and end; it takes nothing new from now on."""
        assert self._supervisor is not None, "there from the beginning"
        saved = self._supervisor.drain()
        if saved is not None:
            told = _log.warning if saved.unsaved_sessions else _log.info
            told("%s: %s", self._supervisor.spec.name, saved)
        return saved

    def stop(self) -> None:
        """End the process."""
        assert self._supervisor is not None, "there from the beginning"
        self._supervisor.close()
        if self._records is not None and self._pid is not None:
            self._records.forget(self._pid)

    def _take(self, status: WorkerStatus) -> None:
        match status.state:
            case WorkerState.LOADING:
                self._note(status.pid)
                told = Progress(status.stage, status.done, status.total)
                self._watch(Loading(told, status.pid))
            case WorkerState.READY:
                self._watch(Loaded(self._measured()))
            case WorkerState.FAILED:
                is_refused = status.exit_status in (WorkerExit.LOAD_FAILED, WorkerExit.PROTOCOL)
                error = error_of(status.error_code, status.error)
                self._watch(Ended(error, is_refused))

    def _note(self, pid: int | None) -> None:
        if pid is not None and pid != self._pid:
            self._pid = pid
            if self._records is not None:
                self._records.note(pid)

    def _measured(self) -> Measured:
        supervisor = self._supervisor
        if supervisor is None or supervisor.description is None:
            return {}
        return measured_bytes(supervisor.description, self._sites)
