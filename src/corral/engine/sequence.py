"""One request's tokens, and how far they are computed.

        admitted             stop, length, context, cancel, error
WAITING ────────▶ RUNNING ─────────────────────────────────▶ FINISHED
        ◀────────
        preempted: its blocks are taken, its tokens stay and are computed again
"""

import enum
from dataclasses import dataclass, field

from corral.contract.events import FinishReason
from corral.engine.adapter_use import Uses, cache_namespace
from corral.kv.prefix import Link
from corral.kv.table import BlockTable
from corral.sampling.sampler import Sampler


class SequenceState(enum.Enum):
    """Where a sequence is in its life."""

    WAITING = "it holds no blocks"
    RUNNING = "holds blocks; some of its tokens may still have to be computed"
    FINISHED = "its blocks are given back"


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens of one request; owned and changed by the engine only."""

    id: int
    tokens: list[int]
    """Prompt, then what was generated."""
    num_prompt: int
    max_tokens: int
    """Tokens to generate at most."""
    sampler: Sampler | None
    """None for a sequence that only wants logits."""
    end_tokens: frozenset[int] = frozenset()
    """Tokens that end it."""
    is_reusing: bool = True
    """Whether it may begin with blocks of others, and leave its own to them."""
    wants_vector: bool = False
    """Whether the hidden state behind its prompt is wanted, and no token."""
    namespace: str = ""
    """Whom it belongs to: blocks are shared within, and turns are taken between them."""
    adapters: Uses = ()
    """What changes the model for it."""
    links: list[Link] = field(default_factory=list)
    """Names of its first blocks."""
    tables: tuple[BlockTable, ...] = ()
    state: SequenceState = SequenceState.WAITING
    num_computed: int = 0
    """Tokens whose keys and values are in the cache."""
    num_cached: int = 0
    """Prompt tokens whose keys and values were already there."""
    num_preemptions: int = 0
    admitted_at: float | None = None
    """When it was first admitted, on the clock of `time.perf_counter`."""
    finish_reason: FinishReason | None = None

    @property
    def cache_namespace(self) -> str:
        """Within what its blocks are shared: other adapters make other keys and values."""
        return cache_namespace(self.namespace, self.adapters)

    @property
    def num_generated(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.num_prompt

    def reason_to_finish(self, token: int, context: int) -> FinishReason | None:
        """Return why its last token ends it, if it does, where `context` tokens fit."""
        if token in self.end_tokens:
            return FinishReason.STOP
        if self.num_generated >= self.max_tokens:
            return FinishReason.LENGTH
        return FinishReason.CONTEXT if len(self.tokens) >= context else None

    @property
    def num_pending(self) -> int:
        """Tokens that must be computed before the next one can be sampled."""
        return len(self.tokens) - self.num_computed
