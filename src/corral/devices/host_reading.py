"""The host's memory from the kernel's own files: what is in use, by whom, and what may be had.

Needs no library, so a router may read it. Pages set aside as huge pages are no part of what is
available, nor is swap. Linux only: elsewhere there is no answer here.

Source: the kernel's documentation of /proc/meminfo and /proc/PID/status.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from corral.devices.control_group import GroupMemory, group_limits

SOURCE = "/proc/meminfo"


@dataclass(frozen=True, slots=True)
class HostReading:
    """Bytes of the host, no more than this process's control groups allow; None is unknown."""

    total_bytes: int
    """Without what is reserved."""
    free_bytes: int
    """What can be had without swapping."""
    reserved_bytes: int | None = None
    """Set aside as huge pages, in use or not."""
    own_bytes: int | None = None
    """What this process holds, files it maps left out."""
    source: str = SOURCE

    @property
    def foreign_bytes(self) -> int | None:
        """What others hold, the kernel included."""
        if self.own_bytes is None:
            return None
        return max(0, self.total_bytes - self.free_bytes - self.own_bytes)


def read_host(
    root: Path = Path("/proc"),
    limits: Callable[[], tuple[GroupMemory, ...]] = group_limits,
) -> HostReading | None:
    """Read the host's memory; None if the kernel does not tell it."""
    memory = _sizes(root / "meminfo")
    try:
        total, available = memory["MemTotal"], memory["MemAvailable"]
    except KeyError:
        return None
    huge = memory.get("Hugetlb", memory.get("HugePages_Total", 0) * memory.get("Hugepagesize", 0))
    groups = limits()
    usable = max(0, total - huge)
    limit = min([usable, *(group.limit_bytes for group in groups)])
    free = min([available, usable, *(group.available_bytes for group in groups)])
    own = _sizes(root / "self" / "status")
    kinds = [own[kind] for kind in ("RssAnon", "RssShmem") if kind in own]
    return HostReading(limit, min(free, limit), huge, sum(kinds) if kinds else None)


def _sizes(path: Path) -> dict[str, int]:
    """Return the numbers of a file of `Name:  123 kB` lines, in bytes where the unit is kB."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return {}
    sizes = {}
    for line in lines:
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isascii() and words[0].isdigit():
            sizes[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return sizes
