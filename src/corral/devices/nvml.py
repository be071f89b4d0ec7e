"""NVIDIA's management library: what cards there are and what memory they have, with no context.

Loaded when first needed and never linked. `Nvml` is what reading needs; `LibraryNvml` asks the
library through ctypes, and tests script a class of the same shape.

Source: NVML API reference; device, memory (version 2) and process queries.
"""

import ctypes
import functools
import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MigSlice:
    """One slice of a card in MIG mode: a device of its own."""

    uuid: str
    name: str
    instances: tuple[int, int]
    """Numbers of its GPU instance and its compute instance."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A card, by its UUID."""

    uuid: str
    name: str
    slices: tuple[MigSlice, ...] = ()
    """Empty unless it is in MIG mode."""


@dataclass(frozen=True, slots=True)
class NvmlMemory:
    """Bytes of a card or slice: total = reserved + used + free."""

    total_bytes: int
    reserved_bytes: int | None
    """What the driver keeps for itself; None where an old library counts it as used."""
    free_bytes: int
    used_bytes: int


class NvmlFailure(Exception):
    """The library cannot answer; the text says why and what to do."""


class NvmlAbsent(NvmlFailure):
    """There is no library, or no driver behind it."""


class NvmlNotSupported(NvmlFailure):
    """The card has no such number: its memory is the host's, or it is virtual."""


class NvmlRefused(NvmlFailure):
    """This user or container may not ask."""


class Nvml(Protocol):
    """The narrow side of the library. Every call may raise NvmlFailure."""

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the cards, in the order of their bus addresses."""
        ...

    def memory(self, uuid: str) -> NvmlMemory:
        """Return the memory of a card or a slice."""
        ...

    def processes(self, uuid: str) -> tuple[tuple[int, int | None], ...]:
        """Return (process, bytes) of those that compute; None where bytes are not told."""
        ...

    def driver_version(self) -> str:
        """Return the version of the driver, such as 580.159.04."""
        ...


_FAILURES: dict[int, tuple[type[NvmlFailure], str]] = {
    2: (NvmlNotSupported, "it does not know the device"),
    3: (NvmlNotSupported, "the device does not tell it"),
    4: (NvmlRefused, "this user may not ask"),
    6: (NvmlNotSupported, "there is no such device"),
    9: (NvmlAbsent, "no NVIDIA driver is loaded"),
    12: (NvmlAbsent, "its library is not whole"),
    13: (NvmlNotSupported, "the driver is too old to tell"),
    15: (NvmlFailure, "the device fell off the bus: restart the machine"),
    16: (NvmlFailure, "the device must be reset by its administrator"),
    17: (NvmlRefused, "the system keeps the device from this process"),
    18: (NvmlAbsent, "the driver was updated and not loaded anew: restart the machine"),
}
_INSUFFICIENT_SIZE = 7
_MIG_ON = 1
_NOT_AVAILABLE = 2**64 - 1
_TEXT_BYTES = 96


class _MemoryV1(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class _MemoryV2(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        *((name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")),
    ]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class LibraryNvml:
    """The library of this machine. Threads may share it."""

    def __init__(self, load: Callable[[], Any] | None = None) -> None:
        """Load and start the library, about 12 ms.

        Raises:
            NvmlAbsent: if there is none, or no driver.
        """
        try:
            self._library = (load or _load)()
        except OSError as error:
            raise NvmlAbsent(f"NVML is not installed ({error})") from error
        self._lock = threading.Lock()
        self._handles: dict[str, ctypes.c_void_p] = {}
        self._call("nvmlInit_v2")

    def _call(self, name: str, *arguments: object) -> None:
        status = self._status(name, *arguments)
        if status:
            kind, why = _FAILURES.get(status, (NvmlFailure, "for a reason it does not say"))
            raise kind(f"NVML does not answer {name}: {why} (status {status})")

    def _status(self, name: str, *arguments: object) -> int:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            return 13  # as the library says it of what it knows but lacks
        return int(function(*arguments))

    def _text(self, name: str, *before: object) -> str:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        self._call(name, *before, text, ctypes.c_uint(_TEXT_BYTES))
        return text.value.decode("utf-8", "replace")

    def _number(self, name: str, *before: object) -> int:
        number = ctypes.c_uint()
        self._call(name, *before, ctypes.byref(number))
        return number.value

    def gpus(self) -> tuple[Gpu, ...]:
        """Call `nvmlDeviceGetCount_v2`, then ask for each card and its slices."""
        with self._lock:
            places = range(self._number("nvmlDeviceGetCount_v2"))
            return tuple(gpu for place in places if (gpu := self._found(place)))

    def _found(self, place: int) -> Gpu | None:
        try:
            return self._gpu(place)
        except NvmlFailure as failure:  # one lost card hides no other
            _log.warning("card %d is left out: %s", place, failure)
            return None

    def _gpu(self, number: int) -> Gpu:
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(number), ctypes.byref(handle))
        uuid = self._text("nvmlDeviceGetUUID", handle)
        self._handles[uuid] = handle
        return Gpu(uuid, self._text("nvmlDeviceGetName", handle), self._slices(handle))

    def _slices(self, handle: ctypes.c_void_p) -> tuple[MigSlice, ...]:
        now, later = ctypes.c_uint(), ctypes.c_uint()
        status = self._status(
            "nvmlDeviceGetMigMode", handle, ctypes.byref(now), ctypes.byref(later)
        )
        if status or now.value != _MIG_ON:
            return ()
        places = range(self._number("nvmlDeviceGetMaxMigDeviceCount", handle))
        return tuple(part for place in places if (part := self._slice(handle, place)))

    def _slice(self, parent: ctypes.c_void_p, place: int) -> MigSlice | None:
        handle = ctypes.c_void_p()
        name = "nvmlDeviceGetMigDeviceHandleByIndex"
        if self._status(name, parent, ctypes.c_uint(place), ctypes.byref(handle)):
            return None  # the place is empty
        uuid = self._text("nvmlDeviceGetUUID", handle)
        self._handles[uuid] = handle
        instances = (
            self._number("nvmlDeviceGetGpuInstanceId", handle),
            self._number("nvmlDeviceGetComputeInstanceId", handle),
        )
        return MigSlice(uuid, self._text("nvmlDeviceGetName", handle), instances)

    def _handle(self, uuid: str) -> ctypes.c_void_p:
        if uuid not in self._handles:
            handle = ctypes.c_void_p()
            self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(handle))
            self._handles[uuid] = handle
        return self._handles[uuid]

    def memory(self, uuid: str) -> NvmlMemory:
        """Call `nvmlDeviceGetMemoryInfo_v2`, or the first version where that is missing."""
        with self._lock:
            handle = self._handle(uuid)
            told = _MemoryV2(version=ctypes.sizeof(_MemoryV2) | 2 << 24)
            try:
                self._call("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(told))
                return NvmlMemory(told.total, told.reserved, told.free, told.used)
            except NvmlNotSupported:
                old = _MemoryV1()
                self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(old))
                return NvmlMemory(old.total, None, old.free, old.used)

    def processes(self, uuid: str) -> tuple[tuple[int, int | None], ...]:
        """Call `nvmlDeviceGetComputeRunningProcesses_v3`."""
        name = "nvmlDeviceGetComputeRunningProcesses_v3"
        with self._lock:
            handle, count = self._handle(uuid), ctypes.c_uint(64)
            while True:
                told = (_Process * count.value)()
                status = self._status(name, handle, ctypes.byref(count), told)
                if status != _INSUFFICIENT_SIZE:
                    break
                count.value *= 2
            if status:
                self._call(name, handle, ctypes.byref(count), told)
        found = ((entry.pid, entry.used) for entry in told[: count.value])
        return tuple((pid, None if used == _NOT_AVAILABLE else used) for pid, used in found)

    def driver_version(self) -> str:
        """Call `nvmlSystemGetDriverVersion`."""
        with self._lock:
            return self._text("nvmlSystemGetDriverVersion")


def _load() -> Any:
    if sys.platform == "win32":
        return ctypes.WinDLL("nvml.dll")
    if sys.platform == "darwin":
        raise OSError("macOS has no NVIDIA driver")
    return ctypes.CDLL("libnvidia-ml.so.1")


@functools.cache
def process_nvml() -> LibraryNvml:
    """Return the library of this process, started at the first call.

    Raises:
        NvmlAbsent: if there is none, or no driver.
    """
    return LibraryNvml()
