"""Worker processes written down, so that the router that comes after one that died finds them.

A worker dies with its router by the system's own means; this is for where those fail. A number is
only ever acted upon if the process has the start that was written down: numbers are used again.
"""

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from corral.log import logger

_LONGEST_RECORD = 256
_WAIT_S = 5.0
_POLL_S = 0.02
_STARTED_FIELD = 19
"""Of /proc/PID/stat, counted behind the name of the program; see proc(5)."""
_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """A process: its number, and when it started, in ticks since the system did."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "Identity | None":
        """Return which process has a number now; None if there is none, or it has ended."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
            state, *fields = text.rpartition(")")[2].split()
            return None if state in "ZX" else cls(pid, int(fields[_STARTED_FIELD - 1]))
        except (OSError, ValueError, IndexError):
            return None

    @property
    def is_there(self) -> bool:
        """Whether that very process runs."""
        return Identity.of(self.pid) == self


class Records:
    """Which workers belong to which router: one file a worker."""

    def __init__(self, folder: Path) -> None:
        """Keep files in a folder of this user's."""
        self._folder = folder

    def note(self, pid: int) -> None:
        """Write down a worker of this process; what cannot be written is no error."""
        worker, own = Identity.of(pid), Identity.of(os.getpid())
        if worker is None or own is None:
            return
        text = f"{worker.pid} {worker.started} {own.pid} {own.started}\n"
        try:
            (self._folder / str(pid)).write_text(text)
        except OSError as error:
            _log.warning("worker %d is not written down: %s", pid, error)

    def forget(self, pid: int) -> None:
        """Strike a worker that is gone."""
        with suppress(OSError):
            (self._folder / str(pid)).unlink()

    def sweep(self) -> list[int]:
        """End workers whose router is gone, wait until they are, and return their numbers."""
        swept = []
        for file in self._files():
            worker, router = _read(file)
            if router is not None and router.is_there:
                continue
            if worker is not None and worker.is_there:
                _log.warning("worker %d was left by a router that is gone: it is ended", worker.pid)
                swept.append(worker.pid)
                _end(worker)
            with suppress(OSError):
                file.unlink()
        return swept

    def _files(self) -> list[Path]:
        try:
            return [file for file in self._folder.iterdir() if file.name.isdigit()]
        except OSError:
            return []


def _read(file: Path) -> tuple[Identity | None, Identity | None]:
    """Return the worker and the router of a record; None where it cannot be read."""
    try:
        with file.open("rb") as opened:
            numbers = [int(word) for word in opened.read(_LONGEST_RECORD).split()]
        pid, started, router_pid, router_started = numbers
    except (OSError, ValueError):
        return None, None
    return Identity(pid, started), Identity(router_pid, router_started)


def _end(worker: Identity) -> None:
    """Kill a worker and its group, and wait until its memory is free."""
    deadline = time.monotonic() + _WAIT_S
    with suppress(ProcessLookupError, PermissionError):
        if os.getpgid(worker.pid) == worker.pid:
            os.killpg(worker.pid, signal.SIGKILL)
        else:
            os.kill(worker.pid, signal.SIGKILL)
    while worker.is_there and time.monotonic() < deadline:
        time.sleep(_POLL_S)
