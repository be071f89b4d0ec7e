"""The life of a worker: greet, load, serve, drain, exit. The parent is at the other end.

    greet ─▶ Start ─▶ load ──▶ serve ──▶ drain ──▶ save ──▶ exit 0
               │        │        │ fault
               ▼        ▼        ▼
             exit of WorkerExit, which says why

Whatever happens while the model loads ends the process at once: the system then gives back all of
it. It never ends in the middle of a request without a word, unless it is killed.
"""

import argparse
import os
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import NoReturn

from corral import log
from corral.config import settings
from corral.contract import wire
from corral.contract.events import FinishEvent, FinishReason, described, error_event
from corral.contract.questions import Answer
from corral.contract.sessions import SessionsRestored, SessionsSaved
from corral.contract.worker import WorkerExit, WorkerSpec
from corral.engine.opened import OpenedModel, Sizes, open_by_name
from corral.engine.serving import EngineService
from corral.engine.sessions.sessions import Sessions
from corral.engine.targets import Targets
from corral.errors import Closed, CorralError, DeviceFault, ProtocolError
from corral.worker.complaints import complaining
from corral.worker.outbox import Outbox
from corral.worker.parent import die_with

_POLL_S = 0.05
"""How often a drain looks whether it is to be cut short."""
_PROGRESS_S = 0.1
"""Progress within one stage is told no more often than this."""
_log = log.logger(__name__)


def main(arguments: list[str]) -> int:
    """Run a worker that was given a connected socket; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m corral.worker")
    parser.add_argument("--fd", type=int, required=True, help="a connected stream socket")
    parser.add_argument("--parent", type=int, required=True, help="the process to die with")
    given = parser.parse_args(arguments)
    if not die_with(given.parent):
        return WorkerExit.PARENT_GONE
    log.configure(log.verbosity_of(settings().log_level))
    with socket.socket(fileno=given.fd) as connection:
        connection.set_inheritable(False)  # a helper that kept it open would hide our end
        return _work(wire.Channel(connection, wire.commands))


def _work(channel: wire.Channel[wire.Command]) -> WorkerExit:
    """Greet whoever is there, and do what is wanted."""
    try:
        channel.greet()
        first = channel.receive()
    except (EOFError, OSError):
        return WorkerExit.PARENT_GONE
    except ProtocolError as error:
        _log.error("%s", error)
        return WorkerExit.PROTOCOL
    if first is None:
        return WorkerExit.PARENT_GONE
    if not isinstance(first, wire.Start):
        _log.error("a worker was told %s before anything else", type(first).__name__)
        return WorkerExit.PROTOCOL
    return Worker(channel, first.spec).run()


class Worker:
    """One model, served to one connection."""

    def __init__(self, channel: wire.Channel[wire.Command], spec: WorkerSpec) -> None:
        self._channel = channel
        self._spec = spec
        self._outbox = Outbox(channel)
        self._service: EngineService | None = None
        self._sessions: Sessions | None = None
        self._restored: SessionsRestored | None = None
        self._ends: SimpleQueue[tuple[WorkerExit, float]] = SimpleQueue()
        """Why to end, and how many seconds running requests get."""
        self._inquiries: dict[int, Future[Answer]] = {}
        """Questions that somebody waits for; those that the service has answered leave first."""

    def run(self) -> WorkerExit:
        """Load, serve until there is a reason to end, and end; errors in its log are passed on."""
        with complaining(self._outbox):
            return self._run()

    def _run(self) -> WorkerExit:
        signal.signal(signal.SIGTERM, lambda *_: self._end(WorkerExit.STOPPED, self._spec.drain_s))
        Thread(target=self._read, name="corral-reader", daemon=True).start()
        try:
            service = self._load()
        except Exception as error:
            if not isinstance(error, CorralError):
                _log.error("the model could not be loaded", exc_info=True)
            self._outbox.send(wire.Failed(*described(error)))
            self._outbox.close()
            return WorkerExit.LOAD_FAILED
        self._service = service
        self._outbox.send(wire.Ready(service.description, self._restored))
        code = self._wait(service)
        if service.fault is not None:
            self._outbox.close()
            _exit_now(code)  # nothing of a device that failed is worth waiting for
        service.close(before_end=self._save if code is WorkerExit.STOPPED else _nothing)
        self._outbox.close()
        self._channel.shut()
        return code

    def _load(self) -> EngineService:
        spec = self._spec
        spec.validate()
        opened = open_by_name(
            Path(spec.model),
            Targets.of(spec.devices, spec.split, spec.gpu_layers),
            Sizes(
                spec.context,
                spec.parallel,
                spec.kv_type,
                spec.kv_blocks,
                spec.chunk_beside,
                spec.embeddings,
                spec.context_shift,
                spec.keep,
            ),
            threads=spec.threads,
            template=spec.template,
            isolates_template=True,
            identifies=spec.sessions is not None,
            progress=_seldom(lambda *told: self._outbox.send(wire.Progress(*told))),
        )
        try:
            for one in spec.adapters:
                adapter = opened.adapters.prepare(Path(one.path))
                opened.adapters.add(adapter, scale=one.scale)
            self._restore(opened)
        except BaseException:
            opened.close()
            raise
        return EngineService(
            opened,
            name=spec.name,
            queue_capacity=spec.queue_capacity,
            after_step=self._after_step,
        )

    def _restore(self, opened: OpenedModel) -> None:
        """Know the conversations again that an earlier process left."""
        spec = self._spec
        if spec.sessions is None:
            return
        self._outbox.send(wire.Progress("sessions", 0, 0))
        folder, quota = Path(spec.sessions), spec.sessions_bytes
        self._sessions = Sessions(opened, folder, quota_bytes=quota)
        self._restored = self._sessions.restore(spec.sessions_s)

    def _save(self) -> None:
        """Leave conversations to the next process; a further reason to end cuts it short."""
        if self._sessions is None:
            return
        try:
            saved = self._sessions.save(self._spec.sessions_s, lambda: not self._ends.empty())
        except Exception as error:  # nobody waits for more than the end of this process
            _log.error("conversations could not be saved", exc_info=True)
            saved = SessionsSaved(reason=described(error)[1])
        self._outbox.send(wire.Saved(saved))

    def _wait(self, service: EngineService) -> WorkerExit:
        """Wait for a reason to end, then for running requests, as long as they may take."""
        code, seconds = self._ends.get()
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and not service.drain(min(left, _POLL_S)):
            if not self._ends.empty():  # a more urgent reason, or the same once more: now
                later, _ = self._ends.get()
                return code if later is WorkerExit.STOPPED else later
        return code

    def _end(self, code: WorkerExit, seconds: float) -> None:
        """Have the process end; safe in a signal handler and in any thread."""
        if self._service is None:
            _exit_now(code)
        self._ends.put((code, seconds))

    def _after_step(self) -> None:
        self._outbox.flush()
        fault = self._service.fault if self._service is not None else None
        if fault is not None:
            is_device = isinstance(fault, DeviceFault)
            code = WorkerExit.DEVICE_FAULT if is_device else WorkerExit.INTERNAL
            self._outbox.send(wire.Failed(*described(fault)))
            self._ends.put((code, 0.0))

    # What follows runs in the reading thread.

    def _read(self) -> None:
        try:
            while (command := self._channel.receive()) is not None:
                self._obey(command)
            self._end(WorkerExit.PARENT_GONE, 0.0)
        except ProtocolError as error:
            _log.error("%s", error)
            self._end(WorkerExit.PROTOCOL, 0.0)

    def _obey(self, command: wire.Command) -> None:
        match command:
            case wire.Submit():
                self._submit(command)
            case wire.Cancel(request_id=request_id):
                if self._service is not None:
                    self._service.cancel(request_id)
            case wire.Ask():
                self._ask(command)
            case wire.Forget(number=number):
                given_up = self._inquiries.pop(number, None)
                if given_up is not None:
                    given_up.cancel()
            case wire.Stop(drain_s=seconds):
                self._end(WorkerExit.STOPPED, seconds)
            case wire.Start():
                raise ProtocolError("a worker was told to start twice")

    def _submit(self, command: wire.Submit) -> None:
        request = command.request
        try:
            if self._service is None:
                raise ProtocolError("a worker got a request before its model was loaded")
            self._service.submit(request, self._outbox.put)
        except Exception as error:
            refused = error_event(request.request_id, error)
            last = FinishEvent(request_id=request.request_id, reason=FinishReason.ERROR)
            self._outbox.send(wire.Happened((refused, last)))

    def _ask(self, asked: wire.Ask) -> None:
        try:
            if self._service is None:
                raise ProtocolError("a worker was asked before its model was loaded")
            coming = self._service.inquire(asked.question)
        except CorralError as error:
            self._outbox.send(wire.Refused(asked.number, *described(error)))
        else:
            self._inquiries[asked.number] = coming
            coming.add_done_callback(partial(self._answer, asked.number))

    def _answer(self, number: int, coming: Future[Answer]) -> None:
        """Tell an answer, or why there is none; from any thread."""
        if self._inquiries.pop(number, None) is None:
            return  # nobody waits any more
        try:
            self._outbox.send(wire.Answered(number, coming.result()))
        except CancelledError:
            self._outbox.send(wire.Refused(number, *described(Closed("the worker ends"))))
        except Exception as error:
            if not isinstance(error, CorralError):
                _log.error("a question has no answer", exc_info=True)
            self._outbox.send(wire.Refused(number, *described(error)))


def _nothing() -> None:
    """Leave nothing behind."""


def _exit_now(code: WorkerExit) -> NoReturn:
    """End without a farewell: nobody waits for anything yet."""
    os._exit(code)


def _seldom(tell: Callable[[str, int, int], None]) -> Callable[[str, int, int], None]:
    """Return a function that passes progress on, within one stage not too often."""
    last_stage, last_at = "", 0.0

    def pass_on(stage: str, done: int, total: int) -> None:
        nonlocal last_stage, last_at
        now = time.monotonic()
        if stage != last_stage or done == total or now - last_at >= _PROGRESS_S:
            last_stage, last_at = stage, now
            tell(stage, done, total)

    return pass_on
