"""Chooses the tokens of one sequence. Knows logits and positions, no text, batch or model."""

from collections.abc import Collection, Iterable

import numpy as np

from corral.contract.events import TokenLogprobs
from corral.contract.sampling import SamplingParams
from corral.errors import InvalidArgument
from corral.sampling import steps
from corral.sampling.candidates import Logits, Workspace, largest, likeliest
from corral.sampling.chain import Draw, build_chain
from corral.sampling.grammar import Grammar
from corral.sampling.history import History
from corral.sampling.logprobs import token_logprobs
from corral.sampling.random import fresh_seed, uniform


class Sampler:
    """The sampling state of one sequence: its chain, its seed and its last tokens.

    The token at a position depends on the logits, the parameters, the seed, the position and the
    tokens accepted before, and on nothing else. Not for two threads at once.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocabulary_size: int,
        *,
        dry_breakers: Collection[int] = (),
        workspace: Workspace | None = None,
        grammar: Grammar | None = None,
    ) -> None:
        """Check the parameters and prepare the chain.

        Args:
            dry_breakers: the tokens whose text holds one of `params.dry_breakers`.
            workspace: shared with other samplers of the same thread; by default one of its own.
            grammar: what the tokens must keep to; at its beginning, and used by nobody else.

        Raises:
            InvalidArgument: a parameter is out of range, or the workspace has another size.
        """
        params.validate(vocabulary_size=vocabulary_size)
        self._workspace = workspace if workspace is not None else Workspace(vocabulary_size)
        if self._workspace.vocabulary_size != vocabulary_size:
            raise InvalidArgument(
                f"the workspace is for {self._workspace.vocabulary_size} tokens; "
                f"expected {vocabulary_size}, the vocabulary's size"
            )
        self.params = params
        self.seed = fresh_seed() if params.seed is None else params.seed
        self._chain = build_chain(params, seed=self.seed, dry_breakers=dry_breakers)
        self._grammar = grammar
        self._history = History(self._chain.history_length)

    def sample(self, logits: Logits, position: int) -> int:
        """Choose the token for a position; `accept` it before the next one.

        Args:
            logits: (vocabulary,), left as they are.
            position: of the token that is chosen, counted from the start of the sequence.

        Raises:
            InvalidArgument: the logits have another shape or type.
            ModelError: the logits hold NaN or plus infinity, or no token is possible.
            ConstraintError: the grammar allows no token, or exceeds its limits.
        """
        self._require_logits(logits)
        chain = self._chain
        if chain.edits or self._grammar is not None:
            logits = self._edited(logits)
        if chain.is_greedy:
            return likeliest(logits)
        candidates = largest(logits, chain.top_k, self._workspace)
        for step in chain.steps:
            candidates = step.apply(candidates, position)
        return steps.draw(candidates, uniform(self.seed, position))

    @property
    def draw(self) -> Draw | None:
        """What a device needs to choose the same tokens; None if they take more than that."""
        is_alone = self._grammar is None and self.params.logprobs is None
        return self._chain.draw if is_alone else None

    def accept(self, token: int) -> None:
        """Note that a token was added to the sequence.

        Raises:
            ConstraintError: the grammar does not allow it.
        """
        if self._grammar is not None:
            self._grammar.accept(token)
        self._history.append(token)

    def accept_prompt(self, tokens: Iterable[int]) -> None:
        """Note the tokens of a prompt, which penalties look back on too."""
        self._history.extend(tokens)

    def logprobs(self, logits: Logits, token: int) -> TokenLogprobs:
        """Return the log-probability of a token and of the `params.logprobs` likeliest ones.

        They are those of the logits as given, before bias, penalties, filters and temperature.

        Raises:
            InvalidArgument: the logits have another shape or type.
            ModelError: the logits hold NaN or plus infinity, or no token is possible.
        """
        self._require_logits(logits)
        return token_logprobs(
            logits, token, top=self.params.logprobs or 0, workspace=self._workspace
        )

    def _edited(self, logits: Logits) -> Logits:
        edited = self._workspace.edited
        np.copyto(edited, logits)
        if self._grammar is not None:
            self._grammar.mask(edited)
        # A penalty beyond what a logit can hold bans the token.
        with np.errstate(over="ignore"):
            for edit in self._chain.edits:
                edit.apply(edited, self._history)
        return edited

    def _require_logits(self, logits: Logits) -> None:
        expected = (self._workspace.vocabulary_size,)
        if logits.shape != expected or logits.dtype != np.float32:
            raise InvalidArgument(
                f"the logits are {logits.dtype} of shape {logits.shape}; "
                f"expected float32 of shape {expected}"
            )
