"""Device memory for the status page, read in a thread and at most once a second.

What reads devices is handed in: this package knows none.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec

from corral.log import logger

_log = logger(__name__)
_FRESH_S = 1.0


class DeviceState(msgspec.Struct, frozen=True, kw_only=True):
    """A device at one moment; a size that nobody could read is None."""

    name: str
    title: str
    total_bytes: int | None
    free_bytes: int | None
    foreign_bytes: int | None = None
    """What other processes hold."""


ReadDevices = Callable[[], Sequence[DeviceState]]


class Readings:
    """The newest reading of all devices, shared by everybody who looks."""

    def __init__(self, read: ReadDevices | None) -> None:
        """Read through a callable, which may take its time; None reads nothing."""
        self._read = read
        self._lock = asyncio.Lock()
        self._taken = float("-inf")
        self._states: tuple[DeviceState, ...] = ()

    def forget(self) -> None:
        """Have the next look read again."""
        self._taken = float("-inf")

    async def newest(self) -> tuple[DeviceState, ...]:
        """Return the devices as they were at most a second ago, or as last read if that fails."""
        if self._read is None:
            return ()
        async with self._lock:
            if time.monotonic() - self._taken >= _FRESH_S:
                try:
                    self._states = tuple(await asyncio.to_thread(self._read))
                except Exception as error:  # whatever a driver does, the page goes on
                    _log.warning("cannot read the devices: %s", error)
                self._taken = time.monotonic()
        return self._states
