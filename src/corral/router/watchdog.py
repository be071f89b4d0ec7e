"""Notices that a worker computes no more although it should, and has it ended.

    every few seconds: StatisticsQuestion ──▶ worker
        answered, its step is young     it lives
        answered, its step is old       its engine hangs
        not answered for long           all of it hangs

It knows no process: whoever makes it says what is to be done.
"""

import threading
import time
from collections.abc import Callable
from typing import Protocol

from corral.contract.questions import Answer, Question, ServiceStatistics, StatisticsQuestion
from corral.errors import CorralError, TimeLimitExceeded, WorkerLost
from corral.log import logger

STUCK_S = 300.0
"""How long a step may take before nobody believes that it ends; a large model on few cores has
steps of many seconds."""
_LOOKS = 10
"""How often to look before the limit is reached."""
_LONGEST_PAUSE_S = 5.0
_log = logger(__name__)


class Asked(Protocol):
    """The part of a service that is watched."""

    def ask(self, question: Question, *, timeout_s: float) -> Answer:
        """Wait for the answer to a question."""
        ...


def hang(step_age_s: float, silent_s: float, limit_s: float) -> str | None:
    """Return what hangs, in words; None if nothing does.

    Args:
        step_age_s: how old the step was that the worker last told of.
        silent_s: how long ago it told so.
        limit_s: how long either may be.
    """
    if step_age_s > limit_s:
        return f"no step of its engine ended for {step_age_s:.0f} s"
    if silent_s > limit_s:
        return f"it did not answer for {silent_s:.0f} s"
    return None


class Watchdog:
    """Watches one worker from a thread of its own, until `end`."""

    def __init__(self, worker: Asked, limit_s: float, on_hang: Callable[[CorralError], None]):
        """Watch a worker whose model is loaded; `on_hang` is called once at most, and ends it."""
        self._worker = worker
        self._limit_s = limit_s
        self._on_hang = on_hang
        self._is_ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="corral-watchdog", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Watch no more; the worker's connection must have ended, or a question may be waited for.

        `on_hang` is not called any more afterwards.
        """
        self._is_ended.set()
        self._thread.join()

    def _watch(self) -> None:
        pause_s = min(self._limit_s / _LOOKS, _LONGEST_PAUSE_S)
        heard_at = time.monotonic()
        while not self._is_ended.wait(pause_s):
            step_age_s = 0.0
            try:
                held = self._worker.ask(StatisticsQuestion(), timeout_s=pause_s)
            except TimeLimitExceeded:
                _log.debug("a worker does not answer")
            except CorralError:  # it is gone: whoever reads from it sees that, too
                return
            else:
                assert isinstance(held, ServiceStatistics), "asked for it"
                heard_at, step_age_s = time.monotonic(), held.step_age_s
            what = hang(step_age_s, time.monotonic() - heard_at, self._limit_s)
            if what is not None:
                self._on_hang(WorkerLost(f"the process that holds the model was ended: {what}"))
                return
