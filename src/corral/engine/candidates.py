"""What the scheduler is told of sequences: integers, made of them and of what the cache knows."""

from collections.abc import Iterable

from corral.engine.cache import Beginning, Cache
from corral.engine.scheduler import Candidate
from corral.engine.sequence import Sequence


def admitted(running: Iterable[Sequence]) -> list[Candidate]:
    """Return the candidates that hold blocks."""
    return [Candidate(s.id, s.num_pending, True, s.num_computed) for s in running]


def waiting(
    sequences: Iterable[Sequence], cache: Cache
) -> tuple[list[Candidate], dict[int, Beginning]]:
    """Return the candidates that wait, and what each of them would begin with, by id.

    Each tail is promised to one of them only; admitted in order, all of them find what they were
    promised.
    """
    candidates, beginnings, tails = [], dict[int, Beginning](), set[int]()
    for sequence in sequences:
        known = cache.known(sequence, tails)
        beginnings[sequence.id] = known
        if known.tail is not None:
            tails.add(known.tail)
        pending = len(sequence.tokens) - known.num_tokens
        candidates.append(Candidate(sequence.id, pending, False, known.num_tokens, known.num_idle))
    return candidates, beginnings
