"""The servers that are compared: how each is started, what its processes hold, how it ends."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from children import Child, Reply

HERE = Path(__file__).parent
OURS, PEER = "corral", "llama.cpp"
START_S = 300.0
END_S = 60.0
OWN = ("RssAnon:", "RssShmem:", "VmSwap:")


@dataclass(frozen=True)
class Setting:
    """What both servers are given alike."""

    model: Path
    parallel: int
    context: int
    threads: int
    clients: int
    """The most there will be at once."""


@dataclass(frozen=True)
class Held:
    """What one process holds, and the processor time it has used."""

    name: str
    rss_bytes: int
    own_bytes: int
    """Of what it could not get back from a file: RssAnon, RssShmem and VmSwap."""
    files: int
    threads: int
    cpu_s: float


class Server:
    """A server in processes of its own, on a port of this machine."""

    def __init__(self, name: str, command: list[str], port: int) -> None:
        """Start it; `wait` returns when it answers."""
        self.name, self.port = name, port
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (kept open)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=self._errors, stderr=self._errors
        )

    def wait(self) -> None:
        """Wait until it takes requests; raises SystemExit if it never will."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            with contextlib.suppress(OSError):
                self.get("/health")
                return
            time.sleep(0.05)
        raise SystemExit(f"{self.name} does not serve: {self.last_words()}")

    def get(self, path: str) -> bytes:
        """Return what it answers to a GET; raises OSError."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as reply:
            return bytes(reply.read())

    def last_words(self) -> str:
        """Return the last lines it printed."""
        self._errors.seek(0)
        return " | ".join(line.strip() for line in self._errors.readlines()[-5:])

    def held(self) -> list[Held]:
        """Return what each of its processes holds, the one that was started first."""
        first = psutil.Process(self._process.pid)
        return [_held(process, n) for n, process in enumerate([first, *_children(first)])]

    @property
    def cpu_s(self) -> float:
        """Processor time of all its processes so far."""
        return sum(one.cpu_s for one in self.held())

    def close(self) -> None:
        """End it as a user would; a second call does nothing."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


def _children(process: psutil.Process) -> list[psutil.Process]:
    return sorted(process.children(recursive=True), key=lambda child: child.pid)


def _held(process: psutil.Process, number: int) -> Held:
    with process.oneshot():
        times = process.cpu_times()
        return Held(
            name="worker" if number == 1 else "api" if number == 0 else f"child {number}",
            rss_bytes=process.memory_info().rss,
            own_bytes=own_bytes(Path(f"/proc/{process.pid}/status").read_text()),
            files=process.num_fds(),
            threads=process.num_threads(),
            cpu_s=times.user + times.system,
        )


def own_bytes(status: str) -> int:
    """Return what the kernel's status of a process says it holds of its own."""
    lines = (line.split() for line in status.splitlines())
    return sum(int(words[1]) * 1024 for words in lines if words and words[0] in OWN)


def kv_blocks_used(server: Server) -> int:
    """Return how many blocks corral's requests hold now."""
    return int(json.loads(server.get("/corral/status"))["kv"]["used_blocks"])


def measured(server: Server, load: Child, **asked: object) -> tuple[Reply, dict[str, float]]:
    """Load a server; return what its clients saw, and the processor time of each process."""
    before = {one.name: one.cpu_s for one in server.held()}
    found = load.measure(test="load", port=server.port, **asked)
    used = {one.name: one.cpu_s - before.get(one.name, 0.0) for one in server.held()}
    return found, used


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])


def corral_command(given: Setting, port: int) -> list[str]:
    """Return how corral is started."""
    return [
        *(sys.executable, "-m", "corral", "serve", "-m", str(given.model), "--port", str(port)),
        *("--parallel", str(given.parallel), "--context", str(given.context)),
        *("--threads", str(given.threads), "--queue", str(max(128, given.clients))),
    ]


def peer_command(given: Setting, port: int, *, server: Path | None, python: Path) -> list[str]:
    """Return how the peer is started: a compiled llama-server, or else xllamacpp."""
    common = ["--port", str(port), "--parallel", str(given.parallel), "--threads"]
    common.append(str(given.threads))
    if server is None:
        # -E: the peer's packages are its own, whatever PYTHONPATH says.
        script = [str(python), "-E", str(HERE / "serve_peer.py"), str(given.model)]
        return [*script, *common, *("--context", str(given.context)), "--clients", _of(given)]
    return [
        *(str(server), "-m", str(given.model), *common, "--host", "127.0.0.1"),
        *("--ctx-size", str(given.context * given.parallel), "--no-webui"),
        *("--threads-http", str(given.clients + 4), "--no-kv-unified"),
    ]


def _of(given: Setting) -> str:
    return str(given.clients)


@contextlib.contextmanager
def serving(name: str, command: list[str], port: int) -> Iterator[Server]:
    """Start a server, wait until it answers, and end it."""
    server = Server(name, command, port)
    try:
        server.wait()
        yield server
    finally:
        server.close()


def processors() -> int:
    """Return how many processors there are for both."""
    return len(os.sched_getaffinity(0))
