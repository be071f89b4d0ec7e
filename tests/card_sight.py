"""What a card shows of processes, as NVML and the kernel tell it to somebody who holds nothing."""

from pathlib import Path
from typing import Protocol

COMPUTING = ("numpy", "numba", "llvmlite", "cuda/bindings", "nvrtc", "cudart", "cublas")
"""Parts of names of what a process that computes nothing has no use for."""


class Eye(Protocol):
    """Looks at a card, or stands for one where there is none."""

    name: str
    uuid: str | None

    def used_bytes(self) -> int:
        """Return what is in use."""
        ...

    def planned(self, held: list[dict]) -> int:
        """Return what a model is planned to take of it."""
        ...

    def flaws(self, router: int, worker: int) -> list[str]:
        """Return what NVML should not say of a router and its worker."""
        ...


class Card:
    """One card, by NVML."""

    def __init__(self, name: str) -> None:
        """Look at the card of that name."""
        import corral
        from corral.devices.nvml import process_nvml

        self._nvml = process_nvml()
        self.name = name
        (self.uuid,) = {device.uuid for device in corral.devices() if device.name == name}

    def used_bytes(self) -> int:
        """Return what all processes hold together."""
        return self._nvml.memory(self.uuid).used_bytes or 0

    def planned(self, held: list[dict]) -> int:
        """Return what a model is planned to take of this card."""
        return sum(one["planned_bytes"] for one in held if one["device"] == self.uuid)

    def names(self, pid: int) -> bool:
        """Whether NVML names a process among those that hold something of the card."""
        return pid in [named for named, _used in self._nvml.processes(self.uuid)]

    def flaws(self, router: int, worker: int) -> list[str]:
        """The worker is named, unless the card counts processes otherwise; the router never is."""
        found = []
        if self.names(router):
            found.append("NVML names the router")
        if (count := len(self._nvml.processes(self.uuid))) != 1:
            found.append(f"NVML names {count} processes, expected one worker")
        return found


class NoCard:
    """Stands for a card where everything runs on the CPU."""

    name, uuid = "none", None

    def used_bytes(self) -> int:
        """Nothing."""
        return 0

    def planned(self, held: list[dict]) -> int:
        """Nothing."""
        return 0

    def flaws(self, router: int, worker: int) -> list[str]:
        """Nothing."""
        return []


def flaws_of_router(pid: int) -> list[str]:
    """Return what a router maps that only who computes needs."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    mapped = {line.split(maxsplit=5)[-1] for line in lines if "/" in line}
    return [f"the router maps {name.strip()}" for name in mapped if _is_computing(name)]


def _is_computing(name: str) -> bool:
    return any(part in name for part in COMPUTING)


def visible_cards(pid: int) -> tuple[str, ...]:
    """Return the cards that a process was let see, as its environment says."""
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    given = [
        v.partition(b"=")[2].decode() for v in environment if v.startswith(b"CUDA_VISIBLE_DEV")
    ]
    return tuple(name for value in given for name in value.split(",") if name)
