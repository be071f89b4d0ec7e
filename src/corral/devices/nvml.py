"""NVIDIA's management library: what cards there are and what memory they have, with no context.

Loaded when first needed and never linked. `Nvml` is what reading needs; `LibraryNvml` asks the
library through ctypes, and tests script a class of the same shape. Nothing here keeps a number.

Source: NVML API reference: nvmlReturn_t; queries of devices, memory (version 2), processes and MIG.
"""

import ctypes
import functools
import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


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
    is_cut: bool = False
    """Whether it is in MIG mode: then only its slices are devices, and there may be none."""
    failure: str = ""
    """Why nothing of it is known; then there is no UUID either."""
    capability: tuple[int, int] | None = None
    """Its compute capability, where the library tells it."""


@dataclass(frozen=True, slots=True)
class NvmlMemory:
    """Bytes of a card or slice: total = reserved + what is held + free."""

    total_bytes: int
    reserved_bytes: int | None
    """What the driver keeps for itself; None where an old library counts it as used."""
    free_bytes: int
    used_bytes: int | None = None
    """As the library says it, to be shown only: its documentation counts reserved bytes in, driver
    580 does not."""


class NvmlFailure(Exception):
    """The library cannot answer; the text says why and what to do."""


class NvmlAbsent(NvmlFailure):
    """There is no library, or no driver behind it."""


class NvmlNotInstalled(NvmlAbsent):
    """There is no library: no NVIDIA driver, or a container without this part of it."""


class NvmlNotSupported(NvmlFailure):
    """The card has no such number: its memory is the host's, or it is virtual."""


class NvmlRefused(NvmlFailure):
    """This user or container may not ask."""


class NvmlLost(NvmlFailure):
    """The card does not work any more; asking it in other ways may hang."""


class _Unknown(NvmlFailure):
    """The library does not know the device, or not any more."""


class _Missing(NvmlFailure):
    """The library is too old for a call or a structure."""


class Nvml(Protocol):
    """The narrow side of the library. Every call may raise NvmlFailure."""

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the cards, in the order of their bus addresses; one that fails says so."""
        ...

    def memory(self, uuid: str) -> NvmlMemory:
        """Return the memory of a card or a slice."""
        ...

    def processes(self, uuid: str) -> tuple[tuple[int, int | None], ...]:
        """Return (process, bytes) of those that use it; None where bytes are not told."""
        ...

    def driver_version(self) -> str:
        """Return the version of the driver, such as 580.159.04."""
        ...


_FAILURES: dict[int, tuple[type[NvmlFailure], str]] = {
    1: (NvmlAbsent, "it was ended by other code in this process"),
    2: (_Unknown, "it does not know the device"),
    3: (NvmlNotSupported, "the device does not tell it"),
    4: (NvmlRefused, "this user may not ask: ask as an administrator, or let the container"),
    6: (_Unknown, "there is no such device"),
    9: (NvmlAbsent, "no NVIDIA driver is loaded: load its kernel module, or install it"),
    10: (NvmlFailure, "the driver took too long: try again"),
    11: (NvmlFailure, "the device's interrupts do not work: restart the machine"),
    12: (NvmlAbsent, "its library is not whole: install the driver anew"),
    13: (_Missing, "the driver is too old to tell"),
    15: (NvmlLost, "the device fell off the bus: restart the machine"),
    16: (NvmlLost, "the device must be reset by its administrator"),
    17: (NvmlRefused, "the system keeps the device from this process"),
    18: (NvmlAbsent, "the driver was updated and not loaded anew: restart the machine"),
    19: (NvmlFailure, "the device is busy: try again"),
    20: (NvmlFailure, "the host has too little memory"),
    23: (NvmlFailure, "the driver ran out of resources"),
    25: (_Missing, "the driver is too old for the structure"),
    26: (_Missing, "the driver is too new for the call"),
    27: (NvmlFailure, "the driver is not ready: try again"),
}
"""By status; others are failures without a reason."""
_INSUFFICIENT_SIZE = 7
_MISSING = 13
_MIG_ON = 1
_NOT_AVAILABLE = 2**64 - 1
_TEXT_BYTES = 96
_FIRST_PROCESSES, _TRIES = 64, 6


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
    """The library of this machine. Threads may share it; a call that hangs holds up no other."""

    def __init__(self, load: Callable[[], Any] | None = None) -> None:
        """Load and start the library, about 12 ms.

        Raises:
            NvmlAbsent: if there is none, or no driver.
            NvmlFailure: if it does not start.
        """
        try:
            self._library = (load or _load)()
        except OSError as error:
            raise NvmlNotInstalled(f"NVML is not installed ({error})") from error
        self._lock = threading.Lock()  # of the handles
        self._handles: dict[str, ctypes.c_void_p] = {}
        self._call("nvmlInit_v2")

    def _call(self, name: str, *arguments: object) -> None:
        if status := self._status(name, *arguments):
            raise _failure(name, status)

    def _status(self, name: str, *arguments: object) -> int:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            return _MISSING  # as the library says it of what it knows but lacks
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
        return tuple(self._found(place) for place in range(self._number("nvmlDeviceGetCount_v2")))

    def _found(self, place: int) -> Gpu:
        try:
            return self._gpu(place)
        except NvmlFailure as failure:  # one lost card hides no other
            _log.info("card %d is left out: %s", place, failure)
            return Gpu("", f"card {place}", failure=str(failure))

    def _gpu(self, number: int) -> Gpu:
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(number), ctypes.byref(handle))
        uuid, name = self._known(handle)
        slices = self._slices(handle)
        capability = self._capability(handle)
        return Gpu(uuid, name, slices or (), is_cut=slices is not None, capability=capability)

    def _capability(self, card: ctypes.c_void_p) -> tuple[int, int] | None:
        major, minor = ctypes.c_int(), ctypes.c_int()
        name = "nvmlDeviceGetCudaComputeCapability"
        status = self._status(name, card, ctypes.byref(major), ctypes.byref(minor))
        return None if status else (major.value, minor.value)

    def _known(self, handle: ctypes.c_void_p) -> tuple[str, str]:
        """Return UUID and name of a card or slice, whose handle is kept."""
        uuid = self._text("nvmlDeviceGetUUID", handle)
        with self._lock:
            self._handles[uuid] = handle
        return uuid, self._text("nvmlDeviceGetName", handle)

    def _slices(self, card: ctypes.c_void_p) -> tuple[MigSlice, ...] | None:
        """Return the slices of a card in MIG mode; None of one that is not."""
        now, later = ctypes.c_uint(), ctypes.c_uint()
        status = self._status("nvmlDeviceGetMigMode", card, ctypes.byref(now), ctypes.byref(later))
        if status or now.value != _MIG_ON:  # most cards do not know the mode
            return None
        places = range(self._number("nvmlDeviceGetMaxMigDeviceCount", card))
        return tuple(part for place in places if (part := self._slice(card, place)))

    def _slice(self, parent: ctypes.c_void_p, place: int) -> MigSlice | None:
        handle = ctypes.c_void_p()
        name = "nvmlDeviceGetMigDeviceHandleByIndex"
        if self._status(name, parent, ctypes.c_uint(place), ctypes.byref(handle)):
            return None  # the place is empty
        uuid, title = self._known(handle)
        instances = (
            self._number("nvmlDeviceGetGpuInstanceId", handle),
            self._number("nvmlDeviceGetComputeInstanceId", handle),
        )
        return MigSlice(uuid, title, instances)

    def _of(self, uuid: str, ask: Callable[[ctypes.c_void_p], _T]) -> _T:
        """Ask a device by its handle, found anew if it is stale: slices come and go."""
        with self._lock:
            kept = self._handles.get(uuid)
        if kept is not None:
            try:
                return ask(kept)
            except _Unknown:
                _log.debug("the handle of %s is stale", uuid)
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(handle))
        with self._lock:
            self._handles[uuid] = handle
        return ask(handle)

    def memory(self, uuid: str) -> NvmlMemory:
        """Call `nvmlDeviceGetMemoryInfo_v2`, or the first version where that is missing."""
        return self._of(uuid, self._memory)

    def _memory(self, handle: ctypes.c_void_p) -> NvmlMemory:
        told = _MemoryV2(version=ctypes.sizeof(_MemoryV2) | 2 << 24)
        try:
            self._call("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(told))
            return NvmlMemory(told.total, told.reserved, told.free, told.used)
        except _Missing:
            old = _MemoryV1()
            self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(old))
            return NvmlMemory(old.total, None, old.free, old.used)

    def processes(self, uuid: str) -> tuple[tuple[int, int | None], ...]:
        """Call `nvmlDeviceGet{Compute,Graphics}RunningProcesses_v3`; who does both is there once.

        Raises:
            NvmlFailure: also where only an older form of the call exists.
        """
        found: dict[int, int | None] = {}
        for kind in ("Compute", "Graphics"):
            call = functools.partial(self._processes, f"nvmlDeviceGet{kind}RunningProcesses_v3")
            for entry in self._of(uuid, call):
                used = None if entry.used == _NOT_AVAILABLE else int(entry.used)
                before = found.get(entry.pid, used)
                found[entry.pid] = None if used is None or before is None else max(used, before)
        return tuple(sorted(found.items()))

    def _processes(self, name: str, handle: ctypes.c_void_p) -> list[_Process]:
        room = _FIRST_PROCESSES
        for _ in range(_TRIES):
            count, told = ctypes.c_uint(room), (_Process * room)()
            status = self._status(name, handle, ctypes.byref(count), told)
            if status == 0:
                return told[: min(count.value, room)]
            if status != _INSUFFICIENT_SIZE:
                raise _failure(name, status)
            room *= 2
        raise NvmlFailure(f"NVML does not answer {name}: its list grows and grows")

    def driver_version(self) -> str:
        """Call `nvmlSystemGetDriverVersion`."""
        return self._text("nvmlSystemGetDriverVersion")


class AbsentNvml:
    """Stands for a library that did not start: answers every question with the reason."""

    def __init__(self, failure: NvmlFailure) -> None:
        self._failure = failure

    def _refuse(self) -> NoReturn:
        raise self._failure.with_traceback(None)

    def gpus(self) -> tuple[Gpu, ...]:
        """Raise the reason."""
        self._refuse()

    def memory(self, uuid: str) -> NvmlMemory:
        """Raise the reason."""
        self._refuse()

    def processes(self, uuid: str) -> tuple[tuple[int, int | None], ...]:
        """Raise the reason."""
        self._refuse()

    def driver_version(self) -> str:
        """Raise the reason."""
        self._refuse()


def _failure(name: str, status: int) -> NvmlFailure:
    """Return the failure for a status that is not success."""
    kind, why = _FAILURES.get(status, (NvmlFailure, "for a reason it does not say"))
    return kind(f"NVML does not answer {name}: {why} (status {status})")


def _load() -> Any:
    if sys.platform == "win32":
        return ctypes.WinDLL("nvml.dll")
    if sys.platform == "darwin":
        raise OSError("macOS has no NVIDIA driver")
    return ctypes.CDLL("libnvidia-ml.so.1")


@functools.cache
def process_nvml() -> LibraryNvml:
    """Return the library of this process, started at the first call and never ended.

    Raises:
        NvmlFailure: as `LibraryNvml`; the next call tries again.
    """
    return LibraryNvml()
