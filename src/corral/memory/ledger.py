"""The ledger: who holds which bytes where, written down before the bytes exist.

reserve ──▶ (allocate) ──▶ commit ──▶ release
    └── refused: OutOfMemory, nothing was allocated

Bytes belong to a reservation, not to a name: a model may be loaded twice.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from corral.errors import LedgerMismatch, OutOfMemory
from corral.memory.lifetime import Lifetime


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """Bytes of one owner with one lifetime on one device."""

    owner: str
    device: str
    lifetime: Lifetime
    planned_bytes: int
    allocated_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """What `Ledger.reserve` gave to one owner on one device; equal to itself only."""

    owner: str
    device: str


class Ledger:
    """Keeps an account, as of one model or of one process; threads may share it.

    It allocates nothing itself.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[Reservation, Lifetime], LedgerEntry] = {}
        self._lock = threading.Lock()

    def reserve(
        self, owner: str, device: str, footprint: Mapping[Lifetime, int], *, free_bytes: int | None
    ) -> Reservation:
        """Write down what an owner will hold on a device, all of it or nothing.

        `free_bytes` is what the device has now, beyond what is reserved but not yet allocated;
        None admits anything.

        Raises:
            OutOfMemory: if the footprint exceeds what is free; it lists need by lifetime.
        """
        needed = sum(footprint.values())
        reservation = Reservation(owner, device)
        with self._lock:
            free = None if free_bytes is None else free_bytes - self._pending(device)
            if free is not None and needed > free:
                raise OutOfMemory(_refusal(owner, device, footprint, free))
            for lifetime, size in footprint.items():
                entry = LedgerEntry(owner, device, lifetime, size, 0)
                self._entries[reservation, lifetime] = entry
        return reservation

    def _pending(self, device: str) -> int:
        """Return the bytes on a device that are reserved and do not exist yet."""
        mine = (entry for entry in self._entries.values() if entry.device == device)
        return sum(entry.planned_bytes - entry.allocated_bytes for entry in mine)

    def commit(self, reservation: Reservation, lifetime: Lifetime, allocated_bytes: int) -> None:
        """Record that reserved bytes now exist.

        Raises:
            LedgerMismatch: if they are not the bytes that were reserved.
        """
        owner, device = reservation.owner, reservation.device
        with self._lock:
            entry = self._entries.get((reservation, lifetime))
            planned = entry.planned_bytes if entry else 0
            if planned != allocated_bytes:
                raise LedgerMismatch(
                    f"{owner} allocated {allocated_bytes} bytes of {lifetime.value} on {device}, "
                    f"{planned} were planned"
                )
            entry = LedgerEntry(owner, device, lifetime, planned, allocated_bytes)
            self._entries[reservation, lifetime] = entry

    def hand_over(self, reservation: Reservation, lifetime: Lifetime) -> None:
        """Strike reserved bytes that exist now and belong to the device, not to this owner."""
        with self._lock:
            entry = self._entries[reservation, lifetime]
            struck = replace(entry, planned_bytes=0, allocated_bytes=0)
            self._entries[reservation, lifetime] = struck

    def release(self, reservation: Reservation) -> None:
        """Strike everything of one reservation; a second call does nothing."""
        with self._lock:
            self._entries = {k: e for k, e in self._entries.items() if k[0] is not reservation}

    def statistics(self) -> tuple[LedgerEntry, ...]:
        """Return every entry, in the order in which they were reserved."""
        with self._lock:
            return tuple(self._entries.values())


def _refusal(owner: str, device: str, footprint: Mapping[Lifetime, int], free: int) -> str:
    parts = ", ".join(
        f"{lifetime.value} {format_bytes(size)}" for lifetime, size in footprint.items() if size
    )
    return (
        f"{owner} needs {format_bytes(sum(footprint.values()))} on {device} ({parts}), "
        f"{format_bytes(max(free, 0))} free: lower --context or --parallel, use --kv-type q8_0, "
        "or close other programs"
    )


def format_bytes(size: int) -> str:
    """Return a size in the unit a person would use."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} B" if units[0] == "B" else f"{value:.1f} {units[0]}"
