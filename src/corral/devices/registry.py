"""Devices by name. The module of a device is imported when the device is first asked for.

Planning needs traits only, so `traits` imports no compiler and no driver.
"""

import difflib
import re
from typing import TYPE_CHECKING

from corral.errors import DeviceUnavailable, InvalidArgument
from corral.memory.traits import DeviceTraits

if TYPE_CHECKING:
    from corral.devices.base import Device
    from corral.devices.context_cost import ContextCost

AUTO = "auto"
"""Stands for the best device present: a card, or else the CPU."""
NAMES = ("cpu", "reference", "null")
"""Devices that every machine has."""
_CUDA = re.compile(r"cuda:(0|[1-9][0-9]{0,2})|(GPU|MIG)-[0-9A-Fa-f-]{1,80}")


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
        return _best()
    if name in NAMES or _CUDA.fullmatch(name):
        return name
    known = ", ".join((AUTO, *NAMES, "cuda:0"))
    near = difflib.get_close_matches(name.lower(), (AUTO, *NAMES, "cuda:0"), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"use one of {known}"
    raise DeviceUnavailable(f"there is no device {name[:60]!r}: {hint}")


def _best() -> str:
    """Return the first card that corral's kernels run on, or the CPU; begins no context."""
    from corral.devices import listing
    from corral.devices.cuda.traits import LEAST_CAPABILITY
    from corral.devices.nvml import Gpu

    cards = listing.machine_visible().devices if listing.has_bindings() else ()
    for number, card in enumerate(cards):
        told = card.capability if isinstance(card, Gpu) else None
        if told is None or told >= LEAST_CAPABILITY:  # every card that can be cut up is new enough
            return f"cuda:{number}"
    return "cpu"


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
        case "null":
            from corral.devices.null.device import NullDevice

            return NullDevice(traits("cpu", threads=threads))
        case card:
            from corral.devices.cuda.opening import open_cuda

            return open_cuda(card)


def traits(name: str = AUTO, *, threads: int | None = None) -> DeviceTraits:
    """Return what planning for a device must know, without opening it; the card may be elsewhere.

    Raises:
        DeviceUnavailable: if there is no such kind of device.
    """
    word = resolve(name)
    if word == "reference":
        from corral.devices.reference.device import reference_traits

        return reference_traits()
    if word not in NAMES:
        from corral.devices.cuda.traits import cuda_traits

        return cuda_traits(context_cost(word).size_bytes)
    from corral.devices.cpu.traits import cpu_traits

    return cpu_traits(threads)


def context_cost(name: str) -> "ContextCost":
    """Return what a context on a CUDA device takes, as measured there, else assumed."""
    from corral.devices import listing
    from corral.devices.planned_context import planned_context

    nvml = listing.machine_nvml()
    try:
        card = listing.machine_visible().named(name)
    except DeviceUnavailable:  # planned for another machine
        card = None
    return planned_context(card, nvml, listing.machine_costs(), probe=listing.machine_probe())
