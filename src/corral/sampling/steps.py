"""The filters between the likeliest tokens and the one drawn: pure functions of candidates.

Definitions are those of llama.cpp's samplers; probabilities are computed in double precision. Each
keeps at least one candidate, and the order of those it keeps. Which steps are applied, and when, is
for `chain.py`. Sums avoid BLAS, whose result may change with its number of threads.
"""

import math

import numpy as np
from numpy.typing import NDArray

from corral.sampling.candidates import Candidates


def softmax(candidates: Candidates) -> NDArray[np.float64]:
    """Return the probabilities of the candidates among themselves."""
    weights: NDArray[np.float64] = np.exp(candidates.logits - candidates.logits[0])
    weights /= np.cumsum(weights)[-1]  # one after the other, as other devices add
    return weights


def typical_p(candidates: Candidates, mass: float) -> Candidates:
    """Keep those whose surprise is nearest to the expected one until they hold more than `mass`.

    Meister, Pimentel, Wiher, Cotterell: "Locally typical sampling", 2022.
    """
    shifted = candidates.logits - candidates.logits[0]
    weights = np.exp(shifted)
    total = weights.sum()
    logarithms = shifted - math.log(total)
    probabilities = weights / total
    entropy = -(probabilities * logarithms).sum()
    order = np.argsort(np.abs(-logarithms - entropy), kind="stable")
    kept = int(np.searchsorted(np.cumsum(probabilities[order]), mass, side="right")) + 1
    chosen = np.sort(order[:kept])
    return Candidates(candidates.ids[chosen], candidates.logits[chosen])


def top_p(candidates: Candidates, mass: float) -> Candidates:
    """Keep the likeliest until they hold at least `mass` of the probability.

    Holtzman, Buys, Du, Forbes, Choi: "The curious case of neural text degeneration", 2020.
    """
    held = np.cumsum(softmax(candidates))
    return _first(candidates, int(np.searchsorted(held, mass, side="left")) + 1)


def min_p(candidates: Candidates, share: float) -> Candidates:
    """Keep those at least `share` times as likely as the likeliest.

    Nguyen and others: "Turning up the heat: min-p sampling", 2024.
    """
    floor = candidates.logits[0] + math.log(share)
    return _first(candidates, int(np.count_nonzero(candidates.logits >= floor)))


def xtc(candidates: Candidates, threshold: float) -> Candidates:
    """Drop all that reach the probability `threshold` but the least likely of them.

    "Exclude top choices" makes the model take a less obvious, still good turn; the chain decides by
    a random number whether this happens at all.
    """
    good = int(np.count_nonzero(softmax(candidates) >= threshold))
    first = max(good - 1, 0)
    return Candidates(candidates.ids[first:], candidates.logits[first:])


def temperature(candidates: Candidates, degree: float) -> Candidates:
    """Divide the logits by `degree`: above 1 flattens the distribution, below 1 sharpens it."""
    return Candidates(candidates.ids, (candidates.logits - candidates.logits[0]) / degree)


def draw(candidates: Candidates, chance: float) -> int:
    """Return the token at `chance`, in [0, 1), of the distribution function."""
    held = np.cumsum(np.exp(candidates.logits - candidates.logits[0]))
    total = float(held[-1])
    # The product may round up to the total, beyond the last candidate.
    target = min(chance * total, math.nextafter(total, 0.0))
    return int(candidates.ids[np.searchsorted(held, target, side="right")])


def _first(candidates: Candidates, count: int) -> Candidates:
    return Candidates(candidates.ids[:count], candidates.logits[:count])
