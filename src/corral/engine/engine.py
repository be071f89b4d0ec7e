"""The loop: schedule, run, sample, emit.

It knows tokens, not text; sequences, not requests. One thread at a time may call it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from corral.contract.messages import FinishReason
from corral.engine.batch import Rows
from corral.engine.metrics import EngineStatistics
from corral.engine.runner import Runner
from corral.engine.scheduler import Budget, Candidate, Slice, schedule
from corral.engine.sequence import Sequence, SequenceState
from corral.errors import ContextExceeded, CorralError
from corral.kv.pool import BlockPool
from corral.kv.spec import GroupSpec
from corral.kv.table import BlockTable
from corral.sampling.sampler import Sampler


@dataclass(frozen=True, slots=True)
class Emission:
    """A token one step produced, or the error that ended a sequence."""

    sequence: Sequence
    token: int | None
    error: CorralError | None = None


class Engine:
    """Owns the sequences and their blocks."""

    def __init__(self, runner: Runner, groups: tuple[GroupSpec, ...], *, context: int) -> None:
        self._runner = runner
        self._groups = groups
        self._pools = tuple(BlockPool(group.num_blocks) for group in groups)
        self._sequences: dict[int, Sequence] = {}
        self._next_id = 0
        self._evaluations = 0
        self.context = context

    def submit(
        self,
        tokens: Iterable[int],
        *,
        sampler: Sampler | None,
        max_tokens: int,
        end_tokens: frozenset[int] = frozenset(),
    ) -> Sequence:
        """Queue a prompt and return its sequence.

        Raises:
            ContextExceeded: if the prompt leaves no room for a single token.
        """
        prompt = list(tokens)
        if len(prompt) >= self.context:
            raise ContextExceeded(
                f"the prompt has {len(prompt)} tokens, the context holds {self.context} with at "
                "least one of the answer: shorten the prompt or raise --context"
            )
        sequence = Sequence(self._next_id, prompt, len(prompt), max_tokens, sampler, end_tokens)
        if sampler is not None:
            sampler.accept_prompt(prompt)
        self._next_id += 1
        self._sequences[sequence.id] = sequence
        return sequence

    def step(self) -> list[Emission]:
        """Run one evaluation and return what it produced, in order of arrival."""
        slices = schedule([_candidate(s) for s in self._sequences.values()], self._budget())
        if not slices:
            return []
        logits = self._evaluate(slices)
        emissions = []
        output = 0
        for part in slices:
            sequence = self._sequences[part.id]
            self._advance(sequence, part.num_tokens)
            if part.wants_logits:
                emissions.append(self._sample(sequence, logits[output]))
                output += 1
        return emissions

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence now; one that has ended stays as it is."""
        if sequence.state is not SequenceState.FINISHED:
            self._finish(sequence, FinishReason.CANCELLED)

    def score(self, tokens: Iterable[int], into: NDArray[np.float32]) -> None:
        """Write the logits of every token of one causal pass: (tokens, vocabulary).

        Raises:
            ContextExceeded: if there are more tokens than the context holds.
        """
        sequence = Sequence(-1, list(tokens), len(into), 0, None)
        if len(sequence.tokens) > self.context:
            raise ContextExceeded(
                f"{len(sequence.tokens)} tokens were given, the context holds {self.context}: "
                "load the model with a larger context"
            )
        self._admit(sequence)
        chunk = min(self._runner.shapes.outputs, self._runner.shapes.rows)
        try:
            for first in range(0, len(sequence.tokens), chunk):
                count = min(chunk, len(sequence.tokens) - first)
                self._grow(sequence, count)
                into[first : first + count] = self._runner.run([Rows(sequence, count, count)])
                self._advance(sequence, count)
        finally:
            self._give_back(sequence)

    def statistics(self) -> EngineStatistics:
        """Return the engine's counts."""
        states = [sequence.state for sequence in self._sequences.values()]
        return EngineStatistics(
            states.count(SequenceState.WAITING),
            states.count(SequenceState.RUNNING),
            self._evaluations,
            tuple(pool.statistics().num_free for pool in self._pools),
        )

    def _budget(self) -> Budget:
        shapes = self._runner.shapes
        return Budget(shapes.rows, shapes.outputs, shapes.sequences)

    def _evaluate(self, slices: tuple[Slice, ...]) -> NDArray[np.float32]:
        batch = []
        for part in slices:
            sequence = self._sequences[part.id]
            if sequence.state is SequenceState.WAITING:
                self._admit(sequence)
            self._grow(sequence, part.num_tokens)
            batch.append(Rows(sequence, part.num_tokens, int(part.wants_logits)))
        self._evaluations += 1
        return self._runner.run(batch)

    def _admit(self, sequence: Sequence) -> None:
        sequence.tables = tuple(
            BlockTable(pool, window=group.window)
            for pool, group in zip(self._pools, self._groups, strict=True)
        )
        sequence.state = SequenceState.RUNNING

    def _grow(self, sequence: Sequence, num_tokens: int) -> None:
        for table in sequence.tables:
            table.grow(sequence.num_computed + num_tokens)

    def _advance(self, sequence: Sequence, num_tokens: int) -> None:
        sequence.num_computed += num_tokens
        for table in sequence.tables:
            table.slide(sequence.num_computed)

    def _sample(self, sequence: Sequence, logits: NDArray[np.float32]) -> Emission:
        assert sequence.sampler is not None
        try:
            token = sequence.sampler.sample(logits, len(sequence.tokens))
        except CorralError as error:  # this sequence is lost, its neighbours are not
            self._finish(sequence, FinishReason.ERROR)
            return Emission(sequence, None, error)
        sequence.sampler.accept(token)
        sequence.tokens.append(token)
        reason = self._reason_to_finish(sequence, token)
        if reason is not None:
            self._finish(sequence, reason)
        return Emission(sequence, token)

    def _reason_to_finish(self, sequence: Sequence, token: int) -> FinishReason | None:
        if token in sequence.end_tokens:
            return FinishReason.STOP
        if sequence.num_generated >= sequence.max_tokens:
            return FinishReason.LENGTH
        if len(sequence.tokens) >= self.context:
            return FinishReason.CONTEXT
        return None

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.finish_reason = reason
        sequence.state = SequenceState.FINISHED
        self._give_back(sequence)
        del self._sequences[sequence.id]

    def _give_back(self, sequence: Sequence) -> None:
        for table in sequence.tables:
            table.trim(0)


def _candidate(sequence: Sequence) -> Candidate:
    return Candidate(
        sequence.id,
        sequence.num_pending,
        sequence.num_computed,
        sequence.state is SequenceState.RUNNING,
    )
