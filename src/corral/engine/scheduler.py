"""Who runs next: a pure function over integers. It knows no arrays, no clock and no text.

Sequences that decode go first, one token each, so that they keep their pace; what is left of the
row budget goes to prompts in order of arrival, cut into chunks.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """What the scheduler sees of one sequence."""

    id: int
    num_pending: int
    """Tokens to compute before the next can be sampled, at least 1; 1 while decoding."""
    is_admitted: bool


@dataclass(frozen=True, slots=True)
class Budget:
    """What one evaluation can hold."""

    rows: int
    outputs: int
    sequences: int


@dataclass(frozen=True, slots=True)
class Slice:
    """Tokens of one sequence that the next evaluation computes."""

    id: int
    num_tokens: int
    wants_logits: bool
    """Whether these are its last pending tokens, so that one can be sampled."""


def schedule(candidates: Sequence[Candidate], budget: Budget) -> tuple[Slice, ...]:
    """Return the next evaluation's slices, in the order of the candidates.

    Candidates come in order of arrival; those not admitted are admitted while slots are free.
    """
    rows, outputs = budget.rows, budget.outputs
    slots = budget.sequences - sum(c.is_admitted for c in candidates)
    taken: dict[int, int] = {}
    for decoding in (True, False):
        for candidate in candidates:
            if (candidate.is_admitted and candidate.num_pending == 1) is not decoding:
                continue
            if rows == 0 or outputs == 0 or (not candidate.is_admitted and slots == 0):
                continue
            slots -= not candidate.is_admitted
            count = min(rows, candidate.num_pending)
            taken[candidate.id] = count
            rows -= count
            outputs -= count == candidate.num_pending
    return tuple(
        Slice(c.id, taken[c.id], taken[c.id] == c.num_pending) for c in candidates if c.id in taken
    )
