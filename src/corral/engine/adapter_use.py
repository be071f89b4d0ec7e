"""Which adapters a sequence has, and how a batch tells devices: spans of rows. Integers only."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from struct import pack, unpack
from typing import Protocol

from corral.errors import InvalidArgument

Span = tuple[int, int, int, int, int]
"""First row, the row behind the last, slot, first unit, and the bits of the scale."""


class Usable(Protocol):
    """An adapter that is loaded."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def slot(self) -> int:
        """Its place in the tables that devices read."""
        ...

    @property
    def units(self) -> int:
        """Units of ranks that it needs of a row."""
        ...

    @property
    def fingerprint(self) -> str:
        """What tells it from all others."""
        ...


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """An adapter as one sequence has it."""

    adapter: Usable
    scale: float


Uses = tuple[AdapterUse, ...]


def overflow_advice(adapters: Uses) -> str:
    """Return what is likely at fault where numbers overflowed, and what to do about it."""
    if not adapters:
        return "the weights are damaged or overflow, try another quantization of the model"
    named = ", ".join(f"{use.adapter.name} (scale {use.scale:g})" for use in adapters)
    return f"it ran with LoRA adapters: {named}; use smaller scales, or try it without them"


class AdapterOwner(Protocol):
    """Who has the adapters of a model, as the engine sees it."""

    @property
    def has_leftovers(self) -> bool:
        """Whether an adapter waits for nothing any more but to go."""
        ...

    def uses(self, wanted: Iterable[tuple[int, float]] | None) -> Uses:
        """Return what a sequence has of (adapter, scale) pairs; None is what was set for all.

        Raises:
            InvalidArgument: if there is no such adapter.
        """
        ...

    def begin(self, uses: Uses) -> None:
        """Note that a sequence has adapters."""
        ...

    def end(self, uses: Uses) -> None:
        """Note that a sequence that had adapters has ended."""
        ...

    def collect(self) -> None:
        """Let adapters go that were removed and that no sequence has."""
        ...


class NoAdapters:
    """Stands for the adapters of a model that has none."""

    has_leftovers = False

    def uses(self, wanted: Iterable[tuple[int, float]] | None) -> Uses:
        """Return nothing.

        Raises:
            InvalidArgument: if something is wanted.
        """
        if wanted:
            raise InvalidArgument("adapters were asked for, and the model has none")
        return ()

    def begin(self, uses: Uses) -> None:
        """Do nothing."""

    def end(self, uses: Uses) -> None:
        """Do nothing."""

    def collect(self) -> None:
        """Do nothing."""


def cache_namespace(namespace: str, uses: Uses) -> str:
    """Return whom blocks of a cache belong to: other adapters make other keys and values."""
    if not uses:
        return namespace
    named = sorted(f"{use.adapter.fingerprint}×{use.scale!r}" for use in uses)
    return "\0".join((namespace, "adapters", *named))


def group_key(uses: Uses) -> tuple[tuple[int, float], ...]:
    """Return what sequences must share for their rows to be one span of each adapter."""
    return tuple((use.adapter.slot, use.scale) for use in uses)


def spans(rows: Sequence[tuple[int, int, Uses]]) -> list[Span]:
    """Return the spans of a batch: (first row, row behind the last, uses) of each sequence.

    Rows that follow each other and have an adapter alike make one span.
    """
    found: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for first, end, uses in rows:
        for slot, unit, bits in _parts(uses):
            runs = found.setdefault((slot, unit, bits), [])
            if runs and runs[-1][1] == first:
                runs[-1] = runs[-1][0], end
            elif first < end:
                runs.append((first, end))
    return [(first, end, *key) for key, runs in found.items() for first, end in runs]


def _parts(uses: Uses) -> Iterator[tuple[int, int, int]]:
    unit = 0
    for use in uses:
        (bits,) = unpack("<i", pack("<f", use.scale))
        yield use.adapter.slot, unit, bits
        unit += use.adapter.units
