"""What `--memory-report` prints: the ledger by lifetime, and what each token added to memory."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from corral.cli.output import columns, note

if TYPE_CHECKING:
    from corral import MemoryGrowth, MemoryStatistics, Slope


def show(memory: "MemoryStatistics") -> None:
    """Print the report to stderr."""
    for line in _ledger(memory):
        note(line)
    if memory.growth is not None:
        for line in _growth(memory.growth):
            note(line)


def _ledger(memory: "MemoryStatistics") -> Iterator[str]:
    rows = [
        (row.device, row.lifetime, f"{row.planned_bytes:,}", f"{row.allocated_bytes:,}")
        for row in memory.rows
        if row.planned_bytes or row.allocated_bytes
    ]
    planned = sum(row.planned_bytes for row in memory.rows)
    head = ("memory", "", "planned", "allocated")
    total = ("total", "", f"{planned:,}", f"{memory.total_bytes:,}")
    return columns([head, *rows, total], "<<>>")


def _growth(growth: "MemoryGrowth") -> Iterator[str]:
    for name, slope in (("host", growth.host), ("device", growth.device)):
        yield f"growth of the {name}: {_told(growth, slope)}"


def _told(growth: "MemoryGrowth", slope: "Slope | None") -> str:
    if slope is not None:
        return (
            f"{_bytes(slope.value)} ± {_bytes(slope.half_width)} bytes/token (95 %, "
            f"{slope.num_samples} samples in {growth.generated_tokens:,} tokens)"
        )
    if growth.device is not None:
        return "this system does not tell it"
    return f"unknown after {growth.generated_tokens:,} tokens; about a hundred are needed"


def _bytes(value: float) -> str:
    return f"{value:,.1f}" if value else "0"
