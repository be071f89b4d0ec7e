"""Runs an application on a socket until it is told to stop, then lets running answers end.

serving ──signal──▶ draining ──all ended, or time is up──▶ stopped
                        └──second signal──▶ stopped at once
"""

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from corral.api.connection import ClientConnection
from corral.api.errors import Problem
from corral.api.heap import map_long_buffers
from corral.api.serving import Serving
from corral.api.settings import Limits
from corral.errors import ResourceError

_BACKLOG = 256
_UNREAD_MS = 60_000
_KEEP_ALIVE_S = 30
_AFTER_DRAIN_S = 2


def bind(host: str, port: int) -> socket.socket:
    """Return a listening-to-be socket; port 0 takes a free one.

    Raises:
        ResourceError: the address is in use or not of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(AttributeError, OSError):  # a client that never reads is dropped: Linux only
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise _cannot_listen(host, port, error) from error
    return bound


def _cannot_listen(host: str, port: int, error: OSError) -> ResourceError:
    return ResourceError(
        f"cannot listen on {host}:{port}: {error.strerror}; choose another --host or --port"
    )


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a server runs."""

    drain_s: float = 30.0
    """Seconds that running answers get to end."""
    limits: Limits = field(default_factory=Limits)


class Server(uvicorn.Server):
    """A server that drains at the first signal, and does not pass signals on."""

    def __init__(self, app: Starlette, options: RunOptions) -> None:
        """Serve an application; `run_on` begins."""
        self._app = app
        self._options = options
        limits = options.limits

        class Protocol(ClientConnection):
            head_s = limits.head_s
            longest_head = limits.head_bytes
            most = limits.connections
            expecting = {}  # noqa: RUF012 - of this server

        super().__init__(
            uvicorn.Config(
                self._admit,
                interface="asgi3",
                http=Protocol,
                ws="none",
                lifespan="on",
                log_config=None,
                log_level=logging.CRITICAL,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=round(options.drain_s + _AFTER_DRAIN_S),
            )
        )

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, unless more clients are being answered than may be."""
        is_crowded = len(self.server_state.connections) > self._options.limits.connections
        if scope["type"] == "http" and is_crowded:
            headers = {"Retry-After": "1", "Connection": "close"}
            problem = Problem(503, "too many connections", code="too_many", headers=headers)
            await problem.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def run_on(self, bound: socket.socket, *, on_started: Callable[[], None] | None = None) -> None:
        """Serve on a bound socket until a signal or `stop`; `on_started` hears of the start."""
        map_long_buffers()
        with asyncio.Runner(loop_factory=self.config.get_loop_factory()) as runner:
            runner.run(self._serve_on(bound, on_started))

    async def _serve_on(self, bound: socket.socket, on_started: Callable[[], None] | None) -> None:
        task = asyncio.create_task(self.serve(sockets=[bound]))
        while not self.started and not task.done():
            await asyncio.sleep(0.01)
        if on_started is not None and not task.done():
            on_started()
        await task

    def stop(self) -> None:
        """Begin to drain, from any thread; a second call ends what still runs."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let running answers end, for a while."""
        serving: Serving = self._app.state.serving
        serving.stop()
        timer = asyncio.get_running_loop().call_later(self._options.drain_s, serving.end_all)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()
            serving.close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal."""
        self.stop()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take SIGINT and SIGTERM while serving; in another thread than the main one, none."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
