"""One client's connection: heads that are read strictly and in time, and room for who asks.

    connected ─▶ expecting a head ─▶ asking ─▶ answered ─┐
                   │        ▲                            │
        too late,  │        └──────────── kept alive ◀───┘
        or crowded ▼
                 closed

Two readers that see the borders of a request differently, such as this server and a proxy before
it, can be made to take one client's bytes for another's request. So what RFC 9112 lets a server
repair is refused here: bare line ends, folded headers, two ways to tell a body's length.
"""

import re
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from corral.api.errors import Problem
from corral.log import logger

MAX_HEADERS = 100
_END_OF_HEAD = re.compile(rb"\n\r?\n")
_log = logger(__name__)


def flaw_of_head(data: bytes, longest: int) -> str | None:
    """Return what is wrong with the first head in these bytes; None if it is well, or yet to come.

    Args:
        longest: bytes it may have.
    """
    end = _END_OF_HEAD.search(data)
    if end is None:
        return None if len(data) <= longest else f"it has more than {longest} bytes"
    if end.end() > longest:
        return f"it has more than {longest} bytes"
    lines = data[: end.end()].split(b"\r\n")
    if any(mark in line for line in lines for mark in (b"\r", b"\n", b"\0")):
        return "a line ends without CR and LF"
    if any(line.startswith((b" ", b"\t")) for line in lines):
        return "a header is folded"
    if len(lines) - 3 > MAX_HEADERS:
        return f"it has more than {MAX_HEADERS} headers"
    return None


def flaw_of_request(headers: list[tuple[bytes, bytes]]) -> str | None:
    """Return what is wrong with headers that are well by themselves."""
    names = {name.lower() for name, _ in headers}
    if {b"content-length", b"transfer-encoding"} <= names:
        return "it tells the body's length in two ways"
    return None


class StrictConnection(h11.Connection):
    """The server's side of HTTP/1.1, which repairs nothing."""

    def __init__(self, longest_head: int) -> None:
        """Read heads of so many bytes."""
        super().__init__(h11.SERVER, longest_head)
        self._longest_head = longest_head

    def next_event(self) -> Any:
        """Return the next event, as h11 does.

        Raises:
            RemoteProtocolError: a head is malformed, or could be read in two ways.
        """
        if self.their_state is h11.IDLE:
            waiting, _ = self.trailing_data
            _refuse(flaw_of_head(waiting, self._longest_head))
        event = super().next_event()
        if isinstance(event, h11.Request):
            _refuse(flaw_of_request(list(event.headers)))
        return event


def _refuse(flaw: str | None) -> None:
    if flaw is not None:
        raise h11.RemoteProtocolError(f"the head is malformed: {flaw}")


class ClientConnection(H11Protocol):
    """Closes connections whose head does not come in time, and the idle ones where there are too
    many: who asks is let in.

    Subclasses of one server share `expecting` and its limits.
    """

    head_s = 10.0
    longest_head = 16 << 10
    most = 512
    expecting: "dict[ClientConnection, None]"
    """Connections that have asked nothing yet, or whose last answer is complete; oldest first."""
    _deadline: Any = None

    def __init__(self, *given: Any, **named: Any) -> None:
        """Serve one connection, as uvicorn makes it."""
        super().__init__(*given, **named)
        self.conn = StrictConnection(self.longest_head)

    def connection_made(self, transport: Any) -> None:
        """Expect a head from now on."""
        super().connection_made(transport)
        while len(self.connections) > self.most and self.expecting:
            next(iter(self.expecting)).give_up("there are too many")
        self.expecting[self] = None
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Expect a head from its first byte on; stop expecting when it is there."""
        if self._deadline is None and self.conn.their_state is h11.IDLE:
            self._expect()
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_expecting()
            self.expecting.pop(self, None)

    def on_response_complete(self) -> None:
        """Count as idle until the next request."""
        self.expecting[self] = None
        super().on_response_complete()
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self.expecting.pop(self, None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing any more."""
        self._stop_expecting()
        self.expecting.pop(self, None)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Say that this is no HTTP, unless an answer is on its way, and close."""
        told = Problem(400, "this is no HTTP that can be answered", code="invalid_http")
        body = msgspec.json.encode(told.body())
        head = [
            (b"Content-Type", b"application/json"),
            (b"Content-Length", str(len(body)).encode()),
            (b"Connection", b"close"),
        ]
        events = [
            h11.Response(status_code=400, headers=head, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ]
        try:
            for event in events:
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            _log.debug("a connection is closed amid an answer: what follows is no HTTP")
        self.transport.close()

    def give_up(self, why: str) -> None:
        """Close the connection without a word."""
        _log.debug("a connection is closed: %s", why)
        self._stop_expecting()
        self.expecting.pop(self, None)
        self.connections.discard(self)
        self.transport.close()  # the end of an answer may still be on its way

    def _expect(self) -> None:
        late = f"no request came within {self.head_s:g} s"
        self._deadline = self.loop.call_later(self.head_s, self.give_up, late)

    def _stop_expecting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
