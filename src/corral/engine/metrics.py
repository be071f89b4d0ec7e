"""What can be asked of a loaded model: frozen numbers, for the library, the command line, tests."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from corral.contract.events import FinishReason
from corral.memory.growth import Slope
from corral.memory.ledger import LedgerEntry


@dataclass(frozen=True, slots=True)
class GenerationStatistics:
    """How one answer came to be; times in seconds."""

    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens whose keys and values were already there."""
    generated_tokens: int
    prefill_s: float
    """From submission until the prompt was computed."""
    decode_s: float
    """From the first token to the last."""
    time_to_first_token_s: float
    finish_reason: FinishReason

    @property
    def prefill_tokens_per_s(self) -> float:
        """Computed prompt tokens a second."""
        return _rate(self.prompt_tokens - self.cached_tokens, self.prefill_s)

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens a second after the first."""
        return _rate(self.generated_tokens - 1, self.decode_s)


def _rate(count: int, seconds: float) -> float:
    return count / seconds if count > 0 and seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Bytes of one lifetime on one device."""

    device: str
    lifetime: str
    planned_bytes: int
    allocated_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """Bytes that each generated token added, over the run so far.

    An answer keeps its tokens and text while it lasts, some 100 bytes of the host each. More, or
    anything on the device, is a leak.
    """

    generated_tokens: int
    num_samples: int
    host: Slope | None
    """Of the memory of this process that no file backs; None where the system does not tell it, or
    too few tokens were generated to say."""
    device: Slope | None
    """Of what is allocated on the device; None if there are too few tokens to say."""


@dataclass(frozen=True, slots=True)
class MemoryStatistics:
    """Every byte a model holds."""

    rows: tuple[MemoryRow, ...]
    growth: MemoryGrowth | None = None
    """Known to models that were loaded with `watch_growth`."""

    @classmethod
    def of(cls, entries: Iterable[LedgerEntry], growth: MemoryGrowth | None) -> Self:
        """Show what a ledger has, and how it grows."""
        rows = (
            MemoryRow(e.device, e.lifetime.value, e.planned_bytes, e.allocated_bytes)
            for e in entries
        )
        return cls(tuple(rows), growth)

    @property
    def total_bytes(self) -> int:
        """Bytes allocated on all devices."""
        return sum(row.allocated_bytes for row in self.rows)


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """Counts that must not grow while the engine runs."""

    waiting: int
    running: int
    evaluations: int
    free_blocks: tuple[int, ...]
    """Blocks that no sequence uses, by group of layers."""
    known_blocks: tuple[int, ...]
    """Blocks that a prompt which begins alike can reuse, by group of layers."""
    num_blocks: tuple[int, ...] = ()
    """All blocks, by group of layers."""
    preemptions: int = 0
    """Sequences whose blocks were taken for others, and that were computed again."""
