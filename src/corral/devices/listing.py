"""The devices of this machine as a user sees them, one reading of each; leaves no context."""

import functools
import importlib.util
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from corral.config import settings
from corral.devices.context_cost import ContextCosts
from corral.devices.driver_files import gpus_in_files
from corral.devices.host_reading import HostReading, read_host
from corral.devices.nvml import (
    AbsentNvml,
    Gpu,
    Nvml,
    NvmlFailure,
    NvmlNotInstalled,
    process_nvml,
)
from corral.devices.probe import Probe
from corral.devices.reading import DeviceReading, Sources, read_device, read_host_as
from corral.devices.visible import Visible, visible_devices
from corral.paths import CacheTree

EXTRA = "pip install 'corral[cuda]'"
NO_DRIVER = (
    f"no CUDA device is seen: there is no NVIDIA driver here. Where one is, {EXTRA} adds them"
)
NO_BINDINGS = f"{EXTRA} adds what corral needs to use the CUDA devices"
FILES_ONLY = (
    "cards are listed by the driver's kernel module, and read by a short process each: install "
    "NVML, or start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
)


@dataclass(frozen=True, slots=True)
class Listing:
    """Every device, and what is to be said of them all."""

    devices: tuple[DeviceReading, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cards:
    """The cards of the machine, whatever this process may see."""

    gpus: tuple[Gpu, ...]
    notes: tuple[str, ...] = ()


def list_devices(
    sources: Sources,
    *,
    visible: str | None = None,
    order: str | None = None,
    in_files: Callable[[], tuple[Gpu, ...]] = gpus_in_files,
) -> Listing:
    """Return the CPU and the CUDA devices that the variables let this process see."""
    cards = find_cards(sources.nvml, in_files)
    seen = visible_devices(cards.gpus, visible, order)
    readings = (read_device(f"cuda:{n}", card, sources) for n, card in enumerate(seen.devices))
    notes = (*cards.notes, seen.note) if cards.gpus else cards.notes
    return Listing((_cpu(sources), *readings), tuple(filter(None, notes)))


def find_cards(nvml: Nvml | None, in_files: Callable[[], tuple[Gpu, ...]] = gpus_in_files) -> Cards:
    """Return the cards by NVML, else by the driver's files; the notes say what is missing."""
    try:
        gpus = (nvml or AbsentNvml(NvmlNotInstalled("NVML is not asked"))).gpus()
    except NvmlFailure as failure:
        gpus = in_files()
        if gpus:
            return Cards(gpus, (f"{failure}: {FILES_ONLY}",))
        if isinstance(failure, NvmlNotInstalled):
            return Cards((), (NO_DRIVER,))
        return Cards((), (f"CUDA devices cannot be listed: {failure}",))
    if not gpus:
        return Cards((), ("the NVIDIA driver has no card",))
    lost = (f"{gpu.name} is left out: {gpu.failure}" for gpu in gpus if gpu.failure)
    cut = (
        f"{gpu.name} ({gpu.uuid}) is in MIG mode without a slice: no process can use it"
        for gpu in gpus
        if gpu.is_cut and not gpu.slices
    )
    return Cards(gpus, (*lost, *cut))


def _cpu(sources: Sources) -> DeviceReading:
    host = sources.host()
    if host is None:
        note = "the system does not tell the host's memory"
        return DeviceReading("cpu", None, _processor(), None, None, None, None, "unknown", note)
    return read_host_as("cpu", _processor(), host)


def machine_listing() -> Listing:
    """Read this machine's devices."""
    now = settings()
    listing = list_devices(machine_sources(), visible=now.cuda_visible, order=now.cuda_order)
    if len(listing.devices) == 1 or has_bindings():
        return listing
    return replace(listing, notes=(*listing.notes, NO_BINDINGS))


def machine_visible() -> Visible:
    """Return the CUDA devices of this process, without reading them."""
    now = settings()
    cards = find_cards(machine_sources().nvml)
    return visible_devices(cards.gpus, now.cuda_visible, now.cuda_order)


def machine_sources() -> Sources:
    """Return this machine's sources; none of them starts the CUDA driver in this process."""
    return Sources(_host, machine_nvml(), probe=machine_probe().attempt, is_shared_out=_shared())


def machine_nvml() -> Nvml:
    """Return this machine's NVML; where it has none, one that says why at each call."""
    try:
        return process_nvml()
    except NvmlFailure as failure:
        return AbsentNvml(failure)


def _host() -> HostReading | None:
    if (told := read_host()) is not None or sys.platform == "linux":
        return told
    # It loads NumPy and psutil, which the kernel's own files make needless.
    from corral.devices.host import host_memory

    total, available = host_memory()
    return HostReading(total, available, source="psutil")


@functools.cache
def machine_costs() -> ContextCosts:
    """Return what contexts cost on this machine's cards, as far as it was measured."""
    return ContextCosts(CacheTree(settings().cache).contexts_file())


@functools.cache
def machine_probe() -> Probe:
    """Return the probe of this process, one for all who ask."""
    return Probe(machine_costs())


@functools.cache
def has_bindings() -> bool:
    """Say whether what corral needs to use CUDA devices is installed; loads none of it."""
    try:
        return importlib.util.find_spec("cuda.bindings") is not None
    except ModuleNotFoundError:
        return False


def _shared() -> bool:
    """Whether this is Windows, or Linux inside it."""
    return sys.platform == "win32" or is_wsl()


@functools.cache
def is_wsl(path: Path = Path("/proc/version")) -> bool:
    """Whether this is Linux inside Windows, by the kernel's name."""
    try:
        return "microsoft" in path.read_text("utf-8", "replace").lower()
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
