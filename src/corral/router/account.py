"""What can be had of each memory: the reading, the ledger, margins and budgets in one number."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from corral.router.placing import Holder, Machine, Need, Room

Bytes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Account:
    """One memory and what models hold of it."""

    room: Room
    booked_bytes: int
    unseen_bytes: int

    @property
    def available_bytes(self) -> int | None:
        """What a model may take now; None is unknown.

        It may be less than nothing: then that much has to go before anything is to be had.
        """
        room = self.room
        if room.free_bytes is None:
            return None
        free = room.free_bytes - self.unseen_bytes
        if room.total_bytes is not None:
            free = min(free, room.total_bytes - self.booked_bytes)
        return self._within_budget(free - room.margin_bytes, self.booked_bytes)

    @property
    def empty_bytes(self) -> int | None:
        """What a model might take if it were alone on the machine; None is unknown."""
        room = self.room
        if room.free_bytes is None or room.total_bytes is None:
            return None
        return self._within_budget(room.total_bytes - room.margin_bytes, 0)

    @property
    def foreign_bytes(self) -> int | None:
        """What others than this router's models hold; None is unknown."""
        room = self.room
        if room.free_bytes is None or room.total_bytes is None:
            return None
        seen = self.booked_bytes - self.unseen_bytes
        return max(0, room.total_bytes - room.free_bytes - seen)

    def _within_budget(self, size: int, booked: int) -> int:
        budget = self.room.budget_bytes
        return size if budget is None else min(size, budget - booked)


class Accounts:
    """All memories of a machine."""

    def __init__(self, machine: Machine, holders: Sequence[Holder]) -> None:
        self._by_memory = {
            room.memory: Account(
                room,
                sum(holder.bytes.get(room.memory, 0) for holder in holders),
                sum(holder.unseen.get(room.memory, 0) for holder in holders),
            )
            for room in machine.rooms
        }

    def get(self, memory: str) -> Account | None:
        """Return the account of a memory; None if the machine has none of that name."""
        return self._by_memory.get(memory)

    def available(self, without: Iterable[Holder] = ()) -> dict[str, int | None]:
        """Return what can be had of each memory, or could once certain holders have left."""
        sizes = {memory: one.available_bytes for memory, one in self._by_memory.items()}
        for holder in without:
            for memory, size in holder.bytes.items():
                known = sizes.get(memory)
                if known is not None:
                    sizes[memory] = known + size
        return sizes

    def empty(self) -> dict[str, int | None]:
        """Return what could be had of each memory if nothing used the machine."""
        return {memory: one.empty_bytes for memory, one in self._by_memory.items()}


def missing(need: Need, sizes: Mapping[str, int | None]) -> dict[str, int] | None:
    """Return the bytes that memories lack for a need; None if one of them is unknown."""
    lacking = {}
    for memory, size in need.bytes.items():
        known = sizes.get(memory)
        if known is None:
            return None
        if size > max(known, 0):
            lacking[memory] = size - known
    return lacking
