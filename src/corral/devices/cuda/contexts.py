"""Every device context of one process, under the one lock; the first who asks loads the driver."""

import functools
import logging
import os
from collections.abc import Iterator

from corral.devices.cuda.context import DeviceContext
from corral.devices.cuda.driver import Driver, LibraryDriver
from corral.devices.cuda.life_lock import LifeLock
from corral.errors import CorralError

_log = logging.getLogger(__name__)


class Contexts:
    """Every device context of one process, and their one lock."""

    def __init__(self, driver: Driver) -> None:
        """Load the driver, which makes no context.

        Raises:
            DeviceUnavailable: if there is none, or no device.
        """
        driver.initialize()
        self.driver = driver
        lock = LifeLock()  # of all devices: pinned memory and peers cross them
        self._devices = tuple(DeviceContext(facts, driver, lock) for facts in driver.devices())

    def __iter__(self) -> Iterator[DeviceContext]:
        """Go through the devices in the driver's order."""
        return iter(self._devices)

    def read(self, uuid: str) -> tuple[int, int] | None:
        """Return (free, total) of a device, or None where asking would leave traces or fails."""
        for device in self:
            if device.facts.uuid[4:] == uuid[4:]:  # the driver calls slices GPU- as well
                try:
                    return device.read()
                except CorralError as error:
                    _log.info("the driver does not tell the memory of %s: %s", uuid, error)
        return None


def process_contexts() -> Contexts:
    """Return the contexts of this process; the first call loads the driver.

    Raises:
        DeviceUnavailable: if the bindings, the driver or every device is missing, or in a child
            forked from a process that uses CUDA.
    """
    with _first:
        return _process_contexts()


@functools.cache
def _process_contexts() -> Contexts:
    return Contexts(LibraryDriver())


_first = LifeLock()


def _forked() -> None:
    """Let a child start anew if its parent had not loaded the driver, even if it was about to."""
    global _first
    if _process_contexts.cache_info().currsize == 0:
        _first = LifeLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
