"""The CPU device: host memory, packed weights, kernels compiled for this very processor."""

import threading
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corral.config import settings
from corral.devices.base import MemoryReading
from corral.devices.contextless import Contextless
from corral.devices.cpu.backend import CpuBackend
from corral.devices.cpu.compile import Compiler
from corral.devices.cpu.features import Target, runnable
from corral.devices.cpu.kernels.pack import pack_record
from corral.devices.cpu.native import call
from corral.devices.cpu.rules import pack_spec
from corral.devices.cpu.traits import cpu_traits
from corral.devices.host import HostMemory, array_at, host_memory
from corral.devices.host_copies import HostCopies
from corral.errors import DeviceUnavailable
from corral.memory.buffer import Buffer
from corral.memory.lifetime import Lifetime
from corral.memory.stored import StoredSlot
from corral.paths import CacheTree
from corral.quant.dequantize import dequantize
from corral.quant.types import DType
from corral.tensor.ops import Op


class CpuDevice(Contextless, HostCopies):
    """Owner of host memory and of the machine code that runs on it."""

    name = "cpu"

    def __init__(self, target: Target | None = None, *, threads: int | None = None) -> None:
        """Open the device for a processor; by default the best this machine can be.

        Raises:
            DeviceUnavailable: if CORRAL_CPU names a path this machine cannot run.
        """
        self.traits = cpu_traits(threads)
        self.target = target or _target(settings().cpu)
        self.compiler = Compiler(self.target, CacheTree(settings().cache).kernels())
        self._compiling = threading.Lock()
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
        """Store whole rows of a weight in its packed form; vectors and constants come whole.

        Raises:
            Closed: after close().
        """
        self._require_open()
        tensor, layout = slot.tensor, slot.form.layout
        to = weights.address + slot.offset
        if layout is None:
            values = _plain(slot, data)
            array_at(to, values.shape, values.dtype)[:] = values
            return
        interleave = self.traits.interleave
        rows = len(data) // tensor.dtype.row_bytes(tensor.columns)
        to += first_row // interleave * layout.row_block_bytes(tensor.columns, interleave)
        source = np.frombuffer(data, np.uint8).ctypes.data
        kernel = self._pack_kernel(tensor.dtype)
        call(kernel, pack_record(source, to, rows=rows, columns=tensor.columns))

    def _pack_kernel(self, dtype: DType) -> int:
        with self._compiling:  # several threads upload, one at a time may compile
            spec = pack_spec(dtype)
            return self.compiler.request([spec])[spec]

    def backend(self) -> CpuBackend:
        """Return a new executor with a team of threads; as many as the traits say.

        Raises:
            Closed: after close().
        """
        self._require_open()
        return CpuBackend(self)

    def _release(self) -> None:
        self.compiler.close()
        if self.allocated_bytes:
            warnings.warn(
                f"{self.name} was closed before {self.allocated_bytes} bytes of its buffers",
                ResourceWarning,
                stacklevel=3,
            )


def _plain(slot: StoredSlot, data: memoryview) -> NDArray[Any]:
    if slot.tensor.op is Op.CONSTANT:
        return np.frombuffer(data, np.float64)
    return dequantize(data, slot.tensor.dtype, (slot.tensor.columns,))


def _target(path: str | None) -> Target:
    targets = {target.path: target for target in runnable()}
    if path is None:
        return runnable()[0]
    if path not in targets:
        raise DeviceUnavailable(
            f"CORRAL_CPU is {path!r}, but this processor runs {', '.join(targets)}"
        )
    return targets[path]
