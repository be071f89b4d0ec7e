"""How the next token is chosen, in plain values that are checked when they are made."""

import math
from collections.abc import Collection
from typing import Self

import msgspec

from corral.contract.checks import (
    check_integer,
    check_number,
    check_text,
    check_tuple,
    refuse,
)
from corral.contract.limits import (
    MAX_BREAKERS,
    MAX_LOGIT_BIASES,
    MAX_LOGPROBS,
    MAX_SEED,
    MAX_STOP_CHARACTERS,
    MAX_TOKEN,
    MAX_WINDOW,
)

# field: lowest, highest
_INTEGERS = {
    "top_k": (0, MAX_TOKEN),
    "repeat_last_n": (0, MAX_WINDOW),
    "dry_allowed_length": (1, MAX_WINDOW),
    "dry_last_n": (0, MAX_WINDOW),
}
# field: lowest, highest, whether the lowest itself is excluded
_NUMBERS = {
    "temperature": (0.0, 100.0, False),
    "top_p": (0.0, 1.0, True),
    "min_p": (0.0, 1.0, False),
    "typical_p": (0.0, 1.0, True),
    "xtc_probability": (0.0, 1.0, False),
    "xtc_threshold": (0.0, 1.0, True),
    "repeat_penalty": (0.0, 100.0, True),
    "frequency_penalty": (-100.0, 100.0, False),
    "presence_penalty": (-100.0, 100.0, False),
    "dry_multiplier": (0.0, 100.0, False),
    "dry_base": (1.0, 100.0, False),
}
_BIAS_LIMIT = 100.0
_SIGMA_LIMIT = 100.0


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the next token is chosen from the logits; the defaults are those of llama.cpp.

    A filter is off at the value that would keep everything: `top_k` 0, `top_p` 1, `min_p` 0,
    `typical_p` 1, `top_n_sigma` None, `xtc_probability` 0, `repeat_penalty` 1, `dry_multiplier` 0.

    A field of a wrong type or out of range raises InvalidArgument when the object is made.
    """

    temperature: float = 0.8
    """0 takes the likeliest token after bias and penalties; no other filter is then applied."""
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float | None = None
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens among the last `repeat_last_n`."""
    repeat_last_n: int = 64
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_last_n: int = 1024
    dry_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    """A token whose text holds one of these ends a repetition."""
    seed: int | None = None
    """The same seed and position give the same random number; None draws a fresh seed."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, what is added to its logit) pairs; minus infinity bans the token."""
    logprobs: int | None = None
    """How many of the likeliest tokens are reported with each token; None reports nothing."""

    def __post_init__(self) -> None:
        self.validate()

    def validate(self, *, vocabulary_size: int | None = None) -> None:
        """Check every field, and token ids too where the vocabulary is known.

        Raises:
            InvalidArgument: naming the field, what it holds and what it may hold.
        """
        for field, (low, high) in _INTEGERS.items():
            check_integer(field, getattr(self, field), low=low, high=high)
        for field, (lowest, highest, is_excluded) in _NUMBERS.items():
            value = getattr(self, field)
            check_number(field, value, low=lowest, high=highest, is_low_excluded=is_excluded)
        self._validate_optional()
        _check_biases(self.logit_bias, vocabulary_size)

    def banning(self, tokens: Collection[int]) -> Self:
        """Return the same with some tokens never drawn.

        Raises:
            InvalidArgument: there are more biases then than there may be.
        """
        others = tuple(pair for pair in self.logit_bias if pair[0] not in tokens)
        banned = tuple((token, -math.inf) for token in sorted(tokens))
        return msgspec.structs.replace(self, logit_bias=others + banned)

    def _validate_optional(self) -> None:
        if self.top_n_sigma is not None:
            check_number(
                "top_n_sigma", self.top_n_sigma, low=0.0, high=_SIGMA_LIMIT, is_low_excluded=True
            )
        if self.seed is not None:
            check_integer("seed", self.seed, low=0, high=MAX_SEED)
        if self.logprobs is not None:
            check_integer("logprobs", self.logprobs, low=0, high=MAX_LOGPROBS)
        breakers = check_tuple("dry_breakers", self.dry_breakers, longest=MAX_BREAKERS, of="texts")
        for index, breaker in enumerate(breakers):
            check_text(f"dry_breakers[{index}]", breaker, shortest=1, longest=MAX_STOP_CHARACTERS)


def _check_biases(biases: object, vocabulary_size: int | None) -> None:
    pairs = check_tuple("logit_bias", biases, longest=MAX_LOGIT_BIASES, of="pairs (token, bias)")
    highest = MAX_TOKEN if vocabulary_size is None else vocabulary_size - 1
    seen = set()
    for index, pair in enumerate(pairs):
        field = f"logit_bias[{index}]"
        token, bias = check_tuple(field, pair, shortest=2, longest=2, of="items: token, bias")
        check_integer(f"{field} token", token, low=0, high=highest)
        if bias != -math.inf:
            check_number(f"{field} bias", bias, low=-_BIAS_LIMIT, high=_BIAS_LIMIT)
        if token in seen:
            refuse(f"{field} token", token, "each token once")
        seen.add(token)
