"""The tokens still in play, and how the likeliest of a whole vocabulary are found quickly.

Everything after this file works on a few dozen candidates; only this file, `edits.py` and
`logprobs.py` touch arrays of vocabulary size.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from corral.errors import InvalidArgument, ModelError, NotFinite

Logits = NDArray[np.float32]

# Least number of groups when looking for the k likeliest: enough that few share a group.
_LEAST_GROUPS = 1024
_GROUPS_PER_CANDIDATE = 8
# Fewer rows than this a group, and sorting everything is as fast.
_LEAST_ROWS = 4


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that can be drawn, likeliest first; of equal ones the lower id first."""

    ids: NDArray[np.int64]  # (candidates,)
    logits: NDArray[np.float64]  # (candidates,), finite, descending


class Workspace:
    """The arrays one thread needs to sample from a vocabulary, made once.

    Samplers that are used by the same thread, one after the other, may share one.
    """

    __slots__ = ("edited", "mask", "maxima", "vocabulary_size")

    def __init__(self, vocabulary_size: int) -> None:
        if vocabulary_size < 1:
            raise InvalidArgument(f"vocabulary_size is {vocabulary_size}; expected at least 1")
        self.vocabulary_size = vocabulary_size
        self.edited = np.empty(vocabulary_size, np.float32)
        self.mask = np.empty(vocabulary_size, np.bool_)
        self.maxima = np.empty(max(1, vocabulary_size // _LEAST_ROWS), np.float32)


def likeliest(logits: Logits) -> int:
    """Return the token of the highest logit; of equal ones the lowest id.

    Raises:
        ModelError: the logits hold NaN or plus infinity, or no token is possible.
    """
    token = int(logits.argmax())
    require_finite(float(logits[token]), logits)
    return token


def largest(logits: Logits, count: int, workspace: Workspace) -> Candidates:
    """Return the `count` likeliest tokens, or all that are possible where count is 0.

    The vocabulary is cut into groups; the count-th highest of the group maxima is a value that at
    least `count` logits reach, and hardly more than `count` do. Only those are sorted.

    Raises:
        ModelError: the logits hold NaN or plus infinity, or no token is possible.
    """
    groups = _group_count(count, logits.size)
    if not groups:
        require_finite(float(logits.max()), logits)
        return _sorted(np.flatnonzero(logits > -np.inf), logits, count or logits.size)
    maxima = _group_maxima(logits, workspace.maxima[:groups])
    require_finite(float(maxima.max()), logits)
    threshold = np.partition(maxima, groups - count)[groups - count]
    if threshold > -np.inf:
        np.greater_equal(logits, threshold, out=workspace.mask)
    else:
        np.greater(logits, threshold, out=workspace.mask)
    return _sorted(np.flatnonzero(workspace.mask), logits, count)


def require_finite(highest: float, logits: Logits) -> None:
    """Check the highest logit, which is NaN as soon as any is.

    Raises:
        NotFinite: it is NaN or plus infinity.
        ModelError: it is minus infinity.
    """
    if -np.inf < highest < np.inf:
        return
    if highest == -np.inf:
        raise ModelError(
            "no token can be chosen: all logits are minus infinity; expected at least one finite "
            "one: allow more tokens, or check the model file"
        )
    bad = int(np.flatnonzero(~(logits < np.inf))[0])
    raise NotFinite(
        f"the model computed the logit {logits[bad]} for token {bad}; expected finite numbers"
    )


def _group_count(count: int, size: int) -> int:
    """Return how many groups to cut the vocabulary into, 0 to sort all of it."""
    if count == 0:
        return 0
    groups = _LEAST_GROUPS
    while groups < count * _GROUPS_PER_CANDIDATE:
        groups *= 2
    return groups if groups * _LEAST_ROWS <= size else 0


def _group_maxima(logits: Logits, maxima: Logits) -> Logits:
    groups = maxima.size
    whole = logits.size - logits.size % groups
    # Column c is group c: the reduction runs over long rows.
    np.maximum.reduce(logits[:whole].reshape(-1, groups), axis=0, out=maxima)
    rest = maxima[: logits.size - whole]
    np.maximum(rest, logits[whole:], out=rest)
    return maxima


def _sorted(ids: NDArray[np.int64], logits: Logits, count: int) -> Candidates:
    # One integer holds logit and id, so that the order is total and the sort may be any.
    values = logits[ids] + np.float32(0.0)  # turns −0 into 0
    bits = values.view(np.int32)
    descending = (bits ^ (~(bits >> 31) & 0x7FFFFFFF)).view(np.uint32)
    keys = (descending.astype(np.uint64) << np.uint64(32)) | ids.astype(np.uint64)
    keys.sort()
    chosen = (keys[:count] & np.uint64(0xFFFFFFFF)).astype(np.int64)
    return Candidates(chosen, logits[chosen].astype(np.float64))
