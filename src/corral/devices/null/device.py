"""The null device: addresses without memory behind them, for any traits.

Staging alone is real: it is the host's memory, and whoever loads a model writes to it.
"""

import threading
import warnings

import numpy as np
from numpy.typing import NDArray

from corral.devices.base import MemoryReading
from corral.devices.closing import Closing
from corral.devices.contextless import Contextless
from corral.devices.host import HostMemory
from corral.devices.null.backend import NullBackend
from corral.errors import OutOfMemory
from corral.memory.buffer import Buffer
from corral.memory.ledger import format_bytes
from corral.memory.lifetime import Lifetime
from corral.memory.planner import align
from corral.memory.stored import StoredSlot
from corral.memory.traits import DeviceTraits

_ENDLESS = 1 << 56
_FIRST_ADDRESS = 1 << 56
"""Far from anything that is mapped: whoever uses such an address faults at once."""


class NullDevice(Contextless, Closing):
    """Stands in for a device of the given traits, of which this machine need not have any."""

    name = "null"

    def __init__(self, traits: DeviceTraits, *, total_bytes: int = _ENDLESS) -> None:
        self.traits = traits
        self.uploaded_bytes = 0
        """Bytes of the file that weights were made of."""
        self._total_bytes = total_bytes
        self._open: set[Buffer] = set()
        self._host = HostMemory(self.name)
        self._lock = threading.Lock()
        self._next_address = _FIRST_ADDRESS
        self.is_closed = False

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all open buffers."""
        return self._host.allocated_bytes + sum(buffer.size_bytes for buffer in self._open)

    def memory(self) -> MemoryReading:
        """Return what the constructor was told, less what is allocated."""
        return MemoryReading(self._total_bytes, self._total_bytes - self.allocated_bytes, "null")

    def allocate(self, size_bytes: int, lifetime: Lifetime) -> Buffer:
        """Make up an address; staging gets one with memory.

        Raises:
            OutOfMemory: if the device would be more than full.
            Closed: after close().
        """
        self._require_open()
        size = align(size_bytes, self.traits.granularity)
        free = self._total_bytes - self.allocated_bytes
        if size > free:
            raise OutOfMemory(
                f"{lifetime.value} needs {format_bytes(size)} on {self.name}, "
                f"{format_bytes(free)} of {format_bytes(self._total_bytes)} are free"
            )
        if lifetime is Lifetime.STAGING:
            return self._host.allocate(size, lifetime)
        buffer = Buffer(self.name, lifetime, size, self._next_address, self._open.remove)
        self._next_address += size
        self._open.add(buffer)
        return buffer

    def upload(self, slot: StoredSlot, weights: Buffer, first_row: int, data: memoryview) -> None:
        """Count the bytes; any thread may do so.

        Raises:
            Closed: after close() of the device or the buffer.
        """
        self._require_open()
        weights.require_open()
        with self._lock:
            self.uploaded_bytes += data.nbytes

    def download(self, buffer: Buffer, offset: int, size_bytes: int) -> NDArray[np.uint8]:
        """Return zeros: (size_bytes,).

        Raises:
            Closed: after close() of the device or the buffer.
        """
        self._require_open()
        buffer.require_open()
        return np.zeros(size_bytes, np.uint8)

    def put(self, buffer: Buffer, offset: int, data: NDArray[np.uint8]) -> None:
        """Take bytes, and keep none.

        Raises:
            Closed: as `download`.
        """
        self._require_open()
        buffer.require_open()

    def backend(self) -> NullBackend:
        """Return a new executor that counts.

        Raises:
            Closed: after close().
        """
        self._require_open()
        return NullBackend(self)

    def _release(self) -> None:
        if self.allocated_bytes:
            warnings.warn(
                f"{self.name} was closed before {self.allocated_bytes} bytes of its buffers",
                ResourceWarning,
                stacklevel=3,
            )
