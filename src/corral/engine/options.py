"""How one answer is to be made, in plain values that were checked. Knows no model."""

from dataclasses import dataclass
from typing import Self

from corral.contract.sampling import SamplingParams
from corral.engine import checks


@dataclass(frozen=True, slots=True)
class Options:
    """How an answer is to be made."""

    max_tokens: int | None
    """None is until the context is full."""
    stop: tuple[str, ...]
    ignore_eos: bool
    sampling: SamplingParams
    reuse: bool = True
    """Whether known keys and values may be used, and left for later prompts."""

    @classmethod
    def of(cls, max_tokens: object, stop: object, ignore_eos: object, sampling: object) -> Self:
        """Take what a caller passed.

        Raises:
            InvalidArgument: naming what is wrong.
        """
        return cls(
            checks.integer_or_none("max_tokens", max_tokens, low=0),
            checks.stop_strings(stop),
            checks.flag("ignore_eos", ignore_eos),
            checks.sampling(sampling),
        )
