"""Bytes on a socket, as no honest client sends them, and what comes back."""

import json
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from reliability_server import Server

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})\b")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a connection said until it ended, or until nothing more came."""

    data: bytes
    is_closed: bool
    seconds: float

    @property
    def statuses(self) -> list[int]:
        """The statuses of all responses in it."""
        return [int(found) for found in _STATUS.findall(self.data)]


def head(
    method: str = "POST", path: str = "/v1/completions", *lines: str, host: str = "localhost"
) -> bytes:
    """Return a request's head with these further lines."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {host}", *lines, "", ""]).encode()


def post(path: str, *lines: str, **fields: object) -> bytes:
    """Return a whole request with a JSON body."""
    body = json.dumps(fields).encode()
    return head("POST", path, f"Content-Length: {len(body)}", *lines) + body


def exchange(server: Server, *pieces: bytes, quiet_s: float = 2.0, pause_s: float = 0.0) -> Answer:
    """Send pieces, with a pause after each; return what comes until it is quiet or closed."""
    began = time.monotonic()
    with server.connect(quiet_s) as client:
        with suppress(OSError):  # it may be closed already: what it said can still be read
            for piece in pieces:
                client.sendall(piece)
                time.sleep(pause_s)
        data, is_closed = bytearray(), False
        with suppress(TimeoutError):
            try:
                while piece := client.recv(1 << 16):
                    data += piece
                is_closed = True
            except ConnectionError:
                is_closed = True
    return Answer(bytes(data), is_closed, time.monotonic() - began)


def trickled(server: Server, data: Iterable[int], every_s: float, most_s: float) -> Answer:
    """Send a byte at a time until the connection is closed or answers, or time is up."""
    began = time.monotonic()
    received, is_closed = bytearray(), False
    with server.connect(every_s) as client:
        for byte in data:
            if time.monotonic() - began > most_s:
                break
            try:
                client.sendall(bytes([byte]))
                piece = client.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError:
                is_closed = True
                break
            received += piece
            is_closed = not piece
            if piece == b"" or b"\r\n\r\n" in received:
                break
    return Answer(bytes(received), is_closed, time.monotonic() - began)
