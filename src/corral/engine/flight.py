"""What is under way, and what came of it: evaluations that were started, tokens and errors."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from corral.contract.events import TokenLogprobs
from corral.engine.adapter_use import Uses, overflow_advice
from corral.engine.scheduler import Slice
from corral.engine.sequence import Sequence
from corral.errors import CorralError, InternalError, NotFinite


@dataclass(frozen=True, slots=True)
class Emission:
    """A token one step produced, or the error that ended a sequence.

    With neither, the sequence is at its end without one: it only wanted its prompt computed.
    """

    sequence: Sequence
    token: int | None
    error: CorralError | None = None
    logprobs: TokenLogprobs | None = None
    vector: NDArray[np.float32] | None = None
    """The hidden state behind the prompt, for a sequence that wants it."""


@dataclass(frozen=True, slots=True)
class Flight:
    """An evaluation that was started."""

    slices: tuple[Slice, ...]
    chooses: bool
    """Whether the device chooses the tokens."""

    @property
    def can_feed(self) -> bool:
        """Whether each of its slices gives the token that its sequence goes on with."""
        return self.chooses and all(part.wants_logits for part in self.slices)


def chosen_token(token: int) -> int:
    """Return the token that the device chose.

    Raises:
        NotFinite: if there was none to choose.
    """
    if token < 0:
        raise NotFinite("the model computed a logit that is no finite number; expected finite ones")
    return token


def translated(error: Exception, what: str, adapters: Uses) -> CorralError:
    """Return an error of corral's for one of any kind that came while something was done.

    One of numbers says what to do about them, which depends on the adapters that were used.
    """
    if isinstance(error, NotFinite):
        error.args = (f"{error}: {overflow_advice(adapters)}",)
    if isinstance(error, CorralError):
        return error
    found = InternalError(f"{what} failed: {type(error).__name__}: {error}")
    found.__cause__ = error
    return found
