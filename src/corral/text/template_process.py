"""Runs a template in a process of its own, which is killed when it takes too long or too much.

    render ──▶ is the child alive? ── no ──▶ start it, send the source ──▶ send variables, wait
                                                                               │
                          TemplateError ◀── kill the child ◀── time is up ◀────┴──▶ text

A template is code from outside. The sandbox stops what it knows of; this stops what it does not
know. The child has no file of ours, and what it does can cost it only its own life. It is of our
process group, so that whoever kills that leaves nothing behind, and ends when its input does.
"""

import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from corral.errors import Closed, InvalidArgument, ResourceError, TemplateError
from corral.log import logger
from corral.text.template_child import LENGTH

log = logger(__name__)

MEMORY_BYTES: Final = 768 << 20
"""Address space of the child: an interpreter, and twice what a sandboxed template may make."""
MAX_ANSWER_BYTES: Final = 128 << 20
"""The longest text there is, in JSON."""
_START_S: Final = 20.0
"""How long the child may take to start and to compile its template, on a machine that is busy."""
_SLACK_S: Final = 1.0
"""How much longer than the limit of the template an answer may take."""
_GRACE_S: Final = 5.0
_PIECE_BYTES: Final = 1 << 16
_START: Final = (
    "import sys, json; sys.path = json.loads(sys.argv[1]);"
    "from corral.text.template_child import main; main(int(sys.argv[2]))"
)


class ProcessRenderer:
    """A template that is compiled and rendered in a child. Threads may share it; `close` it."""

    def __init__(
        self,
        source: str,
        *,
        memory_bytes: int = MEMORY_BYTES,
        start_s: float = _START_S,
        slack_s: float = _SLACK_S,
    ) -> None:
        """Start the child and compile `source` there.

        Raises:
            TemplateError: the template has an error, or cannot be compiled within the limits.
            ResourceError: the child could not be started.
        """
        self._source = source
        self._memory_bytes = memory_bytes
        self._start_s = start_s
        self._slack_s = slack_s
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        with self._lock:
            self._start()

    def render(self, variables: Mapping[str, object], deadline_s: float) -> str:
        """Return the text for `variables`.

        Raises:
            TemplateError: the template refuses them, has an error or exceeds its limits.
            InvalidArgument: they are nested too deep.
            ResourceError: the child could not be started again.
            Closed: after `close`.
        """
        request = _encoded({"variables": variables, "limit": deadline_s})
        with self._lock:
            if self._is_closed:
                raise Closed("the chat template was closed")
            if self._child is None or self._child.poll() is not None:
                self._end()
                self._start()
            return self._ask(request, deadline_s + self._slack_s)

    def close(self) -> None:
        """End the child; a second call does nothing."""
        with self._lock:
            self._is_closed = True
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self) -> None:
        command = [sys.executable, "-I", "-c", _START, json.dumps(sys.path)]
        try:
            self._child = subprocess.Popen(
                [*command, str(self._memory_bytes)],
                env={},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
            )
        except OSError as error:
            reason = f"the process of the chat template did not start: {error}"
            raise ResourceError(reason) from error
        try:
            self._ask(_encoded({"source": self._source}), self._start_s)
        except TemplateError:
            self._end()
            raise

    def _ask(self, request: bytes, seconds: float) -> str:
        """Return the child's answer to a request; without one, there is no child any more."""
        assert self._child is not None
        try:
            data = _exchange(self._child, request, seconds)
            answer = json.loads(data)
        except _NoAnswer as failure:
            self._end()
            log.warning("the process of the chat template was ended: %s", failure)
            raise TemplateError(f"the chat template is not run: {failure}.") from None
        except BaseException:
            self._end()  # half an answer may be on its way
            raise
        if "error" in answer:
            raise TemplateError(answer["error"])
        return str(answer["text"])

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        with suppress(ProcessLookupError):
            child.kill()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE_S)


def _encoded(request: Mapping[str, object]) -> bytes:
    try:
        return json.dumps(request).encode()
    except RecursionError:
        raise InvalidArgument("messages are nested too deep; send flatter ones.") from None


class _NoAnswer(Exception):
    """The child ended, took too long or said too much."""


def _exchange(child: subprocess.Popen[bytes], request: bytes, seconds: float) -> bytes:
    """Send a frame and return the answer's."""
    assert child.stdin is not None
    assert child.stdout is not None
    unsent = memoryview(LENGTH.pack(len(request)) + request)
    received = bytearray()
    deadline = time.monotonic() + seconds
    into, out = child.stdin.fileno(), child.stdout.fileno()
    os.set_blocking(into, False)
    os.set_blocking(out, False)
    with selectors.DefaultSelector() as selector:
        selector.register(out, selectors.EVENT_READ)
        selector.register(into, selectors.EVENT_WRITE)
        while (missing := _missing(received)) > 0:
            left = deadline - time.monotonic()
            if left <= 0:
                raise _NoAnswer("it takes too long")
            for key, _ in selector.select(left):
                if key.fd == into:
                    unsent = _sent(into, unsent)
                    if not unsent:
                        selector.unregister(into)
                else:
                    _receive(out, received, missing)
    return bytes(received[LENGTH.size :])


def _missing(received: bytearray) -> int:
    """Return how many bytes of an answer are still to come."""
    if len(received) < LENGTH.size:
        return LENGTH.size - len(received)
    (length,) = LENGTH.unpack_from(received)
    if length > MAX_ANSWER_BYTES:
        raise _NoAnswer("its text is too long")
    return LENGTH.size + int(length) - len(received)


def _sent(pipe: int, unsent: memoryview) -> memoryview:
    try:
        return unsent[os.write(pipe, unsent[:_PIECE_BYTES]) :]
    except BlockingIOError:
        return unsent
    except OSError as error:
        raise _NoAnswer("its process ended") from error


def _receive(pipe: int, received: bytearray, missing: int) -> None:
    try:
        piece = os.read(pipe, min(missing, _PIECE_BYTES))
    except BlockingIOError:
        return
    if not piece:
        raise _NoAnswer("its process ended, for lack of memory perhaps")
    received += piece
