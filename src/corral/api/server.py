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
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from corral.api.serving import Serving
from corral.api.settings import Limits
from corral.errors import ResourceError
from corral.log import logger

_log = logger(__name__)
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

        class Protocol(DeadlineProtocol):
            head_s = limits.head_s

        super().__init__(
            uvicorn.Config(
                app,
                http=Protocol,
                ws="none",
                lifespan="on",
                log_config=None,
                log_level=logging.CRITICAL,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=limits.connections,
                backlog=_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=round(options.drain_s + _AFTER_DRAIN_S),
                h11_max_incomplete_event_size=limits.head_bytes,
            )
        )

    def run_on(self, bound: socket.socket, *, on_started: Callable[[], None] | None = None) -> None:
        """Serve on a bound socket until a signal or `stop`; `on_started` hears of the start."""
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


class DeadlineProtocol(H11Protocol):
    """Closes connections whose request's head does not come in time."""

    head_s = 10.0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Expect a head from now on."""
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Expect a head from its first byte on; stop expecting when it is there."""
        if self._deadline is None and self.conn.their_state is h11.IDLE:
            self._expect()
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_expecting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing any more."""
        self._stop_expecting()
        super().connection_lost(exc)

    def _expect(self) -> None:
        self._deadline = self.loop.call_later(self.head_s, self._give_up)

    def _stop_expecting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        _log.debug("no request came within %g s", self.head_s)
        self.transport.abort()
