"""Plans headers in a process of its own, one after the other; started when first needed.

A process that does not answer, or dies, is replaced; the file it was busy with counts as unusable,
and why is said.
"""

import json
import os
import selectors
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from corral.config import inherited
from corral.errors import ModelError
from corral.log import logger
from corral.router.entry import Unusable
from corral.router.plan_job import PlanJob
from corral.router.planned_text import Header, from_json

SECONDS = 60.0
"""For one file."""
NOT_READ = ModelError.code
"""The code of headers that were not read to the end; another time may be luckier."""
_INHERITED = ("PATH", "HOME", "LANG", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CORRAL_THREADS")
_PIECE_BYTES = 1 << 16
_MAX_ANSWER_BYTES = 16 << 20
_GRACE_S = 2.0
_log = logger(__name__)


class Planner:
    """The near end of the planning process; for one thread at a time."""

    def __init__(self, command: tuple[str, ...] = (), *, seconds: float = SECONDS) -> None:
        """Plan with a command in place of corral's own; nothing is started yet."""
        self._command = command or (sys.executable, "-P", "-m", "corral.router.planner_child")
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None

    def plan(self, job: PlanJob) -> Header:
        """Return what a file's header told; whatever is wrong with it is an answer."""
        try:
            return self._ask(json.dumps(job.to_json()).encode() + b"\n")
        except (_NoAnswer, OSError, ValueError) as failure:
            self._end()
            _log.warning("the planning process was ended at %s: %s", job.path, failure)
            return Unusable("model", f"{Path(job.path).name}: its header was not read: {failure}")

    def close(self) -> None:
        """End the process; a later job starts another."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, line: bytes) -> Header:
        process = self._process or self._start()
        assert process.stdin is not None
        process.stdin.write(line)
        process.stdin.flush()
        return from_json(json.loads(self._answer(process)))

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            self._command,
            env=inherited(_INHERITED),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self._process

    def _answer(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        deadline, answer = time.monotonic() + self._seconds, bytearray()
        pipe = process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while not answer.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise _NoAnswer(f"it takes longer than {self._seconds:g} s")
                piece = os.read(pipe, _PIECE_BYTES)
                answer += piece
                if not piece:
                    raise _NoAnswer("the process that read it died")
                if len(answer) > _MAX_ANSWER_BYTES:
                    raise _NoAnswer("it has more to say than any model")
        return bytes(answer)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not sent is not sent any more
                    pipe.close()
        with suppress(ProcessLookupError):
            process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)


class _NoAnswer(Exception):
    """The process died, took too long or said too much."""
