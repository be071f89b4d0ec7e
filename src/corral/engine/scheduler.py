"""Who runs next: pure functions over integers. They know no arrays, no clock and no text.

Sequences that decode go first, one token each, so that they keep their pace; what is left of the
row budget goes to prompts in order, cut into chunks, which are smaller while anybody decodes. Where
there are fewer blocks than all sequences together may need, `preempted` names who must give its
own back, before `schedule` says who runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from corral.kv.spec import BLOCK_TOKENS, blocks_for


@dataclass(frozen=True, slots=True)
class Candidate:
    """What the scheduler sees of one sequence."""

    id: int
    num_pending: int
    """Tokens to compute before the next can be sampled, at least 1; 1 while decoding."""
    is_admitted: bool
    num_computed: int = 0
    """Tokens computed before these: blocks hold them, or are known to."""
    num_idle: int = 0
    """Of those blocks, how many count as free until this sequence is admitted."""

    @property
    def is_decoding(self) -> bool:
        """Whether it needs one row for its next token."""
        return self.is_admitted and self.num_pending == 1

    def blocks_missing(self, num_tokens: int) -> int:
        """Return how many more blocks its next `num_tokens` tokens take."""
        return blocks_for(self.num_computed + num_tokens) - blocks_for(self.num_computed)

    def tokens_in(self, blocks: int) -> int:
        """Return how many tokens fit its last block and so many more."""
        return (blocks_for(self.num_computed) + blocks) * BLOCK_TOKENS - self.num_computed


@dataclass(frozen=True, slots=True)
class Budget:
    """What one evaluation can hold."""

    rows: int
    outputs: int
    sequences: int
    beside: int | None = None
    """Rows of prompts while sequences decode; None is as many as there are."""
    blocks: int | None = None
    """Blocks that are free; None if they cannot run short."""
    sequence_blocks: int = 0
    """Blocks of the longest sequence there may be; counts where blocks can run short."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Tokens of one sequence that the next evaluation computes."""

    id: int
    num_tokens: int
    wants_logits: bool
    """Whether these are its last pending tokens, so that one can be sampled."""


def preempted(candidates: Sequence[Candidate], budget: Budget) -> int | None:
    """Return who must give its blocks back so that those before it go on; None if nobody must.

    That is who was admitted last, if there are too few blocks for the next token of all that
    decode, or, if none does, for that of the first.
    """
    admitted = [c for c in candidates if c.is_admitted]
    if budget.blocks is None or len(admitted) < 2:
        return None
    advancing = [c for c in admitted if c.is_decoding] or admitted[:1]
    is_short = sum(c.blocks_missing(1) for c in advancing) > budget.blocks
    return admitted[-1].id if is_short else None


def schedule(candidates: Sequence[Candidate], budget: Budget) -> tuple[Slice, ...]:
    """Return the next evaluation's slices, in the order of the candidates.

    Candidates are those admitted, in the order in which they were, then those that wait, in the
    order in which they are to be; these are admitted while slots and blocks are free.
    """
    decoding = [c for c in candidates if c.is_decoding]
    taken = {c.id: 1 for c in decoding[: min(budget.rows, budget.outputs)]}
    rows, outputs = budget.rows - len(taken), budget.outputs - len(taken)
    if taken and budget.beside is not None:
        rows = min(rows, budget.beside)
    blocks = _Blocks(candidates, budget)
    slots = budget.sequences - sum(c.is_admitted for c in candidates)
    for candidate in candidates:
        if candidate.is_decoding:
            continue
        if rows == 0 or outputs == 0:
            break
        if not candidate.is_admitted:
            if slots == 0 or not blocks.admit(candidate):
                break  # nobody overtakes who is next
            slots -= 1
        count = blocks.take(candidate, min(rows, candidate.num_pending))
        if count:
            taken[candidate.id] = count
            rows -= count
            outputs -= count == candidate.num_pending
    return tuple(
        Slice(c.id, taken[c.id], taken[c.id] == c.num_pending) for c in candidates if c.id in taken
    )


class _Blocks:
    """The free blocks as one decision spends them."""

    def __init__(self, candidates: Sequence[Candidate], budget: Budget) -> None:
        self._budget = budget
        admitted = [c for c in candidates if c.is_admitted]
        decoding = sum(c.blocks_missing(1) for c in admitted if c.is_decoding)
        self._free = (budget.blocks or 0) - decoding
        self._unpromised = (budget.blocks or 0) - sum(map(self._promise, admitted))

    def admit(self, candidate: Candidate) -> bool:
        """Whether a candidate's whole prompt fits beside what others will need soon."""
        if self._budget.blocks is None:
            return True
        needed = candidate.num_idle + candidate.blocks_missing(candidate.num_pending)
        if needed > self._unpromised:
            return False
        self._unpromised -= candidate.num_idle + self._promise(candidate)
        self._free -= candidate.num_idle
        return True

    def take(self, candidate: Candidate, num_tokens: int) -> int:
        """Take the blocks of as many tokens as there are blocks for; return how many."""
        if self._budget.blocks is None:
            return num_tokens
        count = min(num_tokens, candidate.tokens_in(max(0, self._free)))
        self._free -= candidate.blocks_missing(count)
        return count

    def _promise(self, candidate: Candidate) -> int:
        """Return the blocks of a prompt's rest, and one to go on with."""
        missing = candidate.blocks_missing(candidate.num_pending) + 1
        return min(missing, self._budget.sequence_blocks - blocks_for(candidate.num_computed))
