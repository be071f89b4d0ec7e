"""Text for people: notes on stderr, results on stdout, nothing that drives a terminal."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

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
    target.write(visible(text) if target.isatty() else text)
    target.flush()


def print_json(value: object) -> None:
    """Print one JSON value on stdout."""
    print(json.dumps(value, ensure_ascii=False, indent=2))


def print_columns(rows: Iterable[Sequence[str]], align: str) -> None:
    """Print rows in aligned columns on stdout; `align` has < or > for each column."""
    table = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = (
            f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)
        )
        print("  ".join(cells).rstrip())


def megabytes(size: int) -> str:
    """Return a size in the decimal unit that download sizes are given in."""
    return f"{size / 1e6:.1f} MB"
