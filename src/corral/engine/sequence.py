"""One request's tokens, and how far they are computed.

        admitted             stop, length, context, cancel, error
WAITING ────────▶ RUNNING ─────────────────────────────────▶ FINISHED
        ◀────────
        preempted: its blocks are taken, its tokens stay and are computed again

A sequence that may be shifted drops older tokens when its context is full, and goes on.
"""

import enum
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

from corral.contract.events import FinishReason
from corral.engine.adapter_use import Uses, cache_namespace
from corral.errors import ContextExceeded, InvalidArgument
from corral.kv.prefix import Link
from corral.kv.shift import Shift, shift_of
from corral.kv.table import BlockTable
from corral.sampling.sampler import Sampler

NO_LIMIT = sys.maxsize
"""Tokens of a sequence that may have as many as come."""


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
    """Prompt, then what was generated; without what was dropped."""
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
    num_dropped: int = 0
    """Tokens that its context was shifted by."""
    keep_tokens: int | None = None
    """Tokens at its beginning that are never dropped; None ends it when its context is full."""
    first_generated: int = field(init=False)
    """Where among its tokens those begin that were generated."""
    num_preemptions: int = 0
    admitted_at: float | None = None
    """When it was first admitted, on the clock of `time.perf_counter`."""
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.first_generated = len(self.tokens)

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and answer so far, dropped ones included."""
        return len(self.tokens) + self.num_dropped

    @property
    def cache_namespace(self) -> str:
        """Within what its blocks are shared: other adapters make other keys and values."""
        return cache_namespace(self.namespace, self.adapters)

    @property
    def num_generated(self) -> int:
        """Tokens generated so far."""
        return self.num_tokens - self.num_prompt

    def reason_to_finish(self, token: int, context: int) -> FinishReason | None:
        """Return why its last token ends it, if it does, where `context` tokens fit."""
        if token in self.end_tokens:
            return FinishReason.STOP
        if self.num_generated >= self.max_tokens:
            return FinishReason.LENGTH
        is_full = len(self.tokens) >= context and self.next_shift() is None
        return FinishReason.CONTEXT if is_full else None

    def next_shift(self) -> Shift | None:
        """Return what it may drop to go on; None if that is nothing."""
        if self.keep_tokens is None:
            return None
        return shift_of(len(self.tokens), self.keep_tokens)

    @property
    def num_pending(self) -> int:
        """Tokens that must be computed before the next one can be sampled."""
        return len(self.tokens) - self.num_computed

    def drop(self, shift: Shift) -> None:
        """Forget the tokens that a shift drops; what is computed of the others has moved."""
        dropped = shift.dropped
        del self.tokens[dropped]
        prompt = len(range(*dropped.indices(self.first_generated)))
        self.first_generated -= prompt
        self.num_computed -= shift.distance
        self.num_dropped += shift.distance
        # What is computed from here on depends on tokens that its names would not tell of.
        self.is_reusing = False
        del self.links[shift.keep :]


def checked_prompt(tokens: Iterable[int], context: int) -> list[int]:
    """Return a prompt as a list.

    Raises:
        InvalidArgument: if it is empty.
        ContextExceeded: if it leaves no room for a single token.
    """
    prompt = list(tokens)
    if not prompt:
        raise InvalidArgument("the prompt has no tokens, expected at least one")
    if len(prompt) >= context:
        raise ContextExceeded(
            f"the prompt has {len(prompt)} tokens, the context holds {context} with at least one "
            "of the answer: shorten the prompt or raise --context",
            prompt_tokens=len(prompt),
            context=context,
        )
    return prompt
