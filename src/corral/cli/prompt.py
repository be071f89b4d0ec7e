"""What the user asks: the argument, what is piped in, or both."""

import os
import select
import stat
import sys
from io import UnsupportedOperation
from typing import TextIO

from corral.cli.output import note
from corral.errors import UsageError

_PATIENCE_S = 3.0
MAX_BYTES = 16 << 20
"""Far more than any context holds, and little beside a model."""


def gather(argument: str | None, stdin: TextIO | None) -> str | None:
    """Return the prompt, or None for a chat.

    A pipe beside an argument is taken if it says something within three seconds: programs started
    by other programs often inherit a pipe that nobody writes to or closes.

    Raises:
        UsageError: there is neither a prompt nor a terminal to chat on, or the prompt is empty,
            longer than `MAX_BYTES` or no UTF-8.
    """
    piped = _piped(stdin, is_needed=argument is None)
    if argument is None and piped is None:
        if stdin is not None and stdin.isatty():
            return None
        raise UsageError("no prompt: give one, pipe it in, or use a terminal for a chat")
    prompt = "\n\n".join(part for part in (argument, piped) if part)
    if not prompt.strip():
        raise UsageError("the prompt is empty; give some text")
    return prompt


def _piped(stdin: TextIO | None, *, is_needed: bool) -> str | None:
    """Return what is piped in, or None if nothing is connected."""
    if stdin is None or not _is_pipe_or_file(stdin):
        return None
    if not is_needed and not _speaks(stdin):
        note("standard input is open but silent; going on without it (</dev/null avoids the wait)")
        return None
    return _decoded(_bounded(stdin)).removesuffix("\n").removesuffix("\r")


def _bounded(stdin: TextIO) -> bytes:
    data = stdin.buffer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"standard input holds more than {MAX_BYTES >> 20} MiB, which no context is long "
            "enough for; pipe in less"
        )
    return data


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"standard input is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}; "
            "convert it, for example with iconv"
        ) from None


def _is_pipe_or_file(stdin: TextIO) -> bool:
    try:
        mode = os.fstat(stdin.fileno()).st_mode
    except (OSError, UnsupportedOperation, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)


def _speaks(stdin: TextIO) -> bool:
    """Whether there is data or an end within a short time."""
    ready, _, _ = select.select([stdin], [], [], _PATIENCE_S)
    return bool(ready)


def standard_input() -> TextIO | None:
    """Return stdin, or None where it was closed before the program started."""
    return sys.stdin if sys.stdin is not None and not sys.stdin.closed else None
