"""A helper process that can do no harm: bounded in time and output, and not left behind.

It is started afresh, never forked off to go on with our memory, in a process group of its own,
which is killed when the helper has ended, whatever it started meanwhile. What a helper is for is
not known here.
"""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

_STEP_S = 0.005
"""How often an ended helper is looked for while nothing arrives."""
_GRACE_S = 1.0
"""How long a killed process may take to be gone, unless a driver holds it."""
_PIECE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Finished:
    """How a helper ended."""

    status: int
    """Exit status; a signal's number made negative if it died of one."""
    output: bytes


class HelperFailed(Exception):
    """A helper could not be started, ran for too long or said too much."""


class Lingering(Protocol):
    """A process that was killed and is not gone."""

    pid: int

    def poll(self) -> int | None:
        """Return its exit status once it is gone."""
        ...


class HelperStuck(HelperFailed):
    """A helper does not end although it was killed: a driver holds it in the kernel."""

    def __init__(self, message: str, process: Lingering) -> None:
        """Keep the process, which is still to be waited for."""
        super().__init__(message)
        self.process = process


def run_bounded(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    seconds: float,
    output_bytes: int = 1 << 16,
) -> Finished:
    """Run a command without input and return its status and standard output.

    Raises:
        HelperFailed: it could not be started, or was killed at one of the two limits.
    """
    if sys.platform == "win32":
        raise HelperFailed("helper processes need process groups, which this system has not")
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise HelperFailed(f"a helper process could not be started: {error}") from error
    try:
        output = _collect(process, time.monotonic() + seconds, output_bytes)
    finally:
        _end(process)
    return Finished(process.returncode, output)


def _collect(process: subprocess.Popen[bytes], deadline: float, limit: int) -> bytes:
    """Return what the process writes until it ends, which it then has, but is not waited for."""
    assert process.stdout is not None
    output = bytearray()
    pipe = process.stdout.fileno()
    os.set_blocking(pipe, False)
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        is_open = True
        while not _has_ended(process):
            if time.monotonic() >= deadline:
                raise HelperFailed(f"helper process {process.pid} took too long and was killed")
            if not is_open:
                time.sleep(_STEP_S)
            elif selector.select(_STEP_S):
                is_open = _take(pipe, output, limit) != 0
    while _take(pipe, output, limit):  # what was written just before the end
        pass
    return bytes(output)


def _take(pipe: int, output: bytearray, limit: int) -> int | None:
    """Add what can be read now; return how many bytes, 0 at the end, None if nothing is there."""
    try:
        piece = os.read(pipe, _PIECE_BYTES)
    except BlockingIOError:
        return None
    output += piece
    if len(output) > limit:
        raise HelperFailed(f"a helper process wrote more than {limit} bytes and was killed")
    return len(piece)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Say whether it ended. Not waited for, its number still names its group and nobody else's."""
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    try:
        return os.waitid(os.P_PID, process.pid, flags) is not None
    except ChildProcessError as error:
        raise HelperFailed("other code of this process waited for a helper process") from error


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the group and wait for the helper, so that no zombie stays.

    Raises:
        HelperStuck: if it does not go.
    """
    assert process.stdout is not None
    process.stdout.close()
    with suppress(ProcessLookupError, PermissionError):  # nobody is left, or only the dead
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        text = f"helper process {process.pid} was killed and does not end"
        raise HelperStuck(text, process) from None
