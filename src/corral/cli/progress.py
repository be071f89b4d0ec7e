"""How far slow work is: a bar on a terminal, a few plain lines elsewhere, nothing if it is fast."""

import sys
import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TextIO

from corral.cli.output import megabytes, note
from corral.log import logger

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_log = logger(__name__)
_PLAIN_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Stage:
    """How one stage is shown."""

    text: str
    are_bytes: bool = True
    delay_s: float = 0.0
    """A stage that ends sooner is not shown."""
    done: str = ""
    """What to say at the end, with {total} and {seconds}; it stays on the screen."""


STAGES: Final = {
    "wait": Stage("another corral is fetching this model; waiting", are_bytes=False),
    "download": Stage("downloading"),
    "unpack": Stage("unpacking", delay_s=1.0),
    "read": Stage("reading weights", delay_s=1.0),
    "quantize": Stage("quantizing", delay_s=1.0),
    "lower": Stage("preparing", are_bytes=False, delay_s=1.0),
    "kernels": Stage(
        "compiling kernels for this CPU, once",
        are_bytes=False,
        done="compiled {total} kernels for this CPU in {seconds:.1f} s",
    ),
    "compile": Stage(
        "compiling kernels for this GPU, once",
        are_bytes=False,
        done="compiled {total} kernels for this GPU in {seconds:.1f} s",
    ),
    "score": Stage("scoring chunks", are_bytes=False),
    "bench": Stage("measuring", are_bytes=False),
}


class ProgressDisplay:
    """Shows the calls of a progress callback; use it in a `with`, which removes the bar."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Show on a stream, stderr by default."""
        self._stream = sys.stderr if stream is None else stream
        self._stage = ""
        self._began = self._spoke = 0.0
        self._bars: Progress | None = None
        self._bar: TaskID | None = None

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Take (stage, done, total); a total of 0 is unknown."""
        if stage != self._stage:
            self._begin(stage)
        if total and done >= total:
            _log.debug("%s: %d in %.3f s", stage, total, time.monotonic() - self._began)
        shown = STAGES.get(stage, Stage(stage, are_bytes=False))
        elapsed = time.monotonic() - self._began
        if elapsed >= shown.delay_s and not (total and done >= total):
            self._show(shown, done, total)
        elif total and done >= total and (self._bar is not None or self._spoke):
            self._end(shown, total, elapsed)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the bar."""
        self.close()

    def close(self) -> None:
        """Remove the bar, so that others can write; a later call shows it again."""
        if self._bars is not None:
            self._bars.stop()
        self._bars = self._bar = None

    def _begin(self, stage: str) -> None:
        self.close()
        self._stage = stage
        self._began = time.monotonic()
        self._spoke = 0.0

    def _end(self, shown: Stage, total: int, elapsed: float) -> None:
        self._begin("")
        if shown.done:
            note(shown.done.format(total=total, seconds=elapsed))

    def _show(self, shown: Stage, done: int, total: int) -> None:
        if self._stream.isatty():
            self._draw(shown, done, total)
        elif not self._spoke or time.monotonic() - self._spoke > _PLAIN_EVERY_S:
            amount = _percent(done, total) if self._spoke else _whole(shown, total)
            self._spoke = time.monotonic()
            note(f"{shown.text}{amount}")

    def _draw(self, shown: Stage, done: int, total: int) -> None:
        if self._bars is None:
            self._bars = _make_bars(self._stream, are_bytes=shown.are_bytes)
            self._bar = self._bars.add_task(shown.text, total=total or None)
            self._bars.start()
        assert self._bar is not None
        self._bars.update(self._bar, completed=done, total=total or None)


def _whole(shown: Stage, total: int) -> str:
    return f" ({megabytes(total) if shown.are_bytes else total})" if total else ""


def _percent(done: int, total: int) -> str:
    return f": {100 * done // total} %" if total else ""


def _make_bars(stream: TextIO, *, are_bytes: bool) -> "Progress":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    counts = (DownloadColumn(), TransferSpeedColumn()) if are_bytes else (MofNCompleteColumn(),)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *counts,
        TimeRemainingColumn(),
        console=Console(file=stream),
        transient=True,
    )
