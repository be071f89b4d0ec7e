"""The reference device: host memory, weights kept as plain F32 rows."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corral.devices.base import MemoryReading
from corral.devices.contextless import Contextless
from corral.devices.host import PAGE_BYTES, HostMemory, array_at, host_memory
from corral.devices.host_copies import HostCopies
from corral.devices.reference.backend import ReferenceBackend
from corral.memory.buffer import Buffer
from corral.memory.lifetime import Lifetime
from corral.memory.stored import StoredSlot
from corral.memory.traits import DeviceTraits
from corral.quant.dequantize import dequantize
from corral.tensor.ops import Op

RECORD_BYTES = 8


def reference_traits(fused: frozenset[Op] = frozenset()) -> DeviceTraits:
    """Return the traits of a reference device that lets rewrites make the given operations."""
    return DeviceTraits(
        kind="reference",
        alignment=64,
        granularity=PAGE_BYTES,
        interleave=0,
        fused=fused,
        record_bytes=RECORD_BYTES,
        attaches=True,
    )


class ReferenceDevice(Contextless, HostCopies):
    """Computes on the host in F32, or better where that is cheap.

    Without fused operations it gives what an exact F32 model gives; with them it shows what a
    fusion does to the numbers.
    """

    name = "reference"

    def __init__(self, fused: frozenset[Op] = frozenset()) -> None:
        self.traits = reference_traits(fused)
        self._memory = HostMemory(self.name)
        self.is_closed = False

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all open buffers."""
        return self._memory.allocated_bytes

    def memory(self) -> MemoryReading:
        """Read how much memory the host has."""
        total, available = host_memory()
        return MemoryReading(total, available, "host")

    def allocate(self, size_bytes: int, lifetime: Lifetime) -> Buffer:
        """Map zero-filled pages.

        Raises:
            OutOfMemory: if the system refuses.
            Closed: after close().
        """
        self._require_open()
        return self._memory.allocate(size_bytes, lifetime)

    def upload(self, slot: StoredSlot, weights: Buffer, first_row: int, data: memoryview) -> None:
        """Store whole rows of a weight, decoded to F32; vectors and constants come whole.

        Raises:
            Closed: after close().
        """
        self._require_open()
        tensor = slot.tensor
        offset = slot.offset + first_row * slot.form.dtype.row_bytes(tensor.columns)
        if tensor.op is Op.CONSTANT:
            self._copy(np.frombuffer(data, np.float64), weights.address + offset)
        else:
            rows = data.nbytes // tensor.dtype.row_bytes(tensor.columns)
            values = dequantize(data, tensor.dtype, (rows, tensor.columns))
            self._copy(values, weights.address + offset)

    def _copy(self, values: NDArray[Any], address: int) -> None:
        array_at(address, values.shape, values.dtype)[:] = values

    def backend(self) -> ReferenceBackend:
        """Return a new executor; NumPy decides for itself how many threads it uses.

        Raises:
            Closed: after close().
        """
        self._require_open()
        return ReferenceBackend(self)

    def _release(self) -> None:
        if self.allocated_bytes:
            warnings.warn(
                f"{self.name} was closed before {self.allocated_bytes} bytes of its buffers",
                ResourceWarning,
                stacklevel=3,
            )
