"""The helper process of probe.py: makes a context on its one visible device, reads, tells, ends.

    python -I -S probe_child.py UUID SECONDS    →    one line: the tag, a space, a JSON object

It runs as a file by its path and imports nothing of corral and little of Python: somebody waits for
every millisecond of it. It knows nothing of who asks. Source: CUDA Driver API; NVML API.
"""

import ctypes
import json
import signal
import sys

TAG = "corral-probe-1"
"""Begins the one line that counts; the number grows when the meaning of the line changes."""

_EXTRA_SECONDS = 2.0
"""How much later than its caller the child ends itself: a caller may have died."""
_INIT_BYTES = 64 << 20
"""More than initializing the driver ever takes from the device."""
_SAME_BYTES = 2 << 20
"""Readings no further apart say the same: the driver hands memory out in pieces of this size."""
_V2 = 2 << 24


class CallFailed(Exception):
    """A library is missing, or a call of it was refused."""


class MemoryV1(ctypes.Structure):
    """`nvmlMemory_t`."""

    _fields_ = (*((name, ctypes.c_ulonglong) for name in ("total", "free", "used")),)


class MemoryV2(ctypes.Structure):
    """`nvmlMemory_v2_t`, in which reserved memory is no part of `free`."""

    _fields_ = (
        ("version", ctypes.c_uint),
        *((name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")),
    )


class Library:
    """Calls by name, each checked."""

    def __init__(self, library: object) -> None:
        self._library = library

    def has(self, name: str) -> bool:
        """Say whether this version of the library has a function."""
        return hasattr(self._library, name)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function whose status must be 0.

        Raises:
            CallFailed: if it is not, or there is no such function.
        """
        if not self.has(name):
            raise CallFailed(f"the library has no {name}")
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise CallFailed(f"{name} said {self._status_name(status)}")

    def _status_name(self, status: int) -> str:
        text = ctypes.c_char_p()
        if self.has("cuGetErrorName"):
            getattr(self._library, "cuGetErrorName")(status, ctypes.byref(text))  # noqa: B009
        return f"{text.value.decode()} ({status})" if text.value else str(status)


def load(name: str) -> Library:
    """Load a library of the driver.

    Raises:
        CallFailed: if it is not there.
    """
    try:
        return Library(ctypes.CDLL(name))
    except OSError as error:
        raise CallFailed(f"{name} cannot be loaded: {error}") from error


class Nvml:
    """What NVML tells of one device; whatever it refuses is None."""

    def __init__(self, library: Library | None, uuid: str) -> None:
        """Without a library, it refuses everything."""
        self._library = library
        self._handle = ctypes.c_void_p()
        is_known = self._is_done("nvmlInit_v2") and self._is_done(
            "nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self._handle)
        )
        self._is_readable = is_known

    def free_bytes(self) -> int | None:
        """Return the median of three readings."""
        readings = [free for _ in range(3) if (free := self._read()) is not None]
        return sorted(readings)[1] if len(readings) == 3 else None

    def driver_version(self) -> str | None:
        """Return the version of the driver, such as 580.159.04."""
        text = ctypes.create_string_buffer(96)
        is_told = self._is_done("nvmlSystemGetDriverVersion", text, len(text))
        return (text.value.decode(errors="replace") or None) if is_told else None

    def _read(self) -> int | None:
        if not self._is_readable:
            return None
        new = MemoryV2(version=ctypes.sizeof(MemoryV2) | _V2)
        if self._is_done("nvmlDeviceGetMemoryInfo_v2", self._handle, ctypes.byref(new)):
            return int(new.free)
        old = MemoryV1()
        is_told = self._is_done("nvmlDeviceGetMemoryInfo", self._handle, ctypes.byref(old))
        return int(old.free) if is_told else None

    def _is_done(self, name: str, *arguments: object) -> bool:
        if self._library is None:
            return False
        try:
            self._library.call(name, *arguments)
        except CallFailed:
            return False
        return True


def find_nvml(uuid: str) -> Nvml:
    """Return NVML's view of a device, which may be none at all."""
    try:
        library = load("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
    except CallFailed:
        return Nvml(None, uuid)
    return Nvml(library, uuid)


def read(uuid: str, cuda: Library, nvml: Nvml) -> dict[str, object]:
    """Return what the driver tells of the one visible device, and what telling it cost.

    Raises:
        CallFailed: if a call was refused, or another device than the asked is visible.
    """
    before = nvml.free_bytes()
    cuda.call("cuInit", 0)
    device = _only_device(cuda)
    found = _device_uuid(cuda, device, uuid.partition("-")[0])
    if found.lower() != uuid.lower():
        raise CallFailed(f"asked for {uuid}, but the visible device is {found}")
    initialized = nvml.free_bytes()
    free, total, inside = _in_context(cuda, device, nvml)
    return {
        "uuid": found,
        "name": _device_name(cuda, device),
        "driver_version": nvml.driver_version() or driver_version(cuda),
        "total_bytes": total,
        "free_bytes": free,
        "context_bytes": context_bytes(before, initialized, inside, nvml.free_bytes()),
    }


def _in_context(cuda: Library, device: ctypes.c_int, nvml: Nvml) -> tuple[int, int, int | None]:
    """Return free and total bytes, and NVML's free bytes, while there is a context."""
    context = ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        cuda.call("cuCtxPushCurrent_v2", context)
        cuda.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        inside = nvml.free_bytes()
        cuda.call("cuCtxPopCurrent_v2", ctypes.byref(context))
    finally:
        cuda.call("cuDevicePrimaryCtxRelease_v2", device)
    return free.value, total.value, inside


def context_bytes(
    before: int | None, initialized: int | None, inside: int | None, after: int | None
) -> int | None:
    """Return what driver and context took, from free bytes at four moments.

    None if one is missing, or if others took or gave back memory meanwhile: without them the
    device has after the context what it had before it, and the driver alone takes little.
    """
    if before is None or initialized is None or inside is None or after is None:
        return None
    is_quiet = abs(after - initialized) <= _SAME_BYTES and 0 <= before - initialized <= _INIT_BYTES
    return before - inside if is_quiet and inside < initialized else None


def _only_device(cuda: Library) -> ctypes.c_int:
    count, device = ctypes.c_int(), ctypes.c_int()
    cuda.call("cuDeviceGetCount", ctypes.byref(count))
    if count.value != 1:
        raise CallFailed(f"{count.value} devices are visible; expected the one asked for")
    cuda.call("cuDeviceGet", ctypes.byref(device), 0)
    return device


def _device_uuid(cuda: Library, device: ctypes.c_int, kind: str) -> str:
    """Return the UUID of a device, of its slice if it is one; the driver gives no prefix."""
    raw = (ctypes.c_ubyte * 16)()
    knows_slices = cuda.has("cuDeviceGetUuid_v2")
    cuda.call(
        "cuDeviceGetUuid_v2" if knows_slices else "cuDeviceGetUuid", ctypes.byref(raw), device
    )
    text = bytes(raw).hex()
    parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
    return f"{kind}-{'-'.join(parts)}"


def _device_name(cuda: Library, device: ctypes.c_int) -> str:
    name = ctypes.create_string_buffer(256)
    cuda.call("cuDeviceGetName", name, len(name), device)
    return name.value.decode(errors="replace")


def driver_version(cuda: Library, module: str = "/sys/module/nvidia/version") -> str:
    """Return the version of the driver without NVML; where it is hidden, that of its CUDA.

    Raises:
        CallFailed: if the driver does not tell.
    """
    try:
        with open(module, encoding="ascii") as file:  # noqa: PTH123 - pathlib takes 4 ms
            if text := file.read(96).strip():
                return text
    except (OSError, ValueError):
        pass
    version = ctypes.c_int()
    cuda.call("cuDriverGetVersion", ctypes.byref(version))
    return f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"


def report(uuid: str) -> tuple[dict[str, object], int]:
    """Return what to tell, and the exit status."""
    try:
        cuda = load("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        return read(uuid, cuda, find_nvml(uuid)), 0
    except CallFailed as error:
        return {"error": str(error)}, 1


def main() -> int:
    """Read the device that the arguments name, within the time that they give."""
    uuid, seconds = sys.argv[1:]
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_REAL, float(seconds) + _EXTRA_SECONDS)
    told, status = report(uuid)
    # Libraries may have left an unfinished line.
    print(f"\n{TAG} {json.dumps(told)}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
