"""Host memory that is asked of and given back to the operating system, page by page.

Shared by every device whose memory is the host's. Anonymous mappings are zero-filled and leave
nothing behind when they go, unlike a heap.
"""

import ctypes
import functools
import mmap
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corral.devices.control_group import group_limits
from corral.errors import OutOfMemory
from corral.memory.buffer import Buffer
from corral.memory.lifetime import Lifetime
from corral.memory.planner import align

PAGE_BYTES = mmap.PAGESIZE
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
"""Python's default is shared memory: it gets no huge pages, and is not counted as anonymous."""
_HUGE_FROM_BYTES = 8 << 20
"""Below this, 2 MiB pages would cost more memory than they save time."""
_POPULATE_WRITE = 23 if sys.platform == "linux" else None
"""MADV_POPULATE_WRITE, from Linux 5.14 on: give all pages now, so that no evaluation asks for one.
Elsewhere pages come when they are first written."""


class HostMemory:
    """Allocates buffers for one device and counts their bytes."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._mappings: dict[Buffer, mmap.mmap] = {}

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all open buffers."""
        return sum(buffer.size_bytes for buffer in self._mappings)

    def allocate(self, size_bytes: int, lifetime: Lifetime) -> Buffer:
        """Map whole pages, zero-filled.

        Raises:
            OutOfMemory: if the system refuses.
        """
        size = align(size_bytes, PAGE_BYTES)
        try:
            mapping = mmap.mmap(-1, max(size, PAGE_BYTES), flags=_PRIVATE)
        except (OSError, OverflowError, ValueError) as error:
            raise OutOfMemory(
                f"the system refused {size} bytes of {lifetime.value}: {error}"
            ) from error
        anchor = ctypes.c_char.from_buffer(mapping)
        address = ctypes.addressof(anchor)
        del anchor  # an exported pointer would keep the mapping from closing
        if size >= _HUGE_FROM_BYTES:
            _advise(address, size, getattr(mmap, "MADV_HUGEPAGE", None))
        if lifetime is not Lifetime.WEIGHTS:  # whose pages come as they are read, on all threads
            _advise(address, size, _POPULATE_WRITE)
        buffer = Buffer(self._device, lifetime, size, address, self._unmap)
        self._mappings[buffer] = mapping
        return buffer

    def _unmap(self, buffer: Buffer) -> None:
        self._mappings.pop(buffer).close()


def _advise(address: int, size: int, advice: int | None) -> None:
    """Advise the system, which may not know such advice.

    Through ctypes: `mmap.madvise` keeps other Python threads waiting while pages are zeroed.
    """
    if advice is not None:
        _system().madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), advice)


@functools.cache
def _system() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def array_at(address: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return an array over memory that somebody else owns and keeps alive."""
    count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = (ctypes.c_uint8 * count).from_address(address)
    return np.frombuffer(raw, dtype=dtype).reshape(shape)


def host_memory() -> tuple[int, int]:
    """Return (total, available) bytes of the host, no more than its control group allows."""
    # Imported late: it takes 20 ms, and loading a model on a card does not ask.
    import psutil

    memory = psutil.virtual_memory()
    groups = group_limits()
    total = min([memory.total, *(group.limit_bytes for group in groups)])
    return total, min([memory.available, *(group.available_bytes for group in groups)])


def bytes_at(address: int, size_bytes: int) -> memoryview:
    """Return bytes that somebody else owns and keeps alive, writable."""
    return memoryview((ctypes.c_uint8 * size_bytes).from_address(address)).cast("B")
