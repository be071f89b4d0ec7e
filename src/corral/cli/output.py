"""Text for people: notes on stderr, results on stdout, nothing that drives a terminal."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TextIO

from corral.errors import ResourceError

# What a terminal would obey rather than show; line feed and tab stay.
_CONTROLS = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in (9, 10)
}


def note(text: str) -> None:
    """Print one line about what goes on, to stderr."""
    print(f"corral: {text}", file=sys.stderr, flush=True)


def visible(text: str) -> str:
    """Return text whose control characters show instead of driving the terminal."""
    return text.translate(_CONTROLS)


def write(text: str, stream: TextIO | None = None) -> None:
    """Write a piece of an answer at once: as it is to a file or pipe, safely to a terminal."""
    target = sys.stdout if stream is None else stream
    with _writing("the answer"):
        target.write(visible(text) if target.isatty() else text)
        target.flush()


def say(text: str = "") -> None:
    """Print lines of a result on stdout."""
    with _writing("the result"):
        print(text)


def finish() -> None:
    """Write what is still buffered for stdout: a full disk shall be told, not found out later."""
    with _writing("the result"):
        sys.stdout.flush()


@contextmanager
def _writing(what: str) -> Iterator[None]:
    """Say what could not be written and why; a reader that is gone stays a BrokenPipeError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        discard()
        raise ResourceError(f"cannot write {what}: {error.strerror}") from error


def discard() -> None:
    """Point stdout nowhere: the interpreter flushes it once more at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(value: object) -> None:
    """Print one JSON value on stdout."""
    say(json.dumps(value, ensure_ascii=False, indent=2))


def columns(rows: Iterable[Sequence[str]], align: str) -> Iterator[str]:
    """Yield the lines of a table; `align` has < or > for each column."""
    table = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = (
            f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)
        )
        yield "  ".join(cells).rstrip()


def print_columns(rows: Iterable[Sequence[str]], align: str) -> None:
    """Print rows in columns on stdout, aligned as `columns` does."""
    for line in columns(rows, align):
        say(line)


def megabytes(size: int) -> str:
    """Return a size in the decimal unit that download sizes are given in."""
    return f"{size / 1e6:.1f} MB"
