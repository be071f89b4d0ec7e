"""Keeps one model served: starts its worker, sees it die, starts it again, ends it.

What there is to use, and all of it from any thread:

    worker = supervise(spec)         a `contract.service.Service`: submit, cancel, inquire, ask
    worker.status                    WorkerStatus: state, loading progress, restarts, pid, error
    worker.state                     the WorkerState of that
    worker.description               Description, once the model was loaded; it holds the planned
                                     and allocated bytes by device and lifetime
    worker.resident_bytes            main memory the process holds, or None
    worker.output                    the last lines the process wrote to its stderr
    worker.restored                  SessionsRestored: what the process knows of earlier ones
    worker.wait_until_ready(s)       until it is READY; raises what made it fail
    worker.drain()                   SessionsSaved, once it has ended what runs and saved sessions
    worker.close()                   drain, then SIGTERM, then SIGKILL; nothing is left

One thread of its own starts the process, reads from it and waits for it: a worker dies with the
thread that started it.
"""

import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Self

from corral.contract import wire
from corral.contract.events import error_of
from corral.contract.messages import GenerationRequest
from corral.contract.questions import Answer, Description, Question
from corral.contract.service import Deliver
from corral.contract.sessions import SessionsRestored, SessionsSaved
from corral.contract.worker import WorkerExit, WorkerSpec, WorkerState, WorkerStatus
from corral.errors import Closed, CorralError, ProtocolError, TimeLimitExceeded, WorkerLost
from corral.log import logger
from corral.router.process import WorkerProcess, resident_bytes
from corral.router.remote import RemoteService
from corral.router.watchdog import STUCK_S, Watchdog

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
MOST_CRASHES = 5
CRASH_WINDOW_S = 120.0
"""More than so many deaths in so many seconds, and no further start is tried."""
_SHOWN_LINES = 20
_TERM_S = 3.0
"""How long a worker may take to end beyond its drain, and again after SIGTERM."""
_log = logger(__name__)


def supervise(
    spec: WorkerSpec,
    *,
    stuck_s: float | None = STUCK_S,
    command: tuple[str, ...] = (),
    restarts: bool = True,
    on_change: Callable[[WorkerStatus], None] | None = None,
) -> "Supervisor":
    """Start a worker and keep it; returns at once, while it loads.

    Args:
        stuck_s: how long a step may take, or a worker be silent, before it is killed and another
            one started; None waits for ever.
        restarts: whether another process is started when one dies; else its end is FAILED.
        on_change: hears of every new status, in the supervisor's own thread; it returns at once
            and raises nothing.

    Raises:
        InvalidArgument: if the spec cannot be.
    """
    spec.validate()
    return Supervisor(spec, stuck_s, command, restarts=restarts, on_change=on_change)


class Supervisor:
    """A worker that is there as long as this is, whatever happens to its process."""

    def __init__(
        self,
        spec: WorkerSpec,
        stuck_s: float | None,
        command: tuple[str, ...] = (),
        *,
        restarts: bool = True,
        on_change: Callable[[WorkerStatus], None] | None = None,
    ) -> None:
        """Use `supervise`."""
        self.spec = spec
        self._may_restart = restarts
        self._on_change = on_change
        self._exit_status: int | None = None
        self._stuck_s = stuck_s
        self._command = command
        self._changed = threading.Condition()
        """Guards all that follows; notified when the state changes or an end is wanted."""
        self._status = WorkerStatus(state=WorkerState.LOADING)
        self._is_closing = False
        self._process: WorkerProcess | None = None
        self._remote: RemoteService | None = None
        self._description: Description | None = None
        self._restored: SessionsRestored | None = None
        self._saved: SessionsSaved | None = None
        self._ending = threading.Lock()
        """Held while the process is made to end."""
        self._error: CorralError | None = None
        self._restarts = 0
        self._crashes: deque[float] = deque(maxlen=MOST_CRASHES)
        self._thread = threading.Thread(target=self._keep, name="corral-supervisor", daemon=True)
        self._thread.start()

    @property
    def status(self) -> WorkerStatus:
        """What is known of the worker now."""
        return self._status

    @property
    def state(self) -> WorkerState:
        """Where the worker is in its life."""
        return self._status.state

    @property
    def description(self) -> Description | None:
        """What the worker runs; None until it was ready once."""
        return self._description

    @property
    def resident_bytes(self) -> int | None:
        """Bytes of main memory that the process holds; None if there is none, or nobody tells."""
        pid = self._status.pid
        return None if pid is None else resident_bytes(pid)

    @property
    def output(self) -> tuple[str, ...]:
        """The last lines that the process wrote, for people to read."""
        process = self._process
        return () if process is None else process.output

    @property
    def restored(self) -> SessionsRestored | None:
        """What the last process that was ready found on disk; None if it keeps no sessions."""
        return self._restored

    def submit(self, request: GenerationRequest, deliver: Deliver) -> None:
        """Queue a request and return; raises as `contract.service.Service` says."""
        if self._is_closing:
            raise Closed(f"the worker of {self._name} is about to end: it takes no request")
        self._ready().submit(request, deliver)

    def cancel(self, request_id: str) -> None:
        """End a request soon; an unknown or finished one is no error."""
        remote = self._remote
        if remote is not None:
            remote.cancel(request_id)

    def inquire(self, question: Question) -> Future[Answer]:
        """Ask a question; raises as `contract.service.Service` says."""
        return self._ready().inquire(question)

    def ask(self, question: Question, *, timeout_s: float) -> Answer:
        """Wait for the answer to a question; raises as `contract.service.Service` says."""
        return self._ready().ask(question, timeout_s=timeout_s)

    def wait_until_ready(self, timeout_s: float) -> Description:
        """Wait until the model is loaded, for so many seconds at most.

        Raises:
            TimeLimitExceeded: if it is not loaded then.
            Closed: if it was closed.
            CorralError: what made it fail for good.
        """
        over = (WorkerState.READY, WorkerState.FAILED, WorkerState.CLOSED)
        with self._changed:
            if not self._changed.wait_for(lambda: self.state in over, timeout_s):
                raise TimeLimitExceeded(f"the model was not loaded in {timeout_s:g} s")
            self._ready()
            assert self._description is not None
            return self._description

    def drain(self) -> SessionsSaved | None:
        """Let what runs end as the spec says, and wait until sessions are saved; return which.

        None if none are kept, or if the process ended before it said so. It takes no request any
        more, and `close` is still to be called.
        """
        self._begin_to_end()
        over = (WorkerState.FAILED, WorkerState.CLOSED)
        with self._changed:
            self._changed.wait_for(
                lambda: self._saved is not None or self.state in over, self._longest_end_s
            )
            return self._saved

    def close(self) -> None:
        """Let what runs end as the spec says, then end the process; a second call only waits."""
        process = self._begin_to_end()
        with self._ending:
            if process is not None and not process.wait(self._longest_end_s):
                process.terminate()  # its second reason to end: it then waits for nobody
                if not process.wait(_TERM_S):
                    process.kill()
        self._thread.join()

    def _begin_to_end(self) -> WorkerProcess | None:
        """Tell the process to end, if it was not told before; return it."""
        with self._changed:
            is_first, self._is_closing = not self._is_closing, True
            process, remote = self._process, self._remote
            self._changed.notify_all()
        if is_first and remote is not None:
            remote.stop(self.spec.drain_s)
        return process

    @property
    def _longest_end_s(self) -> float:
        saving_s = 0.0 if self.spec.sessions is None else self.spec.sessions_s
        return self.spec.drain_s + saving_s + _TERM_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ready(self) -> RemoteService:
        """Return the connection if the model is loaded, else say why there is none."""
        remote, status = self._remote, self._status
        match status.state:
            case WorkerState.READY if remote is not None:
                return remote
            case WorkerState.FAILED if self._error is not None:
                raise error_of(self._error.code, str(self._error))
            case WorkerState.CLOSED:
                raise Closed(f"the worker of {self._name} was closed")
        raise WorkerLost(f"the worker of {self._name} is {status.state.value}: try again later")

    @property
    def _name(self) -> str:
        return self.spec.name or self.spec.model.rpartition("/")[2]

    # What follows runs in the supervisor's own thread.

    def _keep(self) -> None:
        """Run one process after another until there is a reason not to."""
        try:
            while not self._is_closing:
                failure = self._run_once()
                if self._is_closing:
                    break
                if failure is not None or self._is_loop():
                    self._fail(failure or self._loop_error())
                    return
                self._pause()
        except BaseException as error:  # of this code: nobody is left waiting for it
            _log.error("a supervisor stops", exc_info=True)
            self._fail(WorkerLost(f"the supervisor failed: {type(error).__name__}"))
            return
        self._tell(WorkerStatus(state=WorkerState.CLOSED, restarts=self._restarts))

    def _run_once(self) -> CorralError | None:
        """Start a process and go with it to its end; return why no other is to be tried."""
        try:
            process = WorkerProcess(self.spec, self._command)
        except WorkerLost as error:
            return error
        refused: list[CorralError] = []
        watchdogs: list[Watchdog] = []

        def watch(report: wire.Told) -> None:
            if isinstance(report, wire.Failed):
                refused.append(error_of(report.code, report.message))
            if isinstance(report, wire.Ready) and self._stuck_s is not None:
                watchdogs.append(Watchdog(remote, self._stuck_s, end))
            self._watch(report)

        def end(error: CorralError) -> None:
            refused.append(error)
            remote.give_up(error)
            process.kill()

        remote = RemoteService(process.channel, watch, queue_capacity=self.spec.queue_capacity)
        with self._changed:
            self._process, self._remote = process, remote
        self._tell(self._loading(process.pid))
        try:
            process.channel.greet()
            process.channel.send(wire.Start(self.spec))
            if self._is_closing:  # who closes may have spoken before anybody listened
                process.kill()
        except ProtocolError as error:
            refused.append(error)
        except (EOFError, OSError):  # it died at once: seen below
            _log.debug("a worker ended before it was told what to do")
        else:
            remote.read()
        for watchdog in watchdogs:
            watchdog.end()
        return self._ended(process, refused[-1] if refused else None)

    def _ended(self, process: WorkerProcess, error: CorralError | None) -> CorralError | None:
        """Clear a process away; return its error if another process would meet the same."""
        pid, status = process.pid, process.reap()
        self._exit_status = status
        is_final = status in (WorkerExit.LOAD_FAILED, WorkerExit.PROTOCOL)
        if error is not None and is_final:
            return error
        if not self._is_closing:
            error = error or WorkerLost(f"worker process {pid} {_how(status)}")
            _log.warning("%s: %s", self._name, error)
            for line in process.output[-_SHOWN_LINES:]:
                _log.info("worker %d: %s", pid, line)
            if not self._may_restart:
                return error
            self._restarts += 1
            self._error = error
            self._crashes.append(time.monotonic())
            self._tell(
                WorkerStatus(
                    state=WorkerState.RESTARTING,
                    restarts=self._restarts,
                    error_code=error.code,
                    error=str(error),
                )
            )
        return None

    def _watch(self, report: wire.Told) -> None:
        """Take what a process says of itself."""
        assert self._process is not None
        pid = self._process.pid
        if isinstance(report, wire.Progress):
            self._tell(self._loading(pid, report))
        elif isinstance(report, wire.Complained):
            _log.error("%s: worker %d: %s", self._name, pid, report.message)
        elif isinstance(report, wire.Saved):
            with self._changed:
                self._saved = report.sessions
                self._changed.notify_all()
        elif isinstance(report, wire.Ready):
            self._description, self._restored = report.description, report.restored
            self._tell(WorkerStatus(state=WorkerState.READY, restarts=self._restarts, pid=pid))

    def _loading(self, pid: int, progress: wire.Progress | None = None) -> WorkerStatus:
        told = progress or wire.Progress("", 0, 0)
        return WorkerStatus(
            state=WorkerState.LOADING,
            stage=told.stage,
            done=told.done,
            total=told.total,
            restarts=self._restarts,
            pid=pid,
        )

    def _fail(self, error: CorralError) -> None:
        self._error = error
        self._tell(
            WorkerStatus(
                state=WorkerState.FAILED,
                restarts=self._restarts,
                error_code=error.code,
                error=str(error),
                exit_status=self._exit_status,
            )
        )

    def _tell(self, status: WorkerStatus) -> None:
        with self._changed:
            self._status = status
            self._changed.notify_all()
        if self._on_change is not None:
            self._on_change(status)

    def _is_loop(self) -> bool:
        """Whether the process died too often lately."""
        is_full = len(self._crashes) == MOST_CRASHES
        return is_full and time.monotonic() - self._crashes[0] < CRASH_WINDOW_S

    def _loop_error(self) -> CorralError:
        return WorkerLost(
            f"the worker of {self._name} died {MOST_CRASHES} times in {CRASH_WINDOW_S:g} s and is "
            f"not started again; the last time: {self._error}"
        )

    def _pause(self) -> None:
        """Wait before another start, the longer the more often it died lately."""
        since = time.monotonic() - CRASH_WINDOW_S
        recent = sum(moment >= since for moment in self._crashes)
        seconds = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** max(0, recent - 1))
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing, seconds)


def _how(status: int) -> str:
    """Say how a process ended."""
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    known = {code.value: code.name.lower().replace("_", " ") for code in WorkerExit}
    return f"ended with status {status} ({known.get(status, 'unknown')})"
