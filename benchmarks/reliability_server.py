"""A `corral serve` under attack, and what must hold whatever is done to it.

    with Server.start(model, "--parallel", "2") as server:
        reply = server.post("/v1/completions", {...})

`Watch` compares before and after: the same processes, the same models, the same canned answer, and
no more memory than allowed.
"""

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PATIENCE_S = 120.0
IDLE_S = 20.0
"""How soon after a row nothing of it may run any more."""
CANNED = {
    "prompt": "The capital of France is",
    "n_predict": 8,
    "temperature": 0,
    "ignore_eos": True,
    "return_tokens": True,
    "cache_prompt": False,
}
_ROOTS = {str(Path(place).resolve()) for place in (sys.prefix, Path(__file__).parents[1])}
_LEAKS = re.compile(
    "|".join(
        [
            *(re.escape(root) for root in sorted(_ROOTS)),
            r"Traceback|File \\?\"|site-packages|/home/|/root/|/tmp/|\.py\b",
            r"LD_LIBRARY_PATH|PYTHONPATH|CORRAL_CACHE",
        ]
    )
)


class Broken(Exception):
    """A rule that does not hold; the message says which."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back for one request."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    elapsed_s: float

    @property
    def json(self) -> object:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> Mapping[str, object]:
        """The error object of the body; empty if there is none."""
        try:
            found = self.json
        except ValueError:
            return {}
        error = found.get("error") if isinstance(found, dict) else None
        return error if isinstance(error, dict) else {}

    @property
    def code(self) -> object:
        """The code of the error, or None."""
        return self.error.get("code")


@dataclass
class Server:
    """A running server, its address, and every reply it gave."""

    process: "subprocess.Popen[str]"
    host: str
    port: int
    key: str | None = None
    replies: list[Reply] = field(default_factory=list)

    @classmethod
    @contextmanager
    def start(
        cls, model: object, *more: str, key: str | None = None, environment: Mapping[str, str] = {}
    ) -> Iterator["Server"]:
        """Serve a model on a free port until the end of the block; it must end by itself then."""
        command = [sys.executable, "-m", "corral", "serve", "-m", str(model), "--port", "0"]
        keys = ["--api-key", key] if key else []
        process = subprocess.Popen(
            [*command, "--json", *keys, *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **environment},
        )
        try:
            assert process.stdout is not None
            told = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
            host, _, port = told["url"].removeprefix("http://").partition(":")
            yield cls(process, host, int(port), key)
        finally:
            process.terminate()
            try:
                process.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()

    def connect(self, timeout_s: float = PATIENCE_S) -> socket.socket:
        """Return a connected socket."""
        return socket.create_connection((self.host, self.port), timeout=timeout_s)

    def post(self, path: str, body: object, **headers: str) -> Reply:
        """Return the reply to a body: bytes as they are, anything else as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask("POST", path, data, **headers)

    def ask(self, method: str, path: str, data: bytes | None = None, **headers: str) -> Reply:
        """Return the reply to a request, and keep it for the rules of all replies."""
        began = time.monotonic()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_S)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.key and "Authorization" not in given:
            given["Authorization"] = f"Bearer {self.key}"
        try:
            connection.request(method, path, data, given)
            response = connection.getresponse()
            body = response.read()
            reply = Reply(response.status, dict(response.headers), body, time.monotonic() - began)
        finally:
            connection.close()
        self.replies.append(reply)
        return reply

    def worker(self) -> psutil.Process:
        """Return the process that holds the model."""
        children = psutil.Process(self.process.pid).children()
        alive = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
        found = [child for child in alive if "corral.worker" in " ".join(child.cmdline())]
        if len(found) != 1:
            raise Broken(f"there are {len(found)} workers")
        return found[0]

    def live(self) -> int:
        """Return how many requests run or wait, plus how many blocks are in use."""
        told = self.ask("GET", "/metrics").body.decode()
        names = ("requests_running", "requests_waiting", "kv_blocks_used")
        return sum(
            int(float(line.split()[1]))
            for line in told.splitlines()
            if line.startswith(tuple(f"corral:{name} " for name in names))
        )

    def models(self) -> object:
        """Return the names of the models."""
        told = self._json("/v1/models")
        assert isinstance(told, dict)
        return [(entry["id"], entry["status"]) for entry in told["data"]]

    def canned(self) -> object:
        """Return the tokens of the request that must always be answered alike."""
        self.until("nothing runs or waits", lambda: not self.live(), IDLE_S)
        reply = self.post("/completion", CANNED)
        told = reply.json
        if reply.status != 200 or not isinstance(told, dict):
            raise Broken(f"a good request got {reply.status}: {reply.body[:200]!r}")
        return told["tokens"]

    def until(self, what: str, holds: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
        """Wait until something holds.

        Raises:
            Broken: it does not within the time.
        """
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                raise Broken(f"not within {seconds:g} s: {what}")
            time.sleep(0.02)

    def _json(self, path: str) -> object:
        reply = self.ask("GET", path)
        if reply.status != 200:
            raise Broken(f"GET {path} got {reply.status}")
        return reply.json


class Watch:
    """What was so before a row, to be compared with what is so after it."""

    def __init__(self, server: Server, *, most_bytes: int) -> None:
        """Look; `most_bytes` more than now may each process hold at any moment until `compare`."""
        self._server = server
        self._most_bytes = most_bytes
        self._canned = server.canned()
        self._models = server.models()
        self._worker = server.worker().pid
        self._resident = {pid: _reset_peak(pid) for pid in (server.process.pid, self._worker)}
        server.replies.clear()

    def compare(self, *, is_worker_replaced: bool = False) -> None:
        """Look again.

        Raises:
            Broken: something is not as it was, or a reply was not as every reply must be.
        """
        server, replies = self._server, [*self._server.replies]
        for reply in replies:
            check_reply(reply)
        if server.process.poll() is not None:
            raise Broken(f"the server ended with {server.process.returncode}")
        if not is_worker_replaced:
            if server.worker().pid != self._worker:
                raise Broken("the worker is another one")
            for pid, before in self._resident.items():
                grown = _peak(pid) - before
                if grown > self._most_bytes:
                    name = "worker" if pid == self._worker else "server"
                    raise Broken(f"the {name} grew by {grown >> 20} MiB")
        if server.models() != self._models:
            raise Broken("the list of models is another one")
        if server.canned() != self._canned:
            raise Broken("a good request is answered otherwise than before")


def check_reply(reply: Reply) -> None:
    """Check what holds for every reply: typed errors, no 5xx but 503, 504 and 507, no secrets.

    Raises:
        Broken: it does not hold.
    """
    if reply.status >= 500 and reply.status not in (501, 503, 504, 507):
        raise Broken(f"status {reply.status}: {reply.body[:200]!r}")
    if reply.status >= 400 and not {"message", "type", "code"} <= set(reply.error):
        raise Broken(f"status {reply.status} without a typed error: {reply.body[:100]!r}")
    if found := _LEAKS.search(reply.body.decode("utf-8", "replace") if reply.status >= 400 else ""):
        raise Broken(f"an error tells {found[0]!r}")


def _reset_peak(pid: int) -> int:
    """Forget the largest size of a process (proc(5), clear_refs) and return its present one."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _status_bytes(pid, "VmRSS")


def _peak(pid: int) -> int:
    return _status_bytes(pid, "VmHWM")


def _status_bytes(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) << 10
    raise Broken(f"process {pid} has no {name}")
