"""The record pool: what a backend keeps for each node of one plan, in one allocation.

Lowering fills it, evaluation only reads it, and it goes with the plan. It never grows and never
wraps: a pool that could do either would hand out a record that is still in use.
"""

from dataclasses import dataclass

from corral.errors import CapacityExceeded
from corral.memory.buffer import Buffer


@dataclass(frozen=True, slots=True)
class RecordStatistics:
    """How full a pool is, in records."""

    capacity: int
    used: int


class RecordPool:
    """Hands out records of one size from one buffer, in order, until it is full."""

    def __init__(self, buffer: Buffer, *, record_bytes: int, capacity: int) -> None:
        if record_bytes * capacity > buffer.size_bytes:
            raise CapacityExceeded(
                f"{capacity} records of {record_bytes} bytes do not fit {buffer.size_bytes} bytes"
            )
        self.buffer = buffer
        self.record_bytes = record_bytes
        self.capacity = capacity
        self._used = 0

    def take(self, num_records: int = 1) -> int:
        """Return the address of the next free record.

        Raises:
            CapacityExceeded: if the plan's records are used up.
        """
        if self._used + num_records > self.capacity:
            raise CapacityExceeded(
                f"the record pool holds {self.capacity} records, one more was asked for; "
                "the plan counted fewer nodes than its lowering needs"
            )
        address = self.buffer.address + self._used * self.record_bytes
        self._used += num_records
        return address

    def statistics(self) -> RecordStatistics:
        """Return how full the pool is."""
        return RecordStatistics(self.capacity, self._used)
