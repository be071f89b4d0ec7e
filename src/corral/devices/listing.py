"""The devices of this machine as a user sees them, one reading of each; leaves no context."""

import functools
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from corral.config import settings
from corral.devices.context_cost import ContextCosts
from corral.devices.nvml import Gpu, MigSlice, Nvml, NvmlFailure, process_nvml
from corral.devices.probe import Probe
from corral.devices.reading import DeviceReading, Sources, read_device
from corral.devices.visible import visible_devices
from corral.paths import CacheTree

NO_NVML = (
    "no CUDA device is seen, because NVML (a part of NVIDIA's driver) is not here; where it is, "
    "pip install 'corral[cuda]' adds CUDA devices"
)


@dataclass(frozen=True, slots=True)
class Listing:
    """Every device, and what is to be said of them all."""

    devices: tuple[DeviceReading, ...]
    note: str = ""


def list_devices(
    sources: Sources, *, visible: str | None = None, order: str | None = None
) -> Listing:
    """Return the CPU and the CUDA devices that the variables let this process see."""
    total, available = sources.host()
    cpu = DeviceReading("cpu", None, _processor(), total, available, None, None, "host")
    if sources.nvml is None:
        return Listing((cpu,), NO_NVML)
    try:
        gpus = sources.nvml.gpus()
    except NvmlFailure as failure:
        return Listing((cpu,), f"CUDA devices cannot be listed: {failure}")
    seen = visible_devices(gpus, visible, order)
    cards = (_read(number, device, sources) for number, device in enumerate(seen.devices))
    return Listing((cpu, *cards), seen.note)


def _read(number: int, device: Gpu | MigSlice, sources: Sources) -> DeviceReading:
    return read_device(f"cuda:{number}", device, sources)


def machine_listing() -> Listing:
    """Read this machine's devices."""
    now = settings()
    return list_devices(machine_sources(), visible=now.cuda_visible, order=now.cuda_order)


def machine_sources() -> Sources:
    """Return this machine's sources; none of them loads the CUDA driver into this process."""
    # It knows NumPy, which a router does not load; the router reads no host memory through it.
    from corral.devices.host import host_memory

    return Sources(
        host=host_memory,
        nvml=machine_nvml(),
        probe=_probe().attempt,
        is_shared_out=_shared(),
    )


def machine_nvml() -> Nvml | None:
    """Return this machine's NVML, or None where it has none."""
    try:
        return process_nvml()
    except NvmlFailure:
        return None


@functools.cache
def _probe() -> Probe:
    return Probe(ContextCosts(CacheTree(settings().cache).contexts_file()))


@functools.cache
def _shared() -> bool:
    """Whether this is Windows, or Linux inside it."""
    if sys.platform == "win32":
        return True
    try:
        return "microsoft" in Path("/proc/version").read_text().lower()
    except OSError:
        return False


@functools.cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
