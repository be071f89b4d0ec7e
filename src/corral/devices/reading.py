"""How much memory a device has: the first source that answers, and its name with the number.

    unified memory ─▶ NVML, of the slice or the card ─▶ this process's driver ─▶ probe ─▶ unknown
    (the host's)       (no context)                     (where it leaves none)

Unknown is a value, and admits nothing. Each source is passed in; a router passes no driver. Nothing
is remembered: a source that fails is never answered for by what it said before.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from corral.devices.host_reading import HostReading
from corral.devices.nvml import Gpu, MigSlice, Nvml, NvmlFailure, NvmlLost, NvmlNotSupported
from corral.devices.own_use import Processes, own_bytes, own_number
from corral.devices.probe import ProbeFailure, ProbeReading
from corral.errors import CorralError

UNKNOWN = "unknown"
DRIVER = "driver"
_UNIFIED = re.compile(r"\b(GB10|Orin|Thor|Xavier|Tegra)\b")
"""In the names of devices whose memory is the host's."""
UPPER_BOUND = (
    "the system between the driver and this process may allow less than this: leave 2 GiB or 10 %"
)
_MARGIN_BYTES, _MARGIN_PART = 2 << 30, 10
_NO_MODEL = "no model is placed there while its free memory is unknown"


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What one process holds on a device; None where the driver does not tell."""

    pid: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """One device and its memory at one moment, in bytes; None is unknown."""

    name: str
    """What --device takes: cpu, cuda:0, …"""
    uuid: str | None
    title: str
    """What its maker calls it."""
    total_bytes: int | None
    """What can be had of an empty device."""
    free_bytes: int | None
    reserved_bytes: int | None
    """What the driver keeps for itself, or the kernel as huge pages; outside of the total."""
    foreign_bytes: int | None
    """What others hold."""
    source: str
    """Who told total, free and reserved."""
    note: str = ""
    """Why something is unknown or uncertain, and what to do."""
    foreign_source: str = UNKNOWN
    """Who told what others hold."""
    is_on_host: bool = False
    """Whether its memory is the host's, which others may count as theirs."""
    margin_bytes: int = 0
    """How much of `free_bytes` may not be there, for what stands between."""
    processes: tuple[ProcessUse, ...] = ()
    """Those others that the driver knows of; there may be more."""

    @property
    def usable_bytes(self) -> int:
        """What may be planned with; 0 if nobody knows."""
        return max(0, (self.free_bytes or 0) - self.margin_bytes)


def is_unified(title: str) -> bool | None:
    """Say by a device's name that its memory is the host's; None if the name does not tell."""
    return True if _UNIFIED.search(title) else None


@dataclass(frozen=True, slots=True)
class Sources:
    """Who may be asked."""

    host: Callable[[], HostReading | None]
    nvml: Nvml | None = None
    in_process: Callable[[str], tuple[int, int] | None] | None = None
    """(free, total) of a UUID as this process's driver tells them, or None."""
    probe: Callable[[str], ProbeReading | ProbeFailure] | None = None
    own_bytes: Callable[[str, Processes | None], int | None] = own_bytes
    """What this process holds on a UUID, given NVML's list of processes."""
    own_number: Callable[[], int | None] = own_number
    """This process in that list; None where it counts otherwise."""
    is_unified: Callable[[str], bool | None] = is_unified
    """Whether a device of that name uses the host's memory; None leaves it to NVML."""
    is_shared_out: bool = False
    """Whether a hypervisor or Windows stands between NVML's numbers and what can be had."""


@dataclass(slots=True)
class _Attempt:
    """One reading in the making."""

    unknown: DeviceReading
    sources: Sources
    why: list[str] = field(default_factory=list)

    @property
    def uuid(self) -> str:
        return self.unknown.uuid or ""


def read_device(name: str, device: Gpu | MigSlice, sources: Sources) -> DeviceReading:
    """Read one device; failures are told in its note, and never answered with an old number."""
    unknown = DeviceReading(name, device.uuid, device.name, None, None, None, None, UNKNOWN)
    attempt = _Attempt(unknown, sources)
    unified = sources.is_unified(device.name)
    if unified:  # before anyone is asked: some drivers fail at the question
        return _of_host(attempt) or _unknown(attempt)
    try:
        told = _of_nvml(attempt, "NVML" if isinstance(device, Gpu) else "NVML, of the slice")
    except NvmlLost as failure:
        attempt.why.append(str(failure))
        return _unknown(attempt)
    except NvmlFailure as failure:
        attempt.why.append(str(failure))
        is_whole = isinstance(failure, NvmlNotSupported) and isinstance(device, Gpu)
        told = _of_host(attempt) if is_whole and unified is None else None
    return told or _of_driver(attempt) or _of_probe(attempt) or _unknown(attempt)


def read_host_as(name: str, title: str, host: HostReading) -> DeviceReading:
    """Return the host's memory as the reading of a device that computes in it."""
    return DeviceReading(
        name,
        None,
        title,
        host.total_bytes,
        host.free_bytes,
        host.reserved_bytes,
        host.foreign_bytes,
        host.source,
        foreign_source=UNKNOWN if host.foreign_bytes is None else host.source,
        is_on_host=True,
    )


def _of_host(attempt: _Attempt) -> DeviceReading | None:
    host = attempt.sources.host()
    if host is None:
        attempt.why.append("its memory is the host's, which the system does not tell")
        return None
    why = f": {attempt.why[0]}" if attempt.why else ""
    return replace(
        read_host_as(attempt.unknown.name, attempt.unknown.title, host),
        uuid=attempt.uuid,
        source=f"{host.source}, unified memory",
        note=f"its memory is the host's{why}",
    )


def _of_nvml(attempt: _Attempt, source: str) -> DeviceReading | None:
    nvml = attempt.sources.nvml
    if nvml is None:
        return None
    told = nvml.memory(attempt.uuid)
    total = told.total_bytes - (told.reserved_bytes or 0)
    if told.total_bytes == 0 or not 0 <= told.free_bytes <= total:
        attempt.why.append(
            f"NVML tells numbers that cannot be: {told.free_bytes} bytes free of {total}"
        )
        return None
    reading = replace(
        attempt.unknown,
        total_bytes=total,
        free_bytes=told.free_bytes,
        reserved_bytes=told.reserved_bytes,
        source=source,
    )
    if attempt.sources.is_shared_out:
        margin = max(_MARGIN_BYTES, total // _MARGIN_PART)
        reading = replace(reading, margin_bytes=margin, note=UPPER_BOUND)
    return _with_others(reading, attempt, nvml)


def _with_others(reading: DeviceReading, attempt: _Attempt, nvml: Nvml) -> DeviceReading:
    """Add what others hold of the bytes that are held."""
    held = (reading.total_bytes or 0) - (reading.free_bytes or 0)
    try:
        processes: Processes | None = nvml.processes(attempt.uuid)
    except NvmlFailure:  # then only the sum is known
        processes = None
    own = attempt.sources.own_bytes(attempt.uuid, processes)
    number = attempt.sources.own_number()
    others = tuple(ProcessUse(pid, used) for pid, used in processes or () if pid != number)
    reading = replace(reading, processes=others)
    if reading.reserved_bytes is None:
        why = "this driver does not tell what it reserves from what others hold"
    elif own is None:
        why = "what this process holds is not known, nor what is left for others"
    else:
        source = f"{reading.source}, without this process"
        return replace(reading, foreign_bytes=max(0, held - own), foreign_source=source)
    return replace(reading, note="; ".join(filter(None, (reading.note, why))))


def _of_driver(attempt: _Attempt) -> DeviceReading | None:
    if attempt.sources.in_process is None:
        return None
    try:
        told = attempt.sources.in_process(attempt.uuid)
    except CorralError as error:
        attempt.why.append(str(error))
        return None
    if told is None:
        return None
    free, total = told
    note = "; ".join(attempt.why)
    return replace(attempt.unknown, total_bytes=total, free_bytes=free, source=DRIVER, note=note)


def _of_probe(attempt: _Attempt) -> DeviceReading | None:
    if attempt.sources.probe is None:
        return None
    told = attempt.sources.probe(attempt.uuid)
    if isinstance(told, ProbeFailure):
        attempt.why.append(told.reason)
        return None
    if told.is_lower_bound:
        attempt.why.append("a little more may be free: the probe's own context is counted as used")
    return replace(
        attempt.unknown,
        total_bytes=told.total_bytes,
        free_bytes=told.free_bytes,
        source="probe",
        note="; ".join(attempt.why),
    )


def _unknown(attempt: _Attempt) -> DeviceReading:
    why = attempt.why or ["nobody can tell its memory"]
    return replace(attempt.unknown, note="; ".join((*why, _NO_MODEL)))
