"""Devices by name. The module of a device is imported when the device is first asked for.

Planning needs traits only, so `traits` imports no compiler and no driver.
"""

import difflib
from typing import TYPE_CHECKING

from corral.errors import DeviceUnavailable, InvalidArgument
from corral.memory.traits import DeviceTraits

if TYPE_CHECKING:
    from corral.devices.base import Device

AUTO = "auto"
"""Stands for the best device present."""
NAMES = ("cpu", "reference", "null")
"""Devices that can be opened."""


def resolve(name: str) -> str:
    """Return the name of the device that a user's word stands for.

    Raises:
        DeviceUnavailable: if there is no such device; it names the nearest.
        InvalidArgument: if the name is no str.
    """
    if not isinstance(name, str):
        raise InvalidArgument(
            f"the device is of type {type(name).__name__}; expected a name, one of "
            f"{', '.join((AUTO, *NAMES))}"
        )
    if name == AUTO:
        return "cpu"
    if name in NAMES:
        return name
    near = difflib.get_close_matches(name.lower(), (AUTO, *NAMES), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join((AUTO, *NAMES))}"
    raise DeviceUnavailable(f"there is no device {name[:60]!r}: {hint}")


def open(name: str = AUTO, *, threads: int | None = None) -> "Device":  # noqa: A001
    """Open a device; `threads` counts those of the CPU, by default all this process may use.

    Raises:
        DeviceUnavailable: if there is no such device here.
    """
    match resolve(name):
        case "cpu":
            from corral.devices.cpu.device import CpuDevice

            return CpuDevice(threads=threads)
        case "reference":
            from corral.devices.reference.device import ReferenceDevice

            return ReferenceDevice()
        case _:
            from corral.devices.null.device import NullDevice

            return NullDevice(traits("cpu", threads=threads))


def traits(name: str = AUTO, *, threads: int | None = None) -> DeviceTraits:
    """Return what planning for a device must know, without opening it.

    Raises:
        DeviceUnavailable: if there is no such device.
    """
    if resolve(name) == "reference":
        from corral.devices.reference.device import reference_traits

        return reference_traits()
    from corral.devices.cpu.traits import cpu_traits

    return cpu_traits(threads)
