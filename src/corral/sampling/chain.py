"""From sampling parameters to the steps that are not off, in the order they are applied.

    edits  bias → penalties → dry → top_n_sigma                    on the logits of the vocabulary
    steps  top_k → typical_p → top_p → min_p → xtc → temperature   on candidates
    then   draw

This is llama.cpp's order. A step that would change nothing is left out. What devices can do of it
too is a `Draw`: bias → top_k → top_p → min_p → temperature → draw, without other edits.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from corral.contract.sampling import SamplingParams
from corral.sampling import edits, steps
from corral.sampling.candidates import Candidates, Logits
from corral.sampling.history import History
from corral.sampling.random import Stream, uniform

# Below this a temperature leaves nothing but the likeliest token, and dividing would overflow.
LEAST_TEMPERATURE = 1e-5
_BIAS = "bias"


@dataclass(frozen=True, slots=True)
class Edit:
    """A named change of the vocabulary's logits, in place."""

    name: str
    apply: Callable[[Logits, History], None]


@dataclass(frozen=True, slots=True)
class Step:
    """A named choice among candidates at a position."""

    name: str
    apply: Callable[[Candidates, int], Candidates]


@dataclass(frozen=True, slots=True)
class Draw:
    """All that a device must know beside seed and position to choose a token as a chain does."""

    top_k: int
    """Of how many of the likeliest tokens one is drawn; 1 is the likeliest, whatever follows."""
    top_p: float = 1.0
    floor: float = -math.inf
    """The logarithm of min_p: how far below the greatest logit a token may be."""
    temperature: float = 1.0
    biases: tuple[tuple[int, float], ...] = ()
    """(token, what is added to its logit first); the tokens are distinct."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Everything one sequence's sampling does, decided once."""

    is_greedy: bool
    """Take the likeliest token after the edits; there are no steps."""
    edits: tuple[Edit, ...]
    top_k: int
    steps: tuple[Step, ...]
    history_length: int
    """How many tokens the edits look back."""
    draw: Draw | None
    """The same in a device's terms; None if the chain does more than that."""


def build_chain(params: SamplingParams, *, seed: int, dry_breakers: Collection[int] = ()) -> Chain:
    """Return the chain of valid parameters.

    Args:
        seed: of the random numbers, as `params.seed` may be None.
        dry_breakers: the tokens whose text holds one of `params.dry_breakers`.
    """
    is_greedy = params.temperature < LEAST_TEMPERATURE
    penalties_back = params.repeat_last_n if _has_penalties(params) else 0
    dry_back = params.dry_last_n if params.dry_multiplier > 0 else 0
    edits = _edits(params, penalties_back, dry_back, dry_breakers)
    return Chain(
        is_greedy=is_greedy,
        edits=edits,
        top_k=params.top_k,
        steps=() if is_greedy else _steps(params, seed),
        history_length=max(penalties_back, dry_back),
        draw=_draw(params, is_greedy=is_greedy) if all(e.name == _BIAS for e in edits) else None,
    )


def _draw(params: SamplingParams, *, is_greedy: bool) -> Draw | None:
    if is_greedy:
        return Draw(top_k=1, biases=params.logit_bias)
    if params.top_k == 0 or params.typical_p < 1 or params.xtc_probability > 0:
        return None
    floor = math.log(params.min_p) if params.min_p > 0 else -math.inf
    return Draw(params.top_k, params.top_p, floor, params.temperature, params.logit_bias)


def _has_penalties(params: SamplingParams) -> bool:
    return (
        params.repeat_penalty != 1 or params.frequency_penalty != 0 or params.presence_penalty != 0
    )


def _edits(
    params: SamplingParams, penalties_back: int, dry_back: int, dry_breakers: Collection[int]
) -> tuple[Edit, ...]:
    chosen = []
    if params.logit_bias:
        chosen.append(Edit(_BIAS, _bias(params)))
    if penalties_back:
        chosen.append(Edit("penalties", _penalties(params)))
    if dry_back:
        breakers = np.array(sorted(dry_breakers), np.int64)
        chosen.append(Edit("dry", _dry(params, breakers)))
    if params.top_n_sigma is not None:
        chosen.append(Edit("top_n_sigma", _top_n_sigma(params.top_n_sigma)))
    return tuple(chosen)


def _steps(params: SamplingParams, seed: int) -> tuple[Step, ...]:
    chosen = []
    if params.typical_p < 1:
        chosen.append(Step("typical_p", _everywhere(steps.typical_p, params.typical_p)))
    if params.top_p < 1:
        chosen.append(Step("top_p", _everywhere(steps.top_p, params.top_p)))
    if params.min_p > 0:
        chosen.append(Step("min_p", _everywhere(steps.min_p, params.min_p)))
    if params.xtc_probability > 0:
        chosen.append(Step("xtc", _xtc(params, seed)))
    if params.temperature != 1:
        chosen.append(Step("temperature", _everywhere(steps.temperature, params.temperature)))
    return tuple(chosen)


def _everywhere(
    step: Callable[[Candidates, float], Candidates], amount: float
) -> Callable[[Candidates, int], Candidates]:
    return lambda candidates, _position: step(candidates, amount)


def _xtc(params: SamplingParams, seed: int) -> Callable[[Candidates, int], Candidates]:
    def apply(candidates: Candidates, position: int) -> Candidates:
        if uniform(seed, position, Stream.XTC) >= params.xtc_probability:
            return candidates
        return steps.xtc(candidates, params.xtc_threshold)

    return apply


def _bias(params: SamplingParams) -> Callable[[Logits, History], None]:
    tokens = np.array([token for token, _ in params.logit_bias], np.int64)
    biases = np.array([bias for _, bias in params.logit_bias], np.float32)
    return lambda logits, _history: edits.add_bias(logits, tokens, biases)


def _penalties(params: SamplingParams) -> Callable[[Logits, History], None]:
    def apply(logits: Logits, history: History) -> None:
        edits.penalize_tokens(
            logits,
            history.recent(params.repeat_last_n),
            repeat=params.repeat_penalty,
            frequency=params.frequency_penalty,
            presence=params.presence_penalty,
        )

    return apply


def _dry(params: SamplingParams, breakers: NDArray[np.int64]) -> Callable[[Logits, History], None]:
    def apply(logits: Logits, history: History) -> None:
        recent = history.recent(params.dry_last_n)
        edits.penalize_sequences(
            logits,
            recent,
            multiplier=params.dry_multiplier,
            base=params.dry_base,
            allowed_length=params.dry_allowed_length,
            is_breaker=np.isin(recent, breakers),
        )

    return apply


def _top_n_sigma(deviations: float) -> Callable[[Logits, History], None]:
    return lambda logits, _history: edits.cut_below_deviations(logits, deviations)
