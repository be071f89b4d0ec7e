"""Work for leak.py that a real `corral serve` does: requests, ones whose client leaves, restarts.

leak.py ──requests──▶ server ──socket──▶ worker        what is measured: both processes
   └──SIGUSR2──▶ each tells what it holds (leak_rig/sitecustomize.py)
"""

import http.client
import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from corral.contract.events import Event, FinishEvent
from corral.contract.messages import GenerationRequest, TextPrompt
from corral.contract.worker import WorkerSpec
from corral.router import supervisor
from held import MEASURES, Held
from leak_work import CONTEXT, NONE, SETTLING, Action, Elsewhere, Setting, Work
from reliability_server import Server

PATIENCE_S = 120.0
CLIENTS = 4
REQUESTS = 50
"""Of one action, by all clients together."""
ABORTS = 10
_RIG = Path(__file__).parent / "leak_rig" / "sitecustomize.py"


@dataclass
class Watched:
    """A server whose processes tell what they hold."""

    server: Server
    folder: Path

    def held(self, *pids: int) -> Held:
        """Return what processes hold together, each after collecting its garbage."""
        told = [self._ask(pid) for pid in pids]
        return Held(*(sum(one[name] for one in told) for name in MEASURES))

    def all(self) -> Held:
        """Return what server and worker hold."""
        return self.held(self.server.process.pid, self.server.worker().pid)

    def _ask(self, pid: int) -> dict[str, int]:
        answer = self.folder / f"{pid}.json"
        answer.unlink(missing_ok=True)
        os.kill(pid, signal.SIGUSR2)
        _until("a process tells what it holds", answer.exists)
        return json.loads(answer.read_text())

    def rest(self) -> None:
        """Wait until nothing runs."""
        _until("nothing runs or waits", lambda: not self.server.live())
        self.server.replies.clear()


def _until(what: str, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end:
            raise SystemExit(f"not within {PATIENCE_S:g} s: {what}")
        time.sleep(0.01)


@contextmanager
def watched(setting: Setting, *more: str) -> Iterator[Watched]:
    """Serve the model of a setting; its processes tell what they hold."""
    folder = setting.folder / "rig"
    folder.mkdir(exist_ok=True)
    shutil.copyfile(_RIG, folder / _RIG.name)
    path = os.pathsep.join(
        [str(folder), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    )
    sizes = ("--context", str(CONTEXT), "--parallel", str(CLIENTS), "--threads", "1")
    options = (*sizes, "--device", setting.device, "--context-shift", *more)
    with Server.start(setting.model, *options, environment={"PYTHONPATH": path}) as server:
        _until("the model is ready", lambda: _is_ready(server))
        yield Watched(server, folder)


def _is_ready(server: Server) -> bool:
    return server.ask("GET", "/health").status == 200


@contextmanager
def requests(setting: Setting) -> Iterator[Elsewhere]:
    """Ask for texts, chats, streams and tokens, and for what is refused, by several clients."""
    with watched(setting) as serving, ThreadPoolExecutor(CLIENTS) as clients:
        server = serving.server

        def ask(number: int) -> None:
            path, body, wanted = _REQUESTS[number % len(_REQUESTS)]
            connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE_S)
            try:
                connection.request("POST", path, json.dumps(body | {"seed": number}))
                reply = connection.getresponse()
                text = reply.read()
            finally:
                connection.close()
            if reply.status != wanted:
                raise SystemExit(f"{path} got {reply.status}, expected {wanted}: {text[:200]!r}")

        def act(number: int) -> None:
            first = number * REQUESTS
            list(clients.map(ask, range(first, first + REQUESTS)))
            serving.rest()

        yield Elsewhere(act, serving.all)


_CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
_REQUESTS: tuple[tuple[str, dict[str, object], int], ...] = (
    ("/completion", {"prompt": "Once", "n_predict": 8, "ignore_eos": True}, 200),
    ("/v1/completions", {"prompt": "Once upon", "max_tokens": 4, "logprobs": 2}, 200),
    ("/v1/chat/completions", _CHAT, 200),
    ("/v1/chat/completions", _CHAT | {"stream": True}, 200),
    ("/tokenize", {"content": "Once upon a time"}, 200),
    ("/v1/completions", {"prompt": "Once", "max_tokens": 4, "temperature": "hot"}, 400),
    ("/completion", {"prompt": [1] * (CONTEXT + 1)}, 400),
    ("/completion", {"prompt": "On", "n_predict": 300, "ignore_eos": True, "stream": True}, 200),
)
"""Path, body and status; the last is longer than the context."""


@contextmanager
def leavers(setting: Setting) -> Iterator[Elsewhere]:
    """Ask for an answer without end, and close the connection after some of it, or before."""
    body = json.dumps({"prompt": "Once", "n_predict": -1, "ignore_eos": True, "stream": True})
    with watched(setting) as serving:
        server = serving.server
        head = (
            f"POST /completion HTTP/1.1\r\nHost: {server.host}:{server.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )

        def leave(number: int) -> None:
            address = (server.host, server.port)
            with socket.create_connection(address, timeout=PATIENCE_S) as connection:
                connection.sendall((head + body).encode())
                for _ in range(number % 4):
                    connection.recv(512)

        def act(number: int) -> None:
            for each in range(ABORTS):
                leave(number * ABORTS + each)
            serving.rest()

        yield Elsewhere(act, serving.all)


@contextmanager
def restarts(setting: Setting) -> Iterator[Action]:
    """Kill the worker that is supervised here, and wait until another one answers."""
    spec = WorkerSpec(
        model=str(setting.model), devices=(setting.device,), context=CONTEXT, threads=1
    )
    # Nobody gives up, however often it dies.
    with mock.patch.object(supervisor, "CRASH_WINDOW_S", 0.0), supervisor.supervise(spec) as worker:
        worker.wait_until_ready(PATIENCE_S)

        def act(number: int) -> None:
            before = worker.status.pid
            assert before is not None
            os.kill(before, signal.SIGKILL)
            _until("another worker is there", lambda: worker.status.pid not in (None, before))
            worker.wait_until_ready(PATIENCE_S)
            ended = threading.Event()
            worker.submit(_short(number), lambda event: _note_end(event, ended))
            if not ended.wait(PATIENCE_S):
                raise SystemExit("the new worker answers nothing")

        yield act


def _short(number: int) -> GenerationRequest:
    return GenerationRequest(request_id=str(number), prompt=TextPrompt("Once"), max_tokens=2)


def _note_end(event: Event, ended: threading.Event) -> None:
    if isinstance(event, FinishEvent):
        ended.set()


WORKS = (
    Work(
        *("serve requests", "request", requests, 10_000, NONE),
        batch=REQUESTS,
        warm_up=20,
        settling=SETTLING,
    ),
    Work(
        *("clients that leave", "request", leavers, 500, NONE),
        batch=ABORTS,
        warm_up=10,
        settling=SETTLING,
    ),
    Work("worker killed", "restart", restarts, 100, NONE, warm_up=4, settling=SETTLING),
)
