"""What is measured on a card, what it is compared with, and how it is told. Pure.

llama.cpp's figures are those of one H200 (October 2026, built for sm_90, flash attention, random
weights of the same shapes): on another card only the goals mean something.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

MIB = 1 << 20
MEMORY_BYTES_PER_S = 4.3e12
"""What an H200 reads, as measured: the floor of a step that reads every weight."""
TENSOR_FLOPS = 790e12
"""What its tensor cores reach in a large product of BF16: the floor of prefill."""
ALLOWED_SHARE, ALLOWED_BYTES = 0.01, 2 * MIB
"""How far the card's own account of a model may lie from the plan."""


@dataclass(frozen=True)
class Figure:
    """One number that is promised."""

    unit: str = "tokens/s"
    llama_cpp: float | None = None
    goal: float | None = None

    @property
    def is_time(self) -> bool:
        """Whether less is better."""
        return self.unit == "s"

    def ratio(self, value: float) -> float | None:
        """Return how many times better than llama.cpp a value is."""
        if self.llama_cpp is None or value <= 0:
            return None
        return self.llama_cpp / value if self.is_time else value / self.llama_cpp

    def is_reached(self, value: float) -> bool | None:
        """Say whether a value is as good as its goal; None without one."""
        if self.goal is None:
            return None
        return value <= self.goal if self.is_time else value >= self.goal


FIGURES = {
    "decode": Figure(llama_cpp=276, goal=550),
    "decode, GPU alone": Figure(llama_cpp=276, goal=550),
    "decode at 8192": Figure(llama_cpp=241, goal=450),
    "decode at 8192, GPU alone": Figure(llama_cpp=241, goal=450),
    "prefill 512": Figure(llama_cpp=9400),
    "prefill 2048": Figure(llama_cpp=10_300, goal=15_000),
    "prefill 4096": Figure(llama_cpp=9800),
    **{
        f"batch {size}{suffix}": Figure(llama_cpp=peer, goal=goal)
        for suffix in ("", ", GPU alone")
        for size, peer, goal in (
            (4, 704, 1600),
            (16, 2033, 6000),
            (32, 3261, 8000),
            (64, 4568, 10_000),
            (128, 5338, 13_000),
        )
    },
    "small decode": Figure(llama_cpp=876, goal=1750),
    "small decode, GPU alone": Figure(llama_cpp=876, goal=1750),
    "small prefill 512": Figure(llama_cpp=32_300),
    "small prefill 2048": Figure(llama_cpp=41_400),
    "first token": Figure("s", llama_cpp=1.45, goal=1.4),
    "first compile": Figure("s", goal=20),
}
"""By name; what is small is the small model's, all else the large one's."""


@dataclass(frozen=True)
class Result:
    """One figure as it was measured, in fresh processes."""

    name: str
    values: tuple[float, ...]
    floor: float | None = None
    """The best value that memory or tensor cores would allow."""

    @property
    def median(self) -> float:
        """The value that counts."""
        return statistics.median(self.values)

    def line(self) -> str:
        """Return a line of the table for people."""
        figure = FIGURES.get(self.name, Figure())
        digits = 2 if figure.is_time else 1
        low, high = min(self.values), max(self.values)
        parts = [f"{self.name:26} {self.median:10,.{digits}f} {figure.unit}"]
        if len(self.values) > 1:
            parts.append(f"({low:,.{digits}f} … {high:,.{digits}f})")
        if (ratio := figure.ratio(self.median)) is not None:
            parts.append(f"{ratio:.2f} × llama.cpp")
        if self.floor:
            share = self.floor / self.median if figure.is_time else self.median / self.floor
            parts.append(f"{share:.0%} of the floor")
        if (is_reached := figure.is_reached(self.median)) is not None:
            parts.append("goal reached" if is_reached else f"goal {figure.goal:,g} missed")
        return "  ".join(parts)

    def row(self) -> dict[str, object]:
        """Return the same for the JSON line."""
        figure = FIGURES.get(self.name, Figure())
        return {
            "median": self.median,
            "values": self.values,
            "unit": figure.unit,
            "llama_cpp": figure.llama_cpp,
            "ratio": figure.ratio(self.median),
            "floor": self.floor,
            "goal": figure.goal,
            "is_reached": figure.is_reached(self.median),
        }


def floor_s(bytes_read: float, flops: float) -> float:
    """Return the least seconds that so many bytes and operations take."""
    return max(bytes_read / MEMORY_BYTES_PER_S, flops / TENSOR_FLOPS)


def gathered(
    name: str, replies: Iterable[Mapping[str, object]], key: str, floor: float | None = None
) -> list[Result]:
    """Return the result of one figure that some processes measured; none if none of them did.

    A process gives a value or a list of them, of which its median counts.
    """
    values = []
    for reply in replies:
        found = reply.get(key)
        if isinstance(found, (list, tuple)):
            found = statistics.median(found) if found else None
        if isinstance(found, (int, float)):
            values.append(float(found))
    return [Result(name, tuple(values), floor)] if values else []


def kernel_lines(rows: Sequence[Mapping[str, object]], whole_us: float) -> list[str]:
    """Return the table of a step's time by kernel, the slowest first."""
    lines = [
        f"  {'kernel':44} {'n':>4} {'alone µs':>9} {'each µs':>8} {'left out':>9} {'share':>6}"
        f" {'floor':>6}"
    ]
    for row in sorted(rows, key=lambda row: -float(row["left_out_us"])):
        floor = row["floor_us"] / row["alone_us"] if row["alone_us"] else 0.0
        lines.append(
            f"  {row['kernel'][:44]:44} {row['launches']:4} {row['alone_us']:9.1f}"
            f" {row['alone_us'] / row['launches']:8.2f} {row['left_out_us']:9.1f}"
            f" {row['left_out_us'] / whole_us:6.1%} {f'{floor:.0%}' if floor else '':>6}"
        )
    return lines


def account_is_close(held_bytes: int, planned_bytes: int) -> bool:
    """Say whether what a card holds is what was planned, within what is allowed."""
    return abs(held_bytes - planned_bytes) <= ALLOWED_SHARE * planned_bytes + ALLOWED_BYTES


def rounded(value: object) -> object:
    """Return the same with five digits of each float, and tuples as lists."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(one) for one in value]
    return value
