"""Sampling parameters to samplers of one model: its vocabulary says what ends a repetition."""

from dataclasses import dataclass, field

from corral.contract.sampling import SamplingParams
from corral.sampling.candidates import Workspace
from corral.sampling.grammar import Grammar
from corral.sampling.sampler import Sampler
from corral.text.tokenizer import Tokenizer

_MOST_BREAKERS = 8
"""Sets of breakers that are remembered."""


@dataclass
class Samplers:
    """Makes samplers, which one thread uses one after the other."""

    tokenizer: Tokenizer
    vocabulary_size: int
    _breakers: dict[tuple[str, ...], frozenset[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._workspace = Workspace(self.vocabulary_size)

    def make(
        self,
        params: SamplingParams,
        *,
        ignore_eos: bool = False,
        grammar: Grammar | None = None,
    ) -> Sampler:
        """Return the sampler of one answer; with `ignore_eos` one that draws no end token.

        Args:
            grammar: what the answer must keep to; for it alone.

        Raises:
            InvalidArgument: if a parameter does not fit the vocabulary.
        """
        breakers = self._breaking(params.dry_breakers) if params.dry_multiplier else ()
        if ignore_eos:
            params = params.banning(self.tokenizer.end_of_generation)
        return Sampler(
            params,
            self.vocabulary_size,
            dry_breakers=breakers,
            workspace=self._workspace,
            grammar=grammar,
        )

    def end_tokens(self, *, ignore_eos: bool = False) -> frozenset[int]:
        """Return the tokens that end an answer."""
        return frozenset() if ignore_eos else self.tokenizer.end_of_generation

    def _breaking(self, texts: tuple[str, ...]) -> frozenset[int]:
        """Return the tokens whose text holds one of some texts."""
        if texts not in self._breakers:
            wanted = [text.encode() for text in texts]
            size = min(self.vocabulary_size, self.tokenizer.vocabulary_size)
            spelled = map(self.tokenizer.token_bytes, range(size))
            found = {i for i, piece in enumerate(spelled) if any(text in piece for text in wanted)}
            while len(self._breakers) >= _MOST_BREAKERS:
                del self._breakers[next(iter(self._breakers))]
            self._breakers[texts] = frozenset(found)
        return self._breakers[texts]
