"""What this process itself holds on a device, as far as others can tell: to know what is foreign.

Loads and starts no driver. Process numbers mean something only if they are those of the driver's
own kernel: in a container, NVML's list speaks of other numbers.

Source: CUDA Driver API: every call but a few fails with CUDA_ERROR_NOT_INITIALIZED before cuInit.
"""

import ctypes
import os
import sys
from pathlib import Path

Processes = tuple[tuple[int, int | None], ...]
"""(process, bytes) as `Nvml.processes` gives them."""

_NOT_INITIALIZED = 3
_FIRST_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel: the namespace that the driver counts in."""


def own_bytes(uuid: str, processes: Processes | None) -> int | None:
    """Return what this process holds on a device; None if nobody can tell.

    `processes` is NVML's list for the device, None if there is none.
    """
    if not cuda_is_started():
        return 0
    number = own_number()
    if processes is None or number is None:
        return None
    return dict(processes).get(number, 0)


def cuda_is_started() -> bool:
    """Whether anything in this process has initialized the CUDA driver; initializes it not."""
    driver = _loaded_driver()
    if driver is None:
        return False
    count = ctypes.c_int()
    return bool(driver.cuDeviceGetCount(ctypes.byref(count)) != _NOT_INITIALIZED)


def _loaded_driver() -> ctypes.CDLL | None:
    """Return the driver's library if it is loaded already; NVML may have, without starting it."""
    try:
        if sys.platform == "win32":
            handle = ctypes.windll.kernel32.GetModuleHandleW("nvcuda.dll")
            return ctypes.WinDLL("nvcuda.dll") if handle else None
        if not hasattr(os, "RTLD_NOLOAD"):
            return None
        return ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)
    except OSError:
        return None


def own_number() -> int | None:
    """Return this process's number as the driver counts; None where it counts otherwise."""
    if sys.platform.startswith("linux"):
        try:
            if str(Path("/proc/self/ns/pid").readlink()) != _FIRST_NAMESPACE:
                return None
        except OSError:
            return None
    return os.getpid()
