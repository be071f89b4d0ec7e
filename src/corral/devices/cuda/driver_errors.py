"""From the driver's status numbers to corral's errors: one table, the status's own name kept.

A sticky fault poisons the context for good: every later call reports it again, and only a new
process recovers.

Source: CUDA Driver API, CUresult.
"""

from corral.errors import (
    CorralError,
    DeviceFault,
    DeviceUnavailable,
    InternalError,
    OutOfMemory,
    StaleContext,
)

EXTRA = "pip install 'corral[cuda]' adds CUDA devices"
"""What to do where the bindings are missing."""

_OUT_OF_MEMORY = 2

_UNAVAILABLE = {
    3: "the driver was not initialized",
    4: "the process is ending, and the driver ended before it",
    34: "the driver's library is a stub, no driver is installed",
    46: "the device is held by another process in exclusive mode",
    100: "no device is visible: see CUDA_VISIBLE_DEVICES",
    101: "there is no such device",
    803: "the driver's library and its kernel module differ: restart the machine",
    804: "the driver is too old for this device and this CUDA version",
}

_STALE = {
    201: "the context is no longer valid",
    709: "the context was destroyed",
}

_STICKY = {
    214: "its memory has an error that could not be corrected",
    220: "its link to another device failed",
    226: "its link is contained after an error",
    700: "a kernel used an illegal address",
    702: "a kernel ran for too long",
    710: "an assertion in a kernel failed",
    714: "the stack of a kernel is corrupt",
    715: "a kernel met an illegal instruction",
    716: "a kernel used a misaligned address",
    717: "a kernel used an address of the wrong space",
    718: "a kernel left its code",
    719: "a kernel failed to run",
    721: "a kernel left its tensor memory taken",
    911: "a device that it works with failed",
    999: "of a kind the driver does not know",
}
"""Faults that outlive the call that reports them."""


def failure(call: str, status: int, name: str) -> CorralError:
    """Return the error for a status that is not success."""
    said = f"{call} said {name} ({status})"
    if status == _OUT_OF_MEMORY:
        return OutOfMemory(f"the device has too little memory: {said}")
    if status in _UNAVAILABLE:
        return DeviceUnavailable(f"{_UNAVAILABLE[status]}: {said}")
    if status in _STALE:
        return StaleContext(f"{_STALE[status]}: {said}")
    if status in _STICKY:
        return DeviceFault(
            f"the device is at fault, {_STICKY[status]}: {said}; this process cannot use it any "
            "more, start a new one"
        )
    return InternalError(f"the driver refused a call: {said}")
