"""Asks a short-lived process what memory a device has: the asker never loads the driver.

read(uuid) ──▶ is one asking already? ── yes ──▶ wait for its answer
                     │ no
                     ▼
               wait until a second after the last start ──▶ run probe_child.py ──▶ add its context
                                                            back ──▶ one answer for all who wait

No answer outlives those who waited for it: nobody gets an old value, and a failure is unknown for
all. For where neither NVML nor this process's own context can tell.
"""

import json
import logging
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from corral.config import inherited
from corral.devices.bounded_process import (
    Finished,
    HelperFailed,
    HelperStuck,
    Lingering,
    run_bounded,
)
from corral.devices.context_cost import MAX_CONTEXT_BYTES, ContextCosts
from corral.devices.probe_child import TAG

_log = logging.getLogger(__name__)

_CHILD = Path(__file__).with_name("probe_child.py")
_SLACK_S = 3.0
"""What ending a child may take, beyond its time."""
_TEXT_LENGTH = 256
_MAX_BYTES = 1 << 50

INHERITED = (
    *("LD_LIBRARY_PATH", "LD_PRELOAD"),
    *("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"),
)
"""The variables that decide which driver answers, and whose view of the device it gives."""


@dataclass(frozen=True, slots=True)
class ProbeReading:
    """What a device had when its probe ran, as if there had been no probe."""

    uuid: str
    name: str
    driver_version: str
    total_bytes: int
    free_bytes: int
    """The driver's number, and the probe's own context added back."""
    context_bytes: int | None
    """What was added back; None if nobody knows what the context took."""
    context_is_measured: bool
    """Whether this very probe measured it; else it was measured earlier, and stored."""

    @property
    def is_lower_bound(self) -> bool:
        """Whether more may be free than `free_bytes`: the probe's own context is not added."""
        return self.context_bytes is None


@dataclass(frozen=True, slots=True)
class ProbeFailure:
    """Why nothing is known of a device's memory."""

    reason: str


_INTERRUPTED = ProbeFailure("the probe was interrupted")


class Run(Protocol):
    """How a child is run: `run_bounded`, unless a test counts."""

    def __call__(
        self, command: tuple[str, ...], environment: Mapping[str, str], *, seconds: float
    ) -> Finished:
        """Run it and return how it ended; raises HelperFailed."""
        ...


@dataclass(slots=True, eq=False)
class _Flight:
    """One child, and all who wait for it."""

    outcome: ProbeReading | ProbeFailure = _INTERRUPTED
    landed: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True, eq=False)
class _Slot:
    """What is remembered of a device; no value of it is."""

    flight: _Flight | None = None
    not_before: float = 0.0
    stuck: Lingering | None = None


class Probe:
    """Reads devices through child processes, one a device at a time. Threads may share it."""

    def __init__(
        self,
        costs: ContextCosts | None = None,
        *,
        child: Path = _CHILD,
        seconds: float = 10.0,
        interval_seconds: float = 1.0,
        run: Run = run_bounded,
    ) -> None:
        """Remember in `costs` what contexts take; a child is killed after `seconds`.

        At least `interval_seconds` lie between the starts of two children for one device.
        """
        self._costs = costs
        self._child = child
        self._seconds = seconds
        self._interval_s = interval_seconds
        self._run = run
        self._lock = threading.Lock()  # of the slots; never held while a child runs
        self._slots: dict[str, _Slot] = {}

    def read(self, uuid: str) -> ProbeReading | None:
        """Return what a device has now, by its full UUID (GPU-… or MIG-…); None is unknown."""
        outcome = self.attempt(uuid)
        return outcome if isinstance(outcome, ProbeReading) else None

    def attempt(self, uuid: str) -> ProbeReading | ProbeFailure:
        """Return what `read` does, and instead of None the reason."""
        slot, flight, is_first = self._join(uuid)
        if is_first:
            self._fly(uuid, slot, flight)
        elif not flight.landed.wait(self._interval_s + self._seconds + _SLACK_S):
            self._leave(slot, flight)  # its thread is gone: the next caller starts anew
            return ProbeFailure("another thread's probe gave no answer in time")
        return flight.outcome

    def _join(self, uuid: str) -> tuple[_Slot, _Flight, bool]:
        """Return the flight under way, or a new one that the caller must fly."""
        with self._lock:
            slot = self._slots.setdefault(uuid, _Slot())
            if slot.flight is not None:
                return slot, slot.flight, False
            slot.flight = _Flight()
            return slot, slot.flight, True

    def _fly(self, uuid: str, slot: _Slot, flight: _Flight) -> None:
        try:
            flight.outcome = self._ask(uuid, slot)
        finally:
            self._leave(slot, flight)
            flight.landed.set()
        if isinstance(flight.outcome, ProbeFailure):
            _log.info("the memory of %s is unknown: %s", uuid, flight.outcome.reason)

    def _leave(self, slot: _Slot, flight: _Flight) -> None:
        """Let nobody join a flight any more."""
        with self._lock:
            if slot.flight is flight:
                slot.flight = None

    def _ask(self, uuid: str, slot: _Slot) -> ProbeReading | ProbeFailure:
        """Run one child; only the flight's first caller does, so the slot needs no lock."""
        time.sleep(max(0.0, slot.not_before - time.monotonic()))
        if slot.stuck is not None and slot.stuck.poll() is None:
            return ProbeFailure(f"the last probe, process {slot.stuck.pid}, cannot be ended")
        slot.stuck = None
        slot.not_before = time.monotonic() + self._interval_s
        command = (sys.executable or "", "-I", "-S", str(self._child), uuid, str(self._seconds))
        environment = {**inherited(INHERITED), "CUDA_VISIBLE_DEVICES": uuid}
        try:
            told = parse(self._run(command, environment, seconds=self._seconds), uuid)
        except HelperStuck as error:
            slot.stuck = error.process
            return ProbeFailure(str(error))
        except HelperFailed as error:
            return ProbeFailure(str(error))
        return self._add_context(told)

    def _add_context(self, told: ProbeReading) -> ProbeReading:
        """Add back what the child's own context took, and remember it if that is new."""
        cost, costs = told.context_bytes, self._costs
        stored = costs.lookup(told.name, told.driver_version) if costs else None
        if costs and cost is not None and stored is None:
            costs.store(told.name, told.driver_version, cost)
        added = stored if cost is None else cost
        free = min(told.total_bytes, told.free_bytes + (added or 0))
        return replace(told, free_bytes=free, context_bytes=added)


def parse(finished: Finished, uuid: str) -> ProbeReading:
    """Return what a child told, its context not added back yet.

    Raises:
        HelperFailed: if it failed, said nothing clear, or spoke of another device.
    """
    told = _tagged(finished.output)
    if finished.status != 0:
        reason = str(told.get("error", "it gave no reason"))[:_TEXT_LENGTH]
        raise HelperFailed(f"the probe ended with status {finished.status}: {reason}")
    if (found := _text(told, "uuid")).lower() != uuid.lower():
        raise HelperFailed(f"the probe was asked for {uuid} and spoke of {found}")
    total = _count(told, "total_bytes", _MAX_BYTES)
    context = told.get("context_bytes")
    if context is not None:
        context = _count(told, "context_bytes", min(total, MAX_CONTEXT_BYTES))
    return ProbeReading(
        uuid,
        _text(told, "name"),
        _text(told, "driver_version"),
        total,
        _count(told, "free_bytes", total),
        context,
        context_is_measured=context is not None,
    )


def _tagged(output: bytes) -> dict[str, Any]:
    """Return the object of the one tagged line; libraries may have printed around it."""
    prefix = f"{TAG} ".encode()
    lines = [line for line in output.split(b"\n") if line.startswith(prefix)]
    try:
        told = json.loads(lines[0].removeprefix(prefix)) if len(lines) == 1 else None
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _text(told: dict[str, Any], name: str) -> str:
    value = told.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= _TEXT_LENGTH:
        raise HelperFailed(f"the probe's report has no usable {name}")
    return value


def _count(told: dict[str, Any], name: str, most: int) -> int:
    value = told.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise HelperFailed(f"the probe's report has no usable {name}")
    return value
