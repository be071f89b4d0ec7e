"""Changes to the logits of a whole vocabulary before any candidate is chosen.

Each function changes in place an array its caller owns, and apart from `cut_below_deviations` only
the logits of the tokens it names. Definitions are those of llama.cpp's samplers.
"""

import math

import numpy as np
from numpy.typing import NDArray

from corral.sampling.candidates import Logits

_LARGEST_EXPONENT = math.log(float(np.finfo(np.float32).max))


def add_bias(logits: Logits, tokens: NDArray[np.int64], biases: Logits) -> None:
    """Add a bias to the logit of each token; the tokens are distinct."""
    logits[tokens] += biases


def penalize_tokens(
    logits: Logits,
    recent: NDArray[np.int64],
    *,
    repeat: float,
    frequency: float,
    presence: float,
) -> None:
    """Make recent tokens less likely.

    `repeat` divides a positive logit and multiplies another (Keskar and others: "CTRL", 2019);
    `presence` is subtracted once, `frequency` once for each time the token occurred.
    """
    tokens, counts = np.unique(recent, return_counts=True)
    touched = logits[tokens].astype(np.float64)
    touched = np.where(touched > 0, touched / repeat, touched * repeat)
    logits[tokens] = touched - counts * frequency - presence


def penalize_sequences(
    logits: Logits,
    recent: NDArray[np.int64],
    *,
    multiplier: float,
    base: float,
    allowed_length: int,
    is_breaker: NDArray[np.bool_],
) -> None:
    """Make tokens less likely that would lengthen a repetition ("don't repeat yourself", DRY).

    A token that follows an earlier copy of the last n tokens loses multiplier × base ** (n −
    allowed_length) where n is at least `allowed_length`; its longest copy counts. Copies do not
    reach across a breaker.

    Args:
        is_breaker: whether the token of each place in `recent` ends repetitions.
    """
    breakers = np.flatnonzero(is_breaker)
    unbroken = recent.size - 1 - int(breakers[-1]) if breakers.size else recent.size
    # Beyond this length the penalty is more than a logit can hold; it stays there.
    longest = int(min(unbroken, allowed_length + _saturation_length(base)))
    ends, lengths = repetitions(recent, longest)
    repeated = lengths >= allowed_length
    tokens, lengths = recent[ends[repeated] + 1], lengths[repeated]
    worst: dict[int, int] = {}
    for token, length in zip(tokens.tolist(), lengths.tolist(), strict=True):
        worst[token] = max(worst.get(token, 0), length)
    for token, length in worst.items():
        logits[token] -= multiplier * base ** (length - allowed_length)


def repetitions(
    recent: NDArray[np.int64], longest: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find earlier copies of the end of a sequence.

    Returns:
        The places where a copy ends, and for each how many tokens agree, at most `longest`.
    """
    size = recent.size
    ends = np.arange(size - 1)
    lengths = np.zeros(max(size - 1, 0), np.int64)
    for length in range(longest):
        ends = ends[ends >= length]
        ends = ends[recent[ends - length] == recent[size - 1 - length]]
        if not ends.size:
            break
        lengths[ends] = length + 1
    found = np.flatnonzero(lengths)
    return found, lengths[found]


def cut_below_deviations(logits: Logits, deviations: float) -> None:
    """Ban tokens more than so many standard deviations below the likeliest ("top-nσ").

    Tang and others: "Top-nσ: not all logits are you need", 2024. Banned tokens count for nothing.
    """
    is_possible = np.isfinite(logits)
    possible = (logits if is_possible.all() else logits[is_possible]).astype(np.float64)
    if possible.size:
        floor = possible.max() - deviations * possible.std()
        np.copyto(logits, -np.inf, where=logits < floor)


def _saturation_length(base: float) -> float:
    growth = math.log(base)
    return _LARGEST_EXPONENT / growth if growth else 0.0
