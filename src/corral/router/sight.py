"""What is seen of all memories at one moment, and whether a process has left them."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from corral.errors import CorralError
from corral.log import logger
from corral.router.entry import HOST
from corral.router.placing import Machine
from corral.router.process import resident_bytes

RELEASE_S = 3.0
"""How long memory may take to show that a process that has ended is gone."""
_POLL_S = 0.05
_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Sight:
    """One reading of everything."""

    machine: Machine
    used: Mapping[str, Mapping[int, int | None]] = field(default_factory=dict)
    """By memory: what each process holds there that the driver names, None where it does not say
    how much. A memory whose processes nobody lists is left out."""

    def free(self, memory: str) -> int | None:
        """Return what is free of a memory; None if nobody knows."""
        found = (room.free_bytes for room in self.machine.rooms if room.memory == memory)
        return next(found, None)

    def is_listed(self, memory: str, pid: int) -> bool:
        """Whether a process is named among those that hold something there."""
        return pid in self.used.get(memory, {})

    def lists(self, pid: int) -> bool:
        """Whether a process is named anywhere."""
        return any(pid in used for used in self.used.values())


Read = Callable[[], Sight]
"""Reads all memories; it may take its time, and raises nothing but CorralError."""


def has_left(pid: int, sizes: Mapping[str, int], before: Sight | None, now: Sight) -> bool:
    """Whether cards show that a process that has ended is gone.

    Main memory is free when the process was waited for. A card that never showed the process cannot
    show its end; where the driver named it, it must name it no more; elsewhere half of its bytes
    must have become free: they come at once, and it may have held less than was booked.

    Args:
        pid: of the process.
        sizes: what it held, by memory.
        before: seen while it was there; None if nothing was.
    """
    cards = {memory: size for memory, size in sizes.items() if memory != HOST}
    return all(_has_left(memory, size, pid, before, now) for memory, size in cards.items())


def _has_left(memory: str, size: int, pid: int, before: Sight | None, now: Sight) -> bool:
    if before is None:
        return True
    if before.is_listed(memory, pid):
        return not now.is_listed(memory, pid)
    was, free = before.free(memory), now.free(memory)
    if was is None or free is None:
        return False
    return free - was >= size // 2


class Sights:
    """Reads memories, one reading at a time for all who ask."""

    def __init__(self, read: Read, clock: Callable[[], float] = time.monotonic) -> None:
        """Read through a callable."""
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._taken_s = float("-inf")
        self.last: Sight | None = None
        """As last read."""

    def newest(self, max_age_s: float) -> Sight:
        """Return a reading begun after this call, or one that is no older than this.

        Where nothing can be read, all that was known is unknown.
        """
        with self._lock:
            if self.last is None or self._clock() - self._taken_s >= max_age_s:
                self._taken_s = self._clock()
                try:
                    self.last = self._read()
                except CorralError as error:
                    _log.warning("no memory can be read: %s", error)
                    self.last = _unknown(self.last)
            return self.last

    def seen(self, sight: Sight, pids: Mapping[str, int]) -> dict[str, dict[str, int]]:
        """Return by model and memory what a reading shows of processes, given by model."""
        found: dict[str, dict[str, int]] = {}
        for model, pid in pids.items():
            shown = {memory: used.get(pid) or 0 for memory, used in sight.used.items()}
            found[model] = {**shown, HOST: resident_bytes(pid) or 0}
        return found

    def wait_until_left(self, pid: int, sizes: Mapping[str, int], before: Sight | None) -> bool:
        """Wait until memory shows that a process is gone; return whether it did in time.

        If it does not, the ledger and the next reading count: a process that held less than was
        thought, and others who take memory in the same moment, must not stop everybody.
        """
        deadline = self._clock() + RELEASE_S
        while not has_left(pid, sizes, before, self.newest(0.0)):
            if self._clock() >= deadline:
                _log.warning("process %d has ended, and no reading shows it", pid)
                return False
            time.sleep(_POLL_S)
        return True


def _unknown(last: Sight | None) -> Sight:
    if last is None:
        return Sight(Machine((), ()))
    rooms = tuple(replace(room, free_bytes=None) for room in last.machine.rooms)
    return Sight(replace(last.machine, rooms=rooms))
