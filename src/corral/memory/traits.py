"""What the planner must know of a device, as plain data.

A device is described here and not asked, so that a model can be planned for a machine that is not
present, and by a process that may not touch a driver.
"""

from dataclasses import dataclass

from corral.tensor.ops import Op

HOST = "host"
"""Stands for the memory through which data pass to devices that have their own."""


@dataclass(frozen=True, slots=True)
class DeviceTraits:
    """The facts of one kind of device that decide where bytes go."""

    kind: str
    alignment: int
    """Bytes each value inside a buffer is aligned to; a power of two."""
    granularity: int
    """Bytes the driver rounds an allocation up to; a power of two."""
    interleave: int
    """Rows of packed weights side by side; 0 keeps weights as plain F32."""
    fused: frozenset[Op]
    """Operations that rewrites may make for it."""
    record_bytes: int
    """Bytes of one record, the space of one graph node in the record pool."""
    workers: int = 1
    """Threads of an executor, each with a workspace of its own."""
    workspace_bytes: int = 0
    """Scratch a worker needs for matrix products of any size …"""
    workspace_bytes_per_column: int = 0
    """… and for each column of the widest one."""
    segment_blocks: int = 0
    """KV blocks whose attention workers may compute apart and fold later; 0 is never."""
    segments: int = 0
    """How many such segments there are at most, of all rows; 0: as many as have blocks."""
    segment_bytes: int = 0
    """Scratch of such a segment for one query head, beside the F32 sums of its dimensions."""
    two_records: frozenset[Op] = frozenset()
    """Operations that take two records."""
    narrow_rows: int = 0
    """Batches of more rows are multiplied through factors of 16 bits; 0: none are.

    Such a device also computes the nodes of a step in one go (`tensor/steps.py`).
    """
    buckets: tuple[int, ...] = ()
    """Numbers of rows that a plan may be lowered for, each by itself; without, for all at once."""
    context_bytes: int = 0
    """Bytes its driver takes for a process that uses it."""
    has_own_memory: bool = False
    """Whether its memory is not the host's: then staging is no part of it."""
    chunk_tokens: int = 512
    """Tokens of a prompt that are best computed together."""
    chunk_beside_tokens: int = 128
    """As many at most while sequences decode, so that these keep their pace."""
    flights: int = 1
    """Evaluations that may be under way at once; with two, the device can choose the tokens."""
    loading_bytes: int = 8 << 20
    """Staging through which weights pass while loading."""
    attaches: bool = False
    """Whether adapters can be attached to its products."""
    adapter_part_columns: int = 0
    """Columns of x whose products with an adapter's A it sums apart; 0 is all of them."""
    readers: int = 2
    """Threads that read and store weights at most; each owns a share of the loading buffer."""

    def buckets_of(self, rows: int, sequences: int) -> tuple[int, ...]:
        """Return the numbers of rows that a plan of so many rows is lowered for, ascending.

        Those that are no power of two are for sequences that go on together, and left out where
        there are not so many.
        """
        together = min((bucket for bucket in self.buckets if bucket >= sequences), default=rows)
        wanted = (b for b in self.buckets if b <= together or b.bit_count() == 1)
        return (*(bucket for bucket in wanted if bucket < rows), rows)
