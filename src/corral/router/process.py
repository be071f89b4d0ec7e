"""One worker process: started with a connected socket, watched, ended; nothing of it is left.

It is spawned, never forked off to go on with our memory. It leads a process group of its own, and
what is left of the group when it has ended is killed, whatever it started meanwhile.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress

from corral.config import inherited
from corral.contract import wire
from corral.contract.worker import WorkerSpec
from corral.errors import WorkerLost

_INHERITED = (
    *("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "TZ"),
    *("LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"),
    *("XDG_CACHE_HOME", "CORRAL_CACHE", "CORRAL_LOG", "CORRAL_THREADS", "CORRAL_CPU"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH"),
)
"""Variables a worker gets; keys and passwords are not among them."""
_LINES = 200
_LINE_CHARACTERS = 2000
_POLL_S = 0.01
_GRACE_S = 2.0
"""How long a process may take to end that should, before it is killed."""


class WorkerProcess:
    """A started worker, and our end of its socket. The thread that starts it must outlive it."""

    def __init__(self, spec: WorkerSpec, command: tuple[str, ...] = ()) -> None:
        """Start the process; nothing is said to it yet.

        Args:
            spec: only its visible devices count here.
            command: what to run in place of the worker, with its arguments behind.

        Raises:
            WorkerLost: if the system starts no process.
        """
        ours, theirs = socket.socketpair()
        run = command or (sys.executable, "-P", "-m", "corral.worker")
        try:
            self._process = subprocess.Popen(
                [*run, "--fd", str(theirs.fileno()), "--parent", str(os.getpid())],
                env=_environment(spec),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise WorkerLost(f"no worker process could be started: {error}") from error
        finally:
            theirs.close()
        self.channel = wire.Channel(ours, wire.reports)
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._listening = threading.Thread(target=self._listen, name="corral-stderr", daemon=True)
        self._listening.start()

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    @property
    def output(self) -> tuple[str, ...]:
        """The last lines it wrote to its standard output and error."""
        return tuple(self._lines)

    def has_ended(self) -> bool:
        """Whether it ended. Not waited for, its number still names its group and nobody else's."""
        if self._process.returncode is not None:
            return True
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self.pid, flags) is not None
        except ChildProcessError:  # other code of this process waited for it
            return True

    def wait(self, seconds: float) -> bool:
        """Wait until it has ended, for so many seconds at most; return whether it has."""
        deadline = time.monotonic() + seconds
        while not self.has_ended():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def terminate(self) -> None:
        """Ask it to end, by a signal."""
        with suppress(ProcessLookupError, PermissionError):
            if not self.has_ended():
                self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and all it started, at once."""
        with suppress(ProcessLookupError, PermissionError):
            if self._process.returncode is None:
                os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> int:
        """Kill what is left, wait, and close our end; return the exit status, or minus a signal.

        A process that a driver holds in the kernel may be left: then the status is that of a kill.
        """
        self.channel.shut()
        self.wait(_GRACE_S)
        self.kill()
        try:
            status = self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            status = -signal.SIGKILL
        self._listening.join(_GRACE_S)
        assert self._process.stdout is not None
        if not self._listening.is_alive():
            self._process.stdout.close()
        self.channel.close()
        return status

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with suppress(OSError, ValueError):
            while line := self._process.stdout.readline(_LINE_CHARACTERS):
                self._lines.append(line.decode("utf-8", "replace").rstrip("\n"))


def _environment(spec: WorkerSpec) -> Mapping[str, str]:
    environment = inherited(_INHERITED)
    if spec.visible_devices is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(spec.visible_devices)
    return environment


def resident_bytes(pid: int) -> int | None:
    """Return the bytes of main memory that a process holds; None where the system does not tell."""
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:  # noqa: PTH123
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None
