"""Logging through the standard `logging` module: silent as a library, to stderr for the CLI.

A message may quote a model file or a request, so control characters are escaped and a message is
cut to a fixed length: no line can forge another or drive a terminal.
"""

import logging
import sys
from typing import TextIO

_ROOT = "corral"
MAX_MESSAGE_CHARACTERS = 4096
MAX_TRACEBACK_LINES = 100
_LEVELS = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO, 2: logging.DEBUG}

# C0 and C1 controls, line separators, and the marks that reorder text.
_ESCAPED = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (
        *range(0x20),
        *range(0x7F, 0xA0),
        *range(0x200E, 0x2010),
        *range(0x2028, 0x202F),
        *range(0x2066, 0x206A),
    )
} | {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}

logging.getLogger(_ROOT).addHandler(logging.NullHandler())


def logger(name: str) -> logging.Logger:
    """Return the logger of a module; nothing is printed until `configure` or the host says so."""
    return logging.getLogger(name if name.partition(".")[0] == _ROOT else f"{_ROOT}.{name}")


def configure(verbosity: int = 0, *, stream: TextIO | None = None) -> None:
    """Print records to stderr (or another stream); a second call replaces the first.

    Verbosity −1 prints errors, 0 warnings, 1 information, 2 everything; it is cut to that range.
    Only loggers of corral are touched, so a host program keeps its own set-up.
    """
    root = logging.getLogger(_ROOT)
    for handler in list(root.handlers):
        if isinstance(handler, _Console):
            root.removeHandler(handler)
            handler.close()
    handler = _Console(stream if stream is not None else sys.stderr)
    handler.setFormatter(LineFormatter())
    root.addHandler(handler)
    root.setLevel(_LEVELS[max(-1, min(verbosity, 2))])
    root.propagate = False


def verbosity_of(level: str) -> int:
    """Return the verbosity that prints a level's records: debug, info, warning or error."""
    wanted = logging.getLevelNamesMapping()[level.upper()]
    return next(verbosity for verbosity, number in _LEVELS.items() if number == wanted)


def escape(text: str) -> str:
    """Make every control character of a text visible, so that it stays on one line."""
    return text.translate(_ESCAPED)


class LineFormatter(logging.Formatter):
    """Formats a record as one line; a traceback follows indented, one line each."""

    def __init__(self) -> None:
        super().__init__(datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line, and the traceback's lines if it carries one."""
        time = f"{self.formatTime(record, self.datefmt)}.{int(record.msecs):03d}"
        line = f"{time} {record.levelname:<7} {record.name}: {_cut(record.getMessage())}"
        if not record.exc_info:
            return line
        return "\n".join([line, *_indented(self.formatException(record.exc_info))])


class _Console(logging.StreamHandler[TextIO]):
    """The one handler `configure` adds, recognised when it is called again."""


def _cut(text: str) -> str:
    rest = len(text) - MAX_MESSAGE_CHARACTERS
    if rest <= 0:
        return escape(text)
    return f"{escape(text[:MAX_MESSAGE_CHARACTERS])}… and {rest} more characters"


def _indented(traceback: str) -> list[str]:
    # The end of a traceback names the error: the beginning is what is left out.
    lines = traceback.split("\n")
    left_out = len(lines) - MAX_TRACEBACK_LINES
    note = [f"    … {left_out} lines left out"] if left_out > 0 else []
    return note + [f"    {_cut(line)}" for line in lines[-MAX_TRACEBACK_LINES:]]
