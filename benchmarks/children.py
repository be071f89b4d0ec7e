"""Measuring in child processes: one JSON line a request, one a reply. Standard library only.

parent: Child ──{"test": …}──▶ child: serve()
              ◀──{"seconds": …}──

A child that dies is an answer too: `ChildDied` says of what, and the others go on.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Reply = dict[str, Any]


class ChildDied(Exception):
    """A child ended without an answer; the message says of what, and what it said last."""


class Child:
    """A process that measures on request and is idle otherwise."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        """Start it and wait until it is ready.

        Raises:
            ChildDied: it did not come up.
        """
        self.name = name
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (kept open)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        try:
            self.description = self._reply("starting")
        except ChildDied:
            self.close()
            raise

    def measure(self, **request: object) -> Reply:
        """Ask for one measurement and wait for it.

        Raises:
            ChildDied: it died of it.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death(str(request)) from None
        return self._reply(" ".join(str(value) for value in request.values()))

    def close(self) -> None:
        """End it; a second call does nothing."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone already
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reply(self, doing: str) -> Reply:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._death(doing)
        reply = json.loads(line)
        if "error" in reply:
            raise ChildDied(f"{self.name}: {reply['error']}")
        return reply

    def _death(self, doing: str) -> ChildDied:
        code = self._process.wait()
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self._errors.seek(0)
        said = [line.strip() for line in self._errors if line.strip()]
        last = f"; last it said: {said[-1][:200]}" if said else ""
        return ChildDied(f"{self.name} died of {cause} while {doing}{last}")


def serve(description: Reply, tests: Mapping[str, Callable[..., Reply]]) -> None:
    """Say what this process is, then answer requests until the parent closes the pipe."""
    # Native code may print: whatever goes to standard output from here on goes to the errors.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps(description), file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        reply = tests[request.pop("test")](**request)
        print(json.dumps(reply), file=replies, flush=True)
