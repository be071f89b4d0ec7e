"""Which blocks of a full sequence go, so that it can go on. Integers only.

    ┌────────┬────────────────┬──────────────────────┬────────┐
    │ kept   │ dropped        │ moved to the front   │ part   │
    └────────┴────────────────┴──────────────────────┴────────┘
    whole blocks: at least the tokens to be kept, then half of the rest, rounded down

Whole blocks only, so that each token stays at its place in its block: what moves is one entry of a
table, and kept blocks stay as they are, whoever else uses them.
"""

from dataclasses import dataclass

from corral.kv.spec import BLOCK_TOKENS, blocks_for

LEAST_SHIFTED = 2 * BLOCK_TOKENS
"""Tokens behind the kept ones that a sequence must have to be shifted."""
LEAST_CONTEXT = BLOCK_TOKENS + LEAST_SHIFTED
"""Of a model whose sequences may keep a block and be shifted."""


@dataclass(frozen=True, slots=True)
class Shift:
    """Which blocks of a sequence stay where they are and which of those behind them go."""

    keep: int
    """Blocks."""
    drop: int
    """Blocks, at least one."""

    @property
    def distance(self) -> int:
        """How many positions the tokens behind those that go come forward."""
        return self.drop * BLOCK_TOKENS

    @property
    def dropped(self) -> slice:
        """Which tokens go."""
        return slice(self.keep * BLOCK_TOKENS, (self.keep + self.drop) * BLOCK_TOKENS)


def shift_of(num_tokens: int, keep_tokens: int) -> Shift | None:
    """Return how a sequence of so many tokens is shifted; None if too few are not kept."""
    keep = blocks_for(keep_tokens)
    rest = num_tokens - keep * BLOCK_TOKENS
    return Shift(keep, rest // 2 // BLOCK_TOKENS) if rest >= LEAST_SHIFTED else None


def most_kept(context: int) -> int:
    """Return how many tokens may be kept where any answer is to find something to drop."""
    return (context - LEAST_SHIFTED) // BLOCK_TOKENS * BLOCK_TOKENS
