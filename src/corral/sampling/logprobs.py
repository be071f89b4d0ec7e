"""Logarithms of probabilities for the reply: of the whole vocabulary, before any filter."""

import math

import numpy as np

from corral.contract.events import TokenLogprob, TokenLogprobs
from corral.sampling.candidates import Logits, Workspace, largest, require_finite

# The OpenAI interface reports this for what is practically impossible; JSON has no infinity.
LEAST_LOGPROB = -9999.0


def token_logprobs(logits: Logits, token: int, *, top: int, workspace: Workspace) -> TokenLogprobs:
    """Return the log-probability of a token, and the `top` likeliest ones, ids only.

    Raises:
        ModelError: the logits hold NaN or plus infinity, or no token is possible.
    """
    normalizer = log_sum_exp(logits, workspace)
    drawn = TokenLogprob(token, _difference(float(logits[token]), normalizer))
    if not top:
        return TokenLogprobs(drawn)
    first = largest(logits, top, workspace)
    pairs = zip(first.ids.tolist(), first.logits.tolist(), strict=True)
    return TokenLogprobs(
        drawn, tuple(TokenLogprob(id_, _difference(logit, normalizer)) for id_, logit in pairs)
    )


def log_sum_exp(logits: Logits, workspace: Workspace) -> float:
    """Return log Σ exp(logit), summed in double precision.

    Raises:
        ModelError: the logits hold NaN or plus infinity, or no token is possible.
    """
    highest = logits.max()
    require_finite(float(highest), logits)
    weights = np.subtract(logits, highest, out=workspace.edited)
    np.exp(weights, out=weights)
    return float(highest) + math.log(float(weights.sum(dtype=np.float64)))


def _difference(logit: float, normalizer: float) -> float:
    return max(logit - normalizer, LEAST_LOGPROB)
