"""Rows of the reliability table: what is tried, what must hold, and how a row is run.

The rule of every row, beside its own: errors are typed, no 5xx but 503, 504 and 507; no path,
traceback or environment in a reply; the same server and worker live on, with the same models and no
more than 64 MiB above what they held; answers within two seconds; a good request before and after
gets the same tokens.
"""

import http.client
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import psutil

from reliability_server import Broken, Reply, Server, Watch

MOST_BYTES = 64 << 20
MOST_S = 2.0
MORE_TRIES = 2
"""For rows that were only too slow."""


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that is tried."""

    id: str
    what: str
    rule: str
    attempt: Callable[[Server], object]
    """Does it, and raises Broken where the rule does not hold."""
    server: str = "demo"
    """Which server it is tried on."""
    within_s: float = MOST_S
    """How long each reply may take."""
    replaces_worker: bool = False
    most_bytes: int = MOST_BYTES


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a row."""

    row: Row
    failure: str | None
    seconds: float
    said: str
    """Statuses and codes of the replies."""


def run_row(row: Row, server: Server) -> Result:
    """Try a row; one that is only too slow is tried again: others may use the machine, too."""
    result = _tried(row, server)
    for _ in range(MORE_TRIES):
        if result.failure is None or not result.failure.startswith("took "):
            break
        result = _tried(row, server)
    return result


def _tried(row: Row, server: Server) -> Result:
    began, said = time.monotonic(), ""
    try:
        watch = Watch(server, most_bytes=row.most_bytes)
        began = time.monotonic()
        row.attempt(server)
        seconds, said = time.monotonic() - began, said_by(server.replies)
        slowest = max((reply.elapsed_s for reply in server.replies), default=0.0)
        watch.compare(is_worker_replaced=row.replaces_worker)
        if slowest > row.within_s:
            raise Broken(f"took {slowest:.1f} s")
    except (Broken, OSError, psutil.Error, http.client.HTTPException) as error:
        said = said or said_by(server.replies)
        text = str(error) or type(error).__name__
        return Result(row, text, time.monotonic() - began, said)
    return Result(row, None, seconds, said)


def said_by(replies: Sequence[Reply]) -> str:
    """Return the different statuses and codes of replies, in words."""
    found = [
        f"{reply.status} {reply.code}" if reply.code else f"{reply.status}" for reply in replies
    ]
    return ", ".join(dict.fromkeys(found))


def require(holds: object, what: str) -> None:
    """Raise Broken unless something holds."""
    if not holds:
        raise Broken(what)


def expect(reply: Reply, statuses: Iterable[int], code: str | None = None) -> Reply:
    """Return a reply of one of these statuses.

    Raises:
        Broken: it has another one, or another code.
    """
    if reply.status not in statuses:
        raise Broken(f"got {reply.status} {reply.body[:120]!r}, expected {sorted(statuses)}")
    if code is not None and reply.code != code:
        raise Broken(f"got code {reply.code!r}, expected {code!r}")
    return reply


def posting(
    path: str, body: object, *statuses: int, code: str | None = None, **headers: str
) -> Callable[[Server], object]:
    """Return an attempt that posts a body and expects a status."""
    return lambda server: expect(server.post(path, body, **headers), statuses, code)


def refusing(
    path: str, *bodies: object, param: str | None = None, statuses: Iterable[int] = (400,)
) -> Callable[[Server], object]:
    """Return an attempt that posts bodies, all of which are refused, by the field's name."""

    def attempt(server: Server) -> None:
        for body in bodies:
            reply = expect(server.post(path, body), statuses)
            if param is not None:
                found = str(reply.error.get("param"))
                require(found.startswith(param), f"names {found!r} and not {param!r}")

    return attempt
