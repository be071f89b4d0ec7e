"""How much memory a device has: the first source that answers, and its name with the number.

    unified memory ─▶ NVML, of the slice or the card ─▶ this process's driver ─▶ probe ─▶ unknown
    (the host's)       (no context)                     (where it leaves none)

Unknown is a value, and admits nothing. Each source is passed in; a router passes no driver.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from corral.devices.nvml import (
    Gpu,
    MigSlice,
    Nvml,
    NvmlFailure,
    NvmlMemory,
    NvmlNotSupported,
)
from corral.devices.probe import ProbeFailure, ProbeReading

_UNIFIED = ("GB10", "Orin", "Thor", "Xavier", "Tegra")
"""In the names of devices whose memory is the host's."""
UPPER_BOUND = "the system may allow less than this: leave 2 GiB or 10 %"
"""Where a hypervisor or Windows shares the card out."""


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """One device and its memory at one moment, in bytes; None is unknown."""

    name: str
    """What --device takes: cpu, cuda:0, …"""
    uuid: str | None
    title: str
    """What its maker calls it."""
    total_bytes: int | None
    free_bytes: int | None
    reserved_bytes: int | None
    """What the driver keeps for itself, outside of the total that can be had."""
    foreign_bytes: int | None
    """What others hold."""
    source: str
    """Who told these numbers."""
    note: str = ""
    """Why something is unknown or uncertain, and what to do."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Who may be asked."""

    host: Callable[[], tuple[int, int]]
    """(total, available) of the host's memory."""
    nvml: Nvml | None = None
    in_process: Callable[[str], tuple[int, int] | None] | None = None
    """(free, total) of a UUID as this process's driver tells them, or None."""
    probe: Callable[[str], ProbeReading | ProbeFailure] | None = None
    own_bytes: Callable[[str], int] = lambda uuid: 0
    """What this process holds on a UUID."""
    is_shared_out: bool = False
    """Whether a hypervisor or Windows stands between NVML's numbers and what can be had."""


def read_device(name: str, device: Gpu | MigSlice, sources: Sources) -> DeviceReading:
    """Read one device; never raises, never answers with an old number."""
    unknown = DeviceReading(name, device.uuid, device.name, *_NOTHING, source="unknown")
    if any(word in device.name for word in _UNIFIED):
        return _of_host(unknown, sources)
    why = []
    if sources.nvml is not None:
        try:
            return _of_nvml(unknown, sources.nvml.memory(device.uuid), sources)
        except NvmlNotSupported as failure:
            if isinstance(device, Gpu):
                return _of_host(unknown, sources, str(failure))
            why.append(str(failure))
        except NvmlFailure as failure:
            why.append(str(failure))
    return _of_driver(unknown, sources) or _of_probe(unknown, sources, why)


_NOTHING = (None, None, None, None)


def _of_host(unknown: DeviceReading, sources: Sources, why: str = "") -> DeviceReading:
    total, available = sources.host()
    note = f"its memory is the host's ({why})" if why else "its memory is the host's"
    return replace(
        unknown, total_bytes=total, free_bytes=available, source="unified memory", note=note
    )


def _of_nvml(unknown: DeviceReading, told: NvmlMemory, sources: Sources) -> DeviceReading:
    if told.total_bytes == 0:
        raise NvmlNotSupported("NVML tells a total of 0 bytes")
    own = sources.own_bytes(unknown.uuid or "")
    return replace(
        unknown,
        total_bytes=told.total_bytes - (told.reserved_bytes or 0),
        free_bytes=told.free_bytes,
        reserved_bytes=told.reserved_bytes,
        foreign_bytes=max(0, told.used_bytes - own),
        source="NVML",
        note=UPPER_BOUND if sources.is_shared_out else "",
    )


def _of_driver(unknown: DeviceReading, sources: Sources) -> DeviceReading | None:
    told = sources.in_process(unknown.uuid or "") if sources.in_process else None
    if told is None:
        return None
    free, total = told
    return replace(unknown, total_bytes=total, free_bytes=free, source="driver")


def _of_probe(unknown: DeviceReading, sources: Sources, why: list[str]) -> DeviceReading:
    if sources.probe is not None:
        told = sources.probe(unknown.uuid or "")
        if isinstance(told, ProbeReading):
            note = "a little more may be free" if told.is_lower_bound else ""
            return replace(
                unknown,
                total_bytes=told.total_bytes,
                free_bytes=told.free_bytes,
                source="probe",
                note=note,
            )
        why.append(told.reason)
    return replace(unknown, note="; ".join(why) or "nobody can tell its memory")
