"""What the control groups of this process allow it of the host's memory (containers, systemd).

A group's limit binds all groups below it, so every ancestor is asked. Page cache that the kernel
can drop (`inactive_file`) counts as available, as it does on a host.

Source: the kernel's documentation of cgroup v2 (`memory.max`, `memory.current`) and of v1
(`memory.limit_in_bytes`, `memory.usage_in_bytes`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_UNLIMITED_FROM = 1 << 60
"""Version 1 writes the largest multiple of a page where there is no limit."""


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """One group's limit, and what of it is left."""

    limit_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class _Names:
    """What the files of one version are called."""

    mount: str
    limit: str
    usage: str
    reclaimable: str


_V2 = _Names("", "memory.max", "memory.current", "inactive_file")
_V1 = _Names("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def group_limits(
    membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> tuple[GroupMemory, ...]:
    """Return every limit that binds this process; none on a host without control groups."""
    try:
        lines = membership.read_text("utf-8").splitlines()
    except OSError:
        return ()
    return tuple(
        memory
        for names, path in _memberships(lines)
        for folder in _ancestors(root / names.mount, path)
        if (memory := _read(folder, names)) is not None
    )


def _memberships(lines: list[str]) -> Iterator[tuple[_Names, str]]:
    """Yield the version and path of each line (id:controllers:path) that speaks of memory."""
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield _V2, path
        elif "memory" in controllers.split(","):
            yield _V1, path


def _ancestors(mount: Path, path: str) -> Iterator[Path]:
    """Yield the group's folder and those above it; in a container some may not be visible."""
    group = PurePosixPath(path.lstrip("/"))
    yield mount / group
    for parent in group.parents:
        yield mount / parent


def _read(folder: Path, names: _Names) -> GroupMemory | None:
    try:
        limit = int((folder / names.limit).read_text("ascii"))
        usage = int((folder / names.usage).read_text("ascii"))
        statistics = (folder / "memory.stat").read_text("ascii").split()
    except (OSError, ValueError):  # not there, or "max"
        return None
    if limit >= _UNLIMITED_FROM:
        return None
    counts = dict(zip(statistics[::2], statistics[1::2], strict=False))
    reclaimable = int(counts.get(names.reclaimable, 0))
    return GroupMemory(limit, max(0, limit - max(0, usage - reclaimable)))
