"""The clients of a server, all in this process: each asks again as soon as its answer has ended.

It runs apart from what it measures, on raw sockets, and accounts for the processor time it takes.
Standard library only. A child of `serve.py`, which tells it where to ask and how much.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from children import Reply, serve
from serve_answer import Seen, Transcript, figures, seen
from serve_requests import Ask, asks

PATIENCE_S = 3600.0
HEAD = (
    "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    "Connection: close\r\nContent-Length: {length}\r\n\r\n"
)


class Reader(asyncio.Protocol):
    """One connection: sends a request and writes down what comes, until one of both goes away."""

    def __init__(self, request: bytes, leaves_after: int | None) -> None:
        """Send `request`; leave after so many events."""
        self.transcript = Transcript()
        self.ended = asyncio.get_running_loop().create_future()
        self._request = request
        self._leaves_after = leaves_after
        self._began = time.perf_counter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Write down what came, and leave if it is time."""
        self.transcript.add(data, time.perf_counter() - self._began)
        if self._leaves_after is not None and self.transcript.num_events >= self._leaves_after:
            self.transcript.has_left = True
            self._transport.abort()

    def connection_lost(self, _: Exception | None) -> None:
        """Tell whoever waits."""
        if not self.ended.done():
            self.ended.set_result(None)


@dataclass(frozen=True)
class Asked:
    """One request that was sent, and what came; it is read when nothing is measured any more."""

    ask: Ask
    began: float
    transcript: Transcript = field(default_factory=Transcript)
    error: str = ""

    @property
    def seen(self) -> Seen:
        """What became of it."""
        if self.error:
            return Seen(error=self.error, began=self.began)
        words = self.ask.prompt.count(" ") + 1
        wanted = self.ask.answer_tokens
        found = seen(self.transcript, wanted_tokens=wanted, prompt_tokens=words)
        return replace(found, began=self.began)


async def request(port: int, ask: Ask) -> Asked:
    """Send one request, follow it to its end and return what came."""
    began, body = time.perf_counter(), ask.body
    head = HEAD.format(port=port, length=len(body)).encode()
    loop = asyncio.get_running_loop()
    try:
        transport, reader = await loop.create_connection(
            lambda: Reader(head + body, ask.leaves_after), "127.0.0.1", port
        )
        try:
            await asyncio.wait_for(reader.ended, PATIENCE_S)
        finally:
            transport.abort()
    except (OSError, TimeoutError) as error:
        return Asked(ask, began, error=f"{type(error).__name__}: {error}")
    return Asked(ask, began, reader.transcript)


async def client(port: int, coming: Iterator[Ask], until: float, answers: list[Asked]) -> None:
    """Ask one thing after the other until there is none left, or it is time."""
    for ask in coming:
        answers.append(await request(port, ask))
        if time.perf_counter() >= until:
            return


async def load(port: int, clients: int, coming: Iterator[Ask], seconds: float) -> list[Asked]:
    """Let so many clients share the requests there are; none begins after so many seconds."""
    answers: list[Asked] = []
    until = time.perf_counter() + seconds
    await asyncio.gather(*(client(port, coming, until, answers) for _ in range(clients)))
    return answers


def measure(
    port: int, clients: int, seed: int, count: int | None, seconds: float, **lengths: Any
) -> Reply:
    """Load a server, and return what its clients saw; `lengths` are those of `asks`."""
    coming = islice(asks(seed, **lengths), count)
    began, used = time.perf_counter(), time.process_time()
    answers = asyncio.run(load(port, clients, coming, seconds))
    taken = time.perf_counter() - began
    used = time.process_time() - used
    told = figures([one.seen for one in answers], taken)
    return {"clients": clients, **told, "client_cpu_s": round(used, 3)}


def main() -> None:
    """Answer the parent's requests."""
    serve({"pid": os.getpid()}, {"load": measure})


if __name__ == "__main__":
    main()
