"""A CUDA device: memory asked of its driver in a few large pieces, weights kept packed.

Every buffer is one allocation whose address stays; values inside it have their places from the
plan. Staging is pinned host memory of this device's context, whatever thread asks for it.
"""

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corral.devices.base import Backend, MemoryReading
from corral.devices.closing import Closing
from corral.devices.cuda.backend import CudaBackend
from corral.devices.cuda.compile import Compiler
from corral.devices.cuda.context import DeviceContext, Owned
from corral.devices.cuda.driver import Driver
from corral.devices.cuda.life_lock import LifeLock
from corral.devices.packing import pack_rows
from corral.errors import CorralError, OutOfMemory
from corral.interrupts import deferred
from corral.memory.buffer import Buffer
from corral.memory.ledger import format_bytes
from corral.memory.lifetime import Lifetime
from corral.memory.planner import align
from corral.memory.stored import StoredSlot
from corral.memory.traits import DeviceTraits
from corral.quant.dequantize import dequantize
from corral.tensor.ops import Op


class CudaDevice(Closing):
    """Owner of one device's memory in this process."""

    def __init__(
        self,
        name: str,
        context: DeviceContext,
        driver: Driver,
        traits: DeviceTraits,
        *,
        compiler: Compiler,
        read: Callable[[], MemoryReading],
    ) -> None:
        """Open a device; its context begins with the first buffer. `read` tells its memory."""
        self.name = name
        self.traits = traits
        self.context = context
        self.driver = driver
        self.compiler = compiler
        self._read = read
        self._buffers: dict[Buffer, Owned] = {}
        self._lock = LifeLock()
        self.is_closed = False

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all open buffers, pinned host memory included."""
        with self._lock:
            return sum(buffer.size_bytes for buffer in self._buffers)

    @property
    def context_bytes(self) -> int:
        """What the device's context takes if there is one in this process, whoever made it."""
        try:
            is_active = self.context.is_active()
        except CorralError:  # a device at fault keeps its context until the process ends
            is_active = True
        return self.traits.context_bytes if is_active else 0

    def memory(self) -> MemoryReading:
        """Read how much memory the device has; leaves nothing behind."""
        return self._read()

    def hold(self) -> ExitStack:
        """Have the device's context until the result is closed.

        Raises:
            OutOfMemory: if the driver has no room for it.
            StaleContext: as `allocate`.
            Closed: after close().
        """
        self._require_open()
        stack = ExitStack()
        stack.callback(self.context.hold().close)
        return stack

    def allocate(self, size_bytes: int, lifetime: Lifetime) -> Buffer:
        """Ask the driver for zero-filled bytes, rounded up to its granularity.

        Raises:
            OutOfMemory: if the driver refuses.
            StaleContext: if other code ended the device's context; once, then a new one begins.
            Closed: after close().
        """
        self._require_open()
        size = align(max(size_bytes, 1), self.traits.granularity)
        with deferred:
            try:
                owned = self._own(size, lifetime)
            except OutOfMemory as error:
                raise OutOfMemory(
                    f"{lifetime.value} needs {format_bytes(size)} on {self.name}: {error}"
                ) from error
            alive = owned.require_alive
            buffer = Buffer(
                self.name, lifetime, size, owned.handle, self._free, _require_alive=alive
            )
            with self._lock:
                self._buffers[buffer] = owned
            return buffer

    def _own(self, size: int, lifetime: Lifetime) -> Owned:
        driver = self.driver
        if lifetime in (Lifetime.STAGING, Lifetime.RECORDS):
            return self.context.own(
                "pinned memory", lambda: driver.allocate_host(size), driver.free_host
            )

        owned = self.context.own("memory", lambda: driver.allocate(size), driver.free)
        try:
            with self.context.current(owned):  # it waits for the device, so outside of the lock
                driver.fill(owned.handle, size)
        except BaseException:
            owned.close()
            raise
        return owned

    def _free(self, buffer: Buffer) -> None:
        if self._lock.is_foreign:  # a forked child: the bytes are the parent's
            return
        owned = self._buffers[buffer]
        owned.close()
        if owned.is_closed:
            with self._lock:
                self._buffers.pop(buffer, None)

    def _owned(self, buffer: Buffer) -> Owned:
        """Return what a buffer is to the driver; raises as its `address` does."""
        buffer.require_open()
        with self._lock:
            return self._buffers[buffer]

    def upload(self, slot: StoredSlot, weights: Buffer, first_row: int, data: memoryview) -> None:
        """Store whole rows of a weight in its packed form; any thread may do so.

        Raises:
            Closed: after close() of the device or the buffer.
            StaleContext: if other code ended the device's context.
        """
        self._require_open()
        owned = self._owned(weights)
        to, values = weights.address + slot.offset, _stored(slot, data)
        if slot.form.layout is not None:
            interleave, columns = self.traits.interleave, slot.tensor.columns
            block_bytes = slot.form.layout.row_block_bytes(columns, interleave)
            to += first_row // interleave * block_bytes
        with self.context.current(owned):
            self.driver.copy_to_device(to, values.ctypes.data, values.nbytes)

    def download(self, buffer: Buffer, offset: int, size_bytes: int) -> NDArray[np.uint8]:
        """Return bytes of a buffer: (size_bytes,).

        Raises:
            Closed, StaleContext: as `upload`.
        """
        self._require_open()
        out = np.empty(size_bytes, np.uint8)
        with self.context.current(self._owned(buffer)):
            self.driver.copy_to_host(out.ctypes.data, buffer.address + offset, size_bytes)
        return out

    def put(self, buffer: Buffer, offset: int, data: NDArray[np.uint8]) -> None:
        """Write bytes into a buffer, and wait until they are there for every stream.

        Raises:
            Closed, StaleContext: as `upload`.
        """
        self._require_open()
        with self.context.current(self._owned(buffer)):
            self.driver.copy_to_device(buffer.address + offset, data.ctypes.data, data.nbytes)
            self.driver.synchronize()  # from pageable memory the last piece may be on its way

    def backend(self) -> Backend:
        """Return a new executor with a stream of its own.

        Raises:
            OutOfMemory: if the driver has no room for the device's context.
            StaleContext: as `allocate`.
            Closed: after close().
        """
        self._require_open()
        return CudaBackend(self)

    def _release(self) -> None:
        if not self._lock.is_foreign and self.allocated_bytes:
            warnings.warn(
                f"{self.name} was closed before {self.allocated_bytes} bytes of its buffers",
                ResourceWarning,
                stacklevel=3,
            )


def _stored(slot: StoredSlot, data: memoryview) -> NDArray[Any]:
    """Return rows as the device keeps them."""
    tensor = slot.tensor
    if tensor.op is Op.CONSTANT:
        return np.frombuffer(data, np.float64)
    if slot.form.layout is None:
        return np.ascontiguousarray(dequantize(data, tensor.dtype, (tensor.columns,)), np.float32)
    rows = len(data) // tensor.dtype.row_bytes(tensor.columns)
    return pack_rows(np.frombuffer(data, np.uint8), tensor.dtype, rows, tensor.columns)
