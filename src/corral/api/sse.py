"""Server-sent events: one write a step for each client, whatever came in it.

A stream's headers are sent with its first event, so that what is wrong with a request is told
with its proper status; a wait that takes long sends them first. An error after that is an event.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from corral.api.errors import problem_of
from corral.api.exchange import Exchange
from corral.api.presence import ClientGone
from corral.api.settings import ApiSettings
from corral.contract.events import Event

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()


def encode(value: object) -> bytes:
    """Return one server-sent event that holds a JSON value."""
    return b"data: " + _encoder.encode(value) + b"\n\n"


class Chunks(Protocol):
    """Turns the events of an exchange into server-sent events."""

    def of(self, events: Sequence[Event]) -> bytes:
        """Return what clients get for events; nothing if they tell nothing yet."""
        ...

    def end(self) -> bytes:
        """Return what ends the stream."""
        ...


class AnswerStream(Response):
    """Streams an exchange to its client and closes it."""

    def __init__(self, exchange: Exchange, chunks: Chunks, settings: ApiSettings) -> None:
        """Stream an open exchange; `begin` is to be called before the response is."""
        self._exchange = exchange
        self._chunks = chunks
        self._settings = settings
        self._first: list[Event] = []
        self.status_code = 200
        self.background = None

    async def begin(self) -> "AnswerStream":
        """Wait a while for the first events.

        Raises:
            CorralError: the request failed; the exchange is closed.
        """
        try:
            self._first = await self._exchange.take(self._settings.headers_s)
        except BaseException:
            self._exchange.close()
            raise
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS]})
            with suppress(ClientGone):
                await self._send_all(send)
        finally:
            self._exchange.close()

    async def _send_all(self, send: Send) -> None:
        data = self._chunks.of(self._first) if self._first else PING
        try:
            while not self._exchange.is_complete:
                if data:
                    await _write(send, data)
                events = await self._exchange.take(self._settings.ping_s)
                data = self._chunks.of(events) if events else PING
            data += self._chunks.end()
        except ClientGone:
            raise
        except Exception as error:
            data = encode(problem_of(error).body())
        await send({"type": "http.response.body", "body": data, "more_body": False})


async def _write(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})
