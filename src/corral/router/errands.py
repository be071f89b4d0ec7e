"""What takes its time: processes are started, saved and ended, memories and headers are read.

Each errand runs in a thread that waits for it, and what came of it happens under the lock.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from corral.contract.service import Service
from corral.contract.sessions import SessionsSaved
from corral.errors import CorralError
from corral.log import logger
from corral.router.children import Child, Ended, Launch, Loaded, Loading, News, Order
from corral.router.effects import Confirm, Effect, Find, Look, Save, Start, Stop
from corral.router.entry import ModelEntry
from corral.router.placing import Machine
from corral.router.residents import Residents
from corral.router.sight import Sight, Sights

Happen = Callable[[float], list[Effect]]
Apply = Callable[[Happen], None]
"""Lets something happen under the lock, and has done what it leads to."""
_log = logger(__name__)


class Catalog(Protocol):
    """Which models there are."""

    def entries(self) -> Sequence[ModelEntry]:
        """Return every model."""
        ...

    def planned(self, name: str) -> ModelEntry:
        """Return a model with its header read, before those that nobody asks for."""
        ...

    def reload(self) -> Sequence[str]:
        """Look again; return what changed, for people; raises and changes nothing on mistakes."""
        ...


class Errands:
    """Who runs for a router."""

    def __init__(
        self,
        residents: Residents,
        lock: threading.Condition,
        apply: Apply,
        *,
        catalog: Catalog,
        launch: Launch,
        sights: Sights,
    ) -> None:
        """Run errands for models, whose records are read under the lock."""
        self._residents = residents
        self._lock = lock
        self._apply = apply
        self._catalog = catalog
        self._launch = launch
        self._sights = sights
        self._children: dict[tuple[str, int], Future[Child]] = {}
        """Those that were ordered, until nothing is left of them; guarded by the lock."""

    def expect(self, start: Start) -> None:
        """Know of a process before it is there; under the lock, so that its end may come first."""
        self._children[start.model, start.generation] = Future()

    def service(self, model: str, generation: int) -> Service | None:
        """Return a process that was loaded; None if it is cleared away."""
        with self._lock:
            child = self._children.get((model, generation))
        return None if child is None else child.result().service

    def pids(self) -> dict[str, int]:
        """Return the processes that are there, by model; under the lock."""
        there = {key: child for key, child in self._children.items() if child.done()}
        pids = {
            model: child.result().pid
            for (model, _), child in there.items()
            if child.exception() is None
        }
        return {model: pid for model, pid in pids.items() if pid is not None}

    def run(self, errand: Find | Look | Start | Save | Stop | Confirm) -> None:
        """Do what an order says, and wait for it."""
        try:
            match errand:
                case Find():
                    self._find(errand.model)
                case Look():
                    self._look(errand)
                case Start():
                    self._start(errand)
                case Save():
                    self._save(errand)
                case Stop() | Confirm():
                    self._stop(errand)
        except Exception:  # of this code: the model stays where it is, and the log says why
            _log.error("%s was not carried out", errand, exc_info=True)

    def _find(self, model: str) -> None:
        try:
            entry = self._catalog.planned(model)
        except CorralError as error:
            failure = error
            self._apply(lambda now: self._residents.not_found(model, failure, now))
        else:
            self._apply(lambda now: self._residents.found(entry, now))

    def _look(self, look: Look) -> None:
        sight = self._sights.newest(0.0)

        def take(now: float) -> list[Effect]:
            seen = self._sights.seen(sight, self.pids())
            return self._residents.looked(look.number, sight.machine, seen, now)

        self._apply(take)

    def _start(self, start: Start) -> None:
        model, generation = start.model, start.generation
        with self._lock:
            entry, machine = self._residents.residence(model).entry, self._residents.machine
            coming = self._children[model, generation]
        try:
            order = Order(entry, start.need, machine or Machine((), ()))
            coming.set_result(self._launch(order, lambda news: self._hear(model, generation, news)))
        except Exception as error:
            coming.set_exception(error)
            told = error if isinstance(error, CorralError) else CorralError(type(error).__name__)
            self._hear(model, generation, Ended(told, is_refused=True))

    def _hear(self, model: str, generation: int, news: News) -> None:
        residents = self._residents
        match news:
            case Loading(progress=progress, pid=pid):
                self._apply(lambda now: residents.progressed(model, generation, progress, pid, now))
            case Loaded(measured=measured):
                self._apply(lambda now: residents.loaded(model, generation, measured, now))
            case Ended(error=error, is_refused=is_refused):
                self._apply(
                    lambda now: residents.ended(
                        model, generation, error, now, is_refused=is_refused
                    )
                )

    def _save(self, save: Save) -> None:
        with self._lock:
            child = self._children[save.model, save.generation]
        kept: SessionsSaved | None = None
        try:
            kept = child.result().save()
        finally:
            key = save.model, save.generation
            self._apply(lambda now: self._residents.saved(*key, now, kept))

    def _stop(self, stop: Stop | Confirm) -> None:
        key = stop.model, stop.generation
        with self._lock:
            coming = self._children[key]
            need = self._residents.residence(stop.model).need
        if coming.exception() is None:
            child = coming.result()
            pid = child.pid
            before = self._seen_before(stop, pid)
            child.stop()
            if pid is not None and need is not None:
                self._sights.wait_until_left(pid, need.bytes, before)

        def clear(now: float) -> list[Effect]:
            del self._children[key]
            return self._residents.gone(*key, now)

        self._apply(clear)

    def _seen_before(self, stop: Stop | Confirm, pid: int | None) -> Sight | None:
        """Return what memory showed of a process while it was there; None if nothing did."""
        if isinstance(stop, Stop):
            return self._sights.newest(0.0)
        last = self._sights.last  # it has ended: what is read from now on shows it no more
        return last if last is not None and pid is not None and last.lists(pid) else None
