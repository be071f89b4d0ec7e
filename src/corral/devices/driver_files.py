"""The cards as the driver's kernel module lists them, for where NVML is missing. Linux only.

Containers often have the driver without its management library. These files tell which cards there
are, not what memory they have.
"""

import re
from pathlib import Path

from corral.devices.nvml import Gpu


def gpus_in_files(root: Path = Path("/proc/driver/nvidia/gpus")) -> tuple[Gpu, ...]:
    """Return the cards in the order of their bus addresses; none if there are no such files."""
    try:
        folders = sorted(root.iterdir(), key=lambda folder: folder.name)
    except OSError:
        return ()
    return tuple(gpu for folder in folders if (gpu := _gpu(folder / "information")))


def driver_version_in_files(path: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Return the driver's version as NVML would tell it; None if there is no such file."""
    try:
        found = re.search(r"\b[0-9]{3,}(\.[0-9]+)+\b", path.read_text("utf-8", "replace"))
    except OSError:
        return None
    return found[0] if found else None


def _gpu(path: Path) -> Gpu | None:
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    values = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    uuid = values.get("GPU UUID", "")
    if not uuid.startswith("GPU-") or "?" in uuid:  # the driver writes ? for what it has not read
        return None
    return Gpu(uuid, values.get("Model", "NVIDIA card"))
