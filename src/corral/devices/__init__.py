"""Where graphs run: a device owns memory, a backend executes on it."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corral.devices.reading import DeviceReading


class _Devices(ModuleType):
    """This package, which can be called: `corral.devices()` reads the machine's devices."""

    def __call__(self) -> "tuple[DeviceReading, ...]":
        """Return the CPU and every CUDA device with its memory; leaves no context behind."""
        from corral.devices.listing import machine_listing

        return machine_listing().devices


sys.modules[__name__].__class__ = _Devices
