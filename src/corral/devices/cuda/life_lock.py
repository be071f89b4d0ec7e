"""The one life-cycle lock of a process, which a forked child cannot wait for in vain.

A child has a copy of the lock as it was, perhaps held by a thread that the child does not have.
CUDA does not survive a fork, so the child is told so before it waits.
"""

import os
import threading
from types import TracebackType

from corral.errors import DeviceUnavailable
from corral.interrupts import deferred


class LifeLock:
    """A re-entrant lock of the process that made it; within, interrupts wait."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pid = os.getpid()

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a child of the lock's, forked from it."""
        return os.getpid() != self._pid

    def __enter__(self) -> None:
        """Wait for the lock.

        Raises:
            DeviceUnavailable: in a forked child.
        """
        if self.is_foreign:
            raise DeviceUnavailable(
                "this process was forked from one that uses CUDA, which CUDA does not survive: "
                "start processes with the 'spawn' method"
            )
        deferred.__enter__()
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()
        deferred.__exit__(kind, error, trace)
