"""The loop: schedule, run, sample, emit.

It knows tokens, not text; sequences, not requests. One thread at a time may call it.

    in turn                 start n ─▶ finish n ─▶ sample ─▶ emit n ─▶ start n+1 …
    where the device computes while the caller goes on
                            finish n ─▶ sample ─▶ start n+1 ─▶ emit n
    and where it chooses the tokens, because all want the likeliest
                            start n+1, fed by n ─▶ finish n ─▶ emit n
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from corral.contract.events import FinishReason
from corral.engine.batch import Rows
from corral.engine.metrics import EngineStatistics
from corral.engine.runner import Runner
from corral.engine.scheduler import Budget, Candidate, Slice, schedule
from corral.engine.sequence import Sequence, SequenceState
from corral.errors import (
    ContextExceeded,
    CorralError,
    InternalError,
    InvalidArgument,
    ModelError,
    ResourceError,
)
from corral.kv.pool import BlockPool
from corral.kv.prefix import PrefixPool, extend
from corral.kv.spec import BLOCK_TOKENS, GroupSpec
from corral.kv.table import BlockTable
from corral.sampling.sampler import Sampler


@dataclass(frozen=True, slots=True)
class Emission:
    """A token one step produced, or the error that ended a sequence."""

    sequence: Sequence
    token: int | None
    error: CorralError | None = None


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


class Engine:
    """Owns the sequences and their blocks."""

    def __init__(self, runner: Runner, groups: tuple[GroupSpec, ...], *, context: int) -> None:
        self._runner = runner
        self._groups = groups
        self._pools, self._prefixes = _pools(groups)
        self._sequences: dict[int, Sequence] = {}
        self._next_id = 0
        self._evaluations = 0
        self._flights: deque[Flight] = deque()
        """What was started and not finished, two at most."""
        self._landed: list[Emission] = []
        """What a flight produced that nobody was told yet."""
        self.context = context

    def submit(
        self,
        tokens: Iterable[int],
        *,
        sampler: Sampler | None,
        max_tokens: int,
        end_tokens: frozenset[int] = frozenset(),
        reuse: bool = True,
    ) -> Sequence:
        """Queue a prompt and return its sequence.

        With `max_tokens` 0 the prompt is computed and nothing else. Without `reuse` all of it is
        computed, and nothing of it is left for others.

        Raises:
            InvalidArgument: if the prompt is empty.
            ContextExceeded: if the prompt leaves no room for a single token.
        """
        prompt = list(tokens)
        if not prompt:
            raise InvalidArgument("the prompt has no tokens, expected at least one")
        if len(prompt) >= self.context:
            raise ContextExceeded(
                f"the prompt has {len(prompt)} tokens, the context holds {self.context} with at "
                "least one of the answer: shorten the prompt or raise --context"
            )
        sequence = Sequence(self._next_id, prompt, len(prompt), max_tokens, sampler, end_tokens)
        sequence.is_reusing = reuse and self._prefixes is not None
        if sequence.is_reusing:  # the last token is always computed: its logits are wanted
            extend(sequence.links, prompt, (len(prompt) - 1) // BLOCK_TOKENS)
        if sampler is not None:
            sampler.accept_prompt(prompt)
        self._next_id += 1
        self._sequences[sequence.id] = sequence
        return sequence

    def step(self) -> list[Emission]:
        """Finish one evaluation and return what it produced, in order of arrival."""
        if not self._flights and not self._landed:
            self._launch()
        if self._runner.is_asynchronous:
            self._launch_fed()
        self._land()
        if self._runner.is_asynchronous and not self._flights:
            self._launch_ahead()
        emissions, self._landed = self._landed, []
        return emissions

    def _launch_ahead(self) -> None:
        """Start what comes next; if that fails, it does so again when nothing waits to be told."""
        try:
            self._launch()
        except CorralError:
            if not self._landed:
                raise

    def _launch(self) -> None:
        """Start an evaluation of what is there to be computed, if anything is."""
        slices = schedule(self._candidates(), self._budget())
        if slices:
            wanting = (self._sequences[part.id] for part in slices if part.wants_logits)
            samplers = [sequence.sampler for sequence in wanting]
            is_simple = all(sampler is not None and sampler.takes_likeliest for sampler in samplers)
            chooses = self._runner.is_asynchronous and is_simple and bool(samplers)
            self._start(slices, chooses=chooses)
            self._flights.append(Flight(slices, chooses))

    def _launch_fed(self) -> None:
        """Start the next token of every sequence before this one is known, if all can go on so."""
        if len(self._flights) != 1 or not self._flights[0].can_feed or self._is_anyone_waiting():
            return
        batch, slices = [], []
        for output, part in enumerate(self._flights[0].slices):
            sequence = self._sequences.get(part.id)
            if sequence is None or self._ends_with_next(sequence):
                continue
            self._grow(sequence, part.num_tokens + 1)
            batch.append(Rows(sequence, 1, 1, ahead=part.num_tokens, fed_by=output))
            slices.append(Slice(part.id, 1, wants_logits=True))
        if batch:
            self._evaluations += 1
            self._runner.start(batch, chooses=True)
            self._flights.append(Flight(tuple(slices), chooses=True))

    def _is_anyone_waiting(self) -> bool:
        return any(s.state is SequenceState.WAITING for s in self._sequences.values())

    def _ends_with_next(self, sequence: Sequence) -> bool:
        """Whether the next token is the last, whatever it is."""
        is_last = sequence.num_generated + 1 >= sequence.max_tokens
        return is_last or len(sequence.tokens) + 1 >= self.context

    def _land(self) -> None:
        """Finish what was started first; sequences that have ended meanwhile are passed over."""
        if not self._flights:
            return
        flight = self._flights.popleft()
        tokens = self._runner.choices() if flight.chooses else []
        logits = None if flight.chooses else self._runner.finish()
        output = 0
        for part in flight.slices:
            sequence = self._sequences.get(part.id)
            if sequence is not None:
                self._advance(sequence, part.num_tokens)
                if part.wants_logits:
                    of_row = tokens[output] if logits is None else logits[output]
                    emission = self._sample(sequence, of_row)
                    self._landed += [emission] if emission else []
            output += part.wants_logits

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence now; one that has ended stays as it is."""
        if sequence.state is not SequenceState.FINISHED:
            self._finish(sequence, FinishReason.CANCELLED)
        self._landed = [one for one in self._landed if one.sequence is not sequence]

    def score(self, tokens: Iterable[int], into: NDArray[np.float32]) -> None:
        """Write the logits of every token of one causal pass: (tokens, vocabulary).

        Raises:
            ContextExceeded: if there are more tokens than the context holds.
            ResourceError: if as many sequences are running as there may be.
        """
        sequence = Sequence(-1, list(tokens), len(into), 0, None, is_reusing=False)
        if len(sequence.tokens) > self.context:
            raise ContextExceeded(
                f"{len(sequence.tokens)} tokens were given, the context holds {self.context}: "
                "load the model with a larger context"
            )
        while self._flights:
            self._land()
        shapes = self._runner.shapes
        if self._num_running() >= shapes.sequences:
            raise ResourceError(
                f"all {shapes.sequences} sequences the model was loaded for are in use: finish or "
                "cancel an answer first, or raise --parallel"
            )
        self._admit(sequence)
        chunk = min(shapes.outputs, shapes.rows)
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
        running = self._num_running()
        pools = [pool.statistics() for pool in self._pools]
        return EngineStatistics(
            len(self._sequences) - running,
            running,
            self._evaluations,
            free_blocks=tuple(pool.num_free for pool in pools),
            known_blocks=tuple(pool.num_known for pool in pools),
        )

    def _num_running(self) -> int:
        return sum(s.state is SequenceState.RUNNING for s in self._sequences.values())

    def _budget(self) -> Budget:
        shapes = self._runner.shapes
        return Budget(shapes.rows, shapes.outputs, shapes.sequences)

    def _candidates(self) -> list[Candidate]:
        """Return who may run, in order of arrival: as many waiting as there are free slots."""
        free = self._runner.shapes.sequences - self._num_running()
        candidates = []
        for sequence in self._sequences.values():
            is_admitted = sequence.state is SequenceState.RUNNING
            if not is_admitted and free == 0:
                continue
            free -= not is_admitted
            known = [] if is_admitted else self._reusable(sequence)
            pending = sequence.num_pending - len(known) * BLOCK_TOKENS
            candidates.append(Candidate(sequence.id, pending, is_admitted))
        return candidates

    def _start(self, slices: tuple[Slice, ...], *, chooses: bool) -> None:
        sequences = [self._sequences[part.id] for part in slices]
        # Known blocks are adopted before anyone takes new ones: taking may make others forgotten.
        for sequence in sequences:
            if sequence.state is SequenceState.WAITING:
                self._admit(sequence)
        batch = []
        for part, sequence in zip(slices, sequences, strict=True):
            self._grow(sequence, part.num_tokens)
            batch.append(Rows(sequence, part.num_tokens, int(part.wants_logits)))
        self._evaluations += 1
        self._runner.start(batch, chooses=chooses)

    def _admit(self, sequence: Sequence) -> None:
        sequence.tables = tuple(
            BlockTable(pool, window=group.window)
            for pool, group in zip(self._pools, self._groups, strict=True)
        )
        known = self._reusable(sequence)
        if known:
            sequence.tables[0].adopt(known)
            sequence.num_cached = sequence.num_computed = len(known) * BLOCK_TOKENS
        sequence.state = SequenceState.RUNNING

    def _reusable(self, sequence: Sequence) -> list[int]:
        """Return the blocks that a waiting sequence can begin with."""
        if self._prefixes is None or not sequence.is_reusing:
            return []
        return self._prefixes.find(sequence.links)

    def _grow(self, sequence: Sequence, num_tokens: int) -> None:
        for table in sequence.tables:
            table.grow(sequence.num_computed + num_tokens)

    def _advance(self, sequence: Sequence, num_tokens: int) -> None:
        full = sequence.num_computed // BLOCK_TOKENS
        sequence.num_computed += num_tokens
        for table in sequence.tables:
            table.slide(sequence.num_computed)
        if self._prefixes is not None and sequence.is_reusing:
            num_full = sequence.num_computed // BLOCK_TOKENS
            extend(sequence.links, sequence.tokens, num_full)
            for number in range(full, num_full):
                self._prefixes.keep(sequence.tables[0].blocks[number], sequence.links[number])

    def _sample(self, sequence: Sequence, given: NDArray[np.float32] | int) -> Emission | None:
        """Take the token of some logits, or one that the device chose."""
        if sequence.max_tokens == 0 or sequence.sampler is None:
            self._finish(sequence, FinishReason.LENGTH)
            return None
        try:
            if isinstance(given, int):
                token = _chosen(given)
            else:
                token = sequence.sampler.sample(given, len(sequence.tokens))
            sequence.sampler.accept(token)
        except Exception as error:  # this sequence is lost, its neighbours are not
            self._lose(sequence)
            return Emission(sequence, None, _translated(error))
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

    def _lose(self, sequence: Sequence) -> None:
        """End a sequence whose keys and values may be wrong, so that nobody else sees them."""
        if self._prefixes is not None:
            for block in sequence.tables[0].blocks:
                self._prefixes.forget(block)
        self._finish(sequence, FinishReason.ERROR)

    def _give_back(self, sequence: Sequence) -> None:
        for table in sequence.tables:
            table.trim(0)


def _pools(groups: tuple[GroupSpec, ...]) -> tuple[tuple[BlockPool, ...], PrefixPool | None]:
    """Return a pool for each group, and the one in which beginnings can be reused, if any.

    Windowed layers give up what lies behind their window, so beginnings of models that have some
    are not kept.
    """
    if len(groups) == 1 and groups[0].window is None:
        pool = PrefixPool(groups[0].num_blocks)
        return (pool,), pool
    return tuple(BlockPool(group.num_blocks) for group in groups), None


def _chosen(token: int) -> int:
    """Return the token that the device chose.

    Raises:
        ModelError: if there was none to choose.
    """
    if token < 0:
        raise ModelError(
            "the model computed a logit that is no finite number; expected finite ones: the "
            "weights are damaged or overflow, try another quantization of the model"
        )
    return token


def _translated(error: Exception) -> CorralError:
    if isinstance(error, CorralError):
        return error
    translated = InternalError(f"sampling failed: {type(error).__name__}: {error}")
    translated.__cause__ = error
    return translated
