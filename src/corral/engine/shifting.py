"""Shifts the context of a sequence that is full: tables, tokens and cached keys, in this order.

full ─▶ blocks dropped ─▶ keys of those behind them turned ─▶ goes on with half of its context
                     └─▶ too few blocks for copies of shared ones ─▶ all is computed again
"""

from collections.abc import Iterable, Iterator

from corral.engine.cache import Cache
from corral.engine.runner import Runner
from corral.engine.sequence import Sequence
from corral.errors import DeviceFault


def shift_contexts(
    sequences: Iterable[Sequence], cache: Cache, runner: Runner
) -> Iterator[tuple[Sequence, Exception | None]]:
    """Shift sequences, and yield those that could not be, with the error or for want of blocks.

    Nothing may be under way.

    Raises:
        DeviceFault: if the device computes nothing more.
    """
    for sequence in sequences:
        try:
            is_shifted = _shift(sequence, cache, runner)
        except DeviceFault:
            raise
        except Exception as error:
            yield sequence, error
        else:
            if not is_shifted:
                yield sequence, None


def _shift(sequence: Sequence, cache: Cache, runner: Runner) -> bool:
    """Drop older tokens; False if the cache could not follow, and holds none of the sequence."""
    shift = sequence.next_shift()
    assert shift is not None, "a full sequence that cannot be shifted has ended"
    moves = cache.shift(sequence, shift)
    sequence.drop(shift)
    if moves is None:
        return False
    runner.shift(moves, shift.distance)
    return True
