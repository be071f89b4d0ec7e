"""The loop: schedule, run, sample, emit.

It knows tokens, not text; sequences, not requests. One thread at a time may call it.

    in turn                 start n ─▶ finish n ─▶ sample ─▶ emit n ─▶ start n+1 …
    where the device computes while the caller goes on
                            finish n ─▶ sample ─▶ start n+1 ─▶ emit n
    and where it chooses the tokens, because it can do all that is asked
                            start n+1, fed by n ─▶ finish n ─▶ emit n

An error ends the sequences it belongs to: one in sampling a single one, a failing evaluation those
that were in it. All others go on as if nothing had been. Only a fault of the device, after which it
computes nothing more, is raised.
"""

import time
from collections import deque
from collections.abc import Iterable
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from corral.contract.events import FinishReason
from corral.engine.adapter_use import AdapterOwner, NoAdapters, group_key
from corral.engine.batch import Rows
from corral.engine.cache import Beginning, Cache
from corral.engine.candidates import admitted, waiting
from corral.engine.flight import Emission, Flight, chosen_token, translated
from corral.engine.metrics import EngineStatistics
from corral.engine.runner import Runner
from corral.engine.scheduler import Budget, Candidate, Slice, preempted, schedule
from corral.engine.scoring import compute_logits
from corral.engine.sequence import NO_LIMIT, Sequence, SequenceState, checked_prompt
from corral.engine.sessions.returns import Returns
from corral.engine.shifting import shift_contexts
from corral.engine.waiting import WaitingLine
from corral.errors import CorralError, DeviceFault, InvalidArgument
from corral.kv.prefix import PrefixPool
from corral.kv.spec import GroupSpec, blocks_for
from corral.sampling.sampler import Sampler


class Engine:
    """Owns the sequences and, through the cache, their blocks."""

    def __init__(
        self,
        runner: Runner,
        groups: tuple[GroupSpec, ...],
        *,
        context: int,
        chunk_beside: int | None = None,
        keep: int | None = None,
    ) -> None:
        """Begin with no sequences.

        `chunk_beside` is how many prompt tokens an evaluation computes at most while sequences
        decode; None is as many as fit. With `keep` a sequence whose context is full drops older
        tokens and goes on; so many of its prompt stay in any case.
        """
        if chunk_beside is not None and chunk_beside < 1:
            raise InvalidArgument(
                f"chunk_beside is {chunk_beside}, expected at least 1: prompts must get on"
            )
        self._runner = runner
        self._cache = Cache(groups)
        self._waiting = WaitingLine()
        self._beginnings: dict[int, Beginning] = {}
        """What each sequence that may be admitted now would begin with."""
        self._running: dict[int, Sequence] = {}
        """In the order in which they were admitted."""
        self._next_id = 0
        self._evaluations = 0
        self._preemptions = 0
        self._chunk_beside = chunk_beside
        self._keep = keep
        self._flights: deque[Flight] = deque()
        """What was started and not finished, two at most."""
        self._landed: list[Emission] = []
        """What a flight produced that nobody was told yet."""
        self.context = context
        self.adapters: AdapterOwner = NoAdapters()
        self.returns = Returns()
        """What comes of conversations that were restored."""

    @property
    def prefixes(self) -> PrefixPool | None:
        """What is known of beginnings; None if the model's layers keep none."""
        return self._cache.prefixes

    def submit(
        self,
        tokens: Iterable[int],
        *,
        sampler: Sampler | None,
        max_tokens: int | None = None,
        end_tokens: frozenset[int] = frozenset(),
        reuse: bool = True,
        namespace: str = "",
        wants_vector: bool = False,
        adapters: Iterable[tuple[int, float]] | None = None,
    ) -> Sequence:
        """Queue a prompt and return its sequence.

        With `max_tokens` 0 the prompt is computed and nothing else; None is no limit. Without
        `reuse` all of it is computed, and nothing of it is left for others; else for those of its
        `namespace`. One that `wants_vector` ends with the hidden state behind its prompt, and
        generates nothing. `adapters` are numbers and scales; None is what was set for all.

        Raises:
            InvalidArgument: if the prompt is empty, or there is no such adapter.
            ContextExceeded: if the prompt leaves no room for a single token.
        """
        prompt = checked_prompt(tokens, self.context)
        limit = NO_LIMIT if max_tokens is None else max_tokens
        sequence = Sequence(self._next_id, prompt, len(prompt), limit, sampler, end_tokens)
        sequence.is_reusing, sequence.namespace = reuse, namespace
        sequence.wants_vector, sequence.adapters = wants_vector, self.adapters.uses(adapters)
        if self._keep is not None:
            sequence.keep_tokens = min(self._keep, len(prompt))
        self._cache.name_prompt(sequence)
        if sampler is not None:
            sampler.accept_prompt(prompt)
        self._next_id += 1
        self.adapters.begin(sequence.adapters)
        self._waiting.join(sequence)
        return sequence

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._running or self._flights or self._landed or len(self._waiting))

    def step(self) -> list[Emission]:
        """Finish one evaluation and return what it produced, in order of admission.

        Raises:
            DeviceFault: if the device computes nothing more.
        """
        if self.adapters.has_leftovers:
            self.settle()
            self.adapters.collect()
        if not self._flights and not self._landed:
            self._launch()
        if self._runner.can_feed:
            self._launch_fed()
        self._land()
        if self._runner.is_asynchronous and not self._flights:
            self._launch()
        emissions, self._landed = self._landed, []
        return emissions

    def _launch(self) -> None:
        """Start an evaluation of what is there to be computed, if anything is."""
        self._shift_full()
        candidates, budget = self._candidates(), self._budget()
        while (victim := preempted(candidates, budget)) is not None:
            self._preempt(self._running[victim])
            candidates, budget = self._candidates(), self._budget()
        slices = schedule(candidates, budget)
        if not slices:
            return
        known = {sequence.id: sequence for sequence in self._among(slices)}
        # Stable: with no adapters, or one for all, nothing changes its place.
        slices = tuple(sorted(slices, key=lambda part: group_key(known[part.id].adapters)))
        wanting = (known[part.id] for part in slices if part.wants_logits)
        chooses = self._runner.can_choose([sequence.sampler for sequence in wanting])
        # Known blocks are adopted before anyone takes new ones: taking may make others forgotten.
        for sequence in known.values():
            if sequence.state is SequenceState.WAITING:
                self._admit(sequence)
        batch = []
        for part in slices:
            self._cache.grow(known[part.id], part.num_tokens)
            batch.append(Rows(known[part.id], part.num_tokens, int(part.wants_logits)))
        self._start(batch, Flight(slices, chooses))

    def _launch_fed(self) -> None:
        """Start the next token of every sequence before this one is known, if all can go on so."""
        if len(self._flights) != 1 or not self._flights[0].can_feed or self._can_admit():
            return
        if self._full():
            return  # their turn comes when nothing is under way
        going = []
        for output, part in enumerate(self._flights[0].slices):
            sequence = self._running.get(part.id)
            if sequence is not None and not self._ends_with_next(sequence):
                going.append((sequence, part.num_tokens, output))
        batch = []
        for sequence, ahead, output in going:
            if not self._cache.can_grow(sequence, ahead + 1):
                return  # what was taken already is taken anyway by the next token
            self._cache.grow(sequence, ahead + 1)
            batch.append(Rows(sequence, 1, 1, ahead=ahead, fed_by=output))
        if batch:
            slices = tuple(Slice(rows.sequence.id, 1, wants_logits=True) for rows in batch)
            self._start(batch, Flight(slices, chooses=True))

    def _full(self) -> list[Sequence]:
        """Return the sequences that cannot go on before older tokens are dropped."""
        return [one for one in self._running.values() if len(one.tokens) >= self.context]

    def _shift_full(self) -> None:
        """Shift what is full; who cannot be for want of blocks computes what is left again."""
        for sequence, error in shift_contexts(self._full(), self._cache, self._runner):
            if error is None:
                self._preempt(sequence)
            else:
                self._lose(sequence, error, "a shift of the context")

    def _start(self, batch: list[Rows], flight: Flight) -> None:
        self._evaluations += 1
        try:
            self._runner.start(batch, chooses=flight.chooses)
        except DeviceFault:
            raise
        except Exception as error:
            self._lose_flight(flight, error)
        else:
            self._flights.append(flight)

    def _can_admit(self) -> bool:
        """Whether somebody waits for whom there is a slot."""
        return bool(len(self._waiting)) and len(self._running) < self._runner.shapes.sequences

    def _ends_with_next(self, sequence: Sequence) -> bool:
        """Whether the next token is the last, whatever it is."""
        is_last = sequence.num_generated + 1 >= sequence.max_tokens
        return is_last or len(sequence.tokens) + 1 >= self.context

    def _land(self) -> None:
        """Finish what was started first; sequences that have ended meanwhile are passed over."""
        if not self._flights:
            return
        flight = self._flights.popleft()
        try:
            tokens = self._runner.choices() if flight.chooses else []
            logits = None if flight.chooses else self._runner.finish()
        except DeviceFault:
            raise
        except Exception as error:
            self._lose_flight(flight, error)
            return
        output = 0
        for part in flight.slices:
            sequence = self._running.get(part.id)
            if sequence is not None:
                self._cache.advance(sequence, part.num_tokens)
                if part.wants_logits and sequence.wants_vector:
                    self._take_vector(sequence, output)
                elif part.wants_logits:
                    self._sample(sequence, tokens[output] if logits is None else logits[output])
            output += part.wants_logits

    def _lose_flight(self, flight: Flight, error: Exception) -> None:
        """End the sequences of an evaluation that failed."""
        for part in flight.slices:
            sequence = self._running.get(part.id)
            if sequence is not None:
                self._lose(sequence, error, "an evaluation")

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence now; one that has ended stays as it is."""
        if sequence.state is not SequenceState.FINISHED:
            self._finish(sequence, FinishReason.CANCELLED)
        self._landed = [one for one in self._landed if one.sequence is not sequence]

    def score(
        self,
        tokens: Iterable[int],
        into: NDArray[np.float32],
        *,
        adapters: Iterable[tuple[int, float]] | None = None,
    ) -> None:
        """Write the logits of every token of one causal pass: (tokens, vocabulary).

        Raises:
            ContextExceeded: if there are more tokens than the context holds.
            ResourceError: if as many sequences are running as there may be.
        """
        sequence = Sequence(-1, list(tokens), len(into), 0, None, is_reusing=False)
        sequence.adapters = self.adapters.uses(adapters)
        self.settle()
        running = len(self._running)
        compute_logits(sequence, into, self._runner, self._cache, running, self.context)

    def settle(self) -> None:
        """Finish every evaluation under way; what they produced comes with the next step."""
        while self._flights:
            self._land()

    def statistics(self) -> EngineStatistics:
        """Return the engine's counts."""
        pools = self._cache.statistics()
        return EngineStatistics(
            len(self._waiting),
            len(self._running),
            self._evaluations,
            free_blocks=tuple(pool.num_free for pool in pools),
            known_blocks=tuple(pool.num_known for pool in pools),
            num_blocks=tuple(pool.num_blocks for pool in pools),
            preemptions=self._preemptions,
        )

    @property
    def running(self) -> tuple[Sequence, ...]:
        """The sequences that hold blocks, in the order in which they were admitted."""
        return tuple(self._running.values())

    def _budget(self) -> Budget:
        shapes = self._runner.shapes
        return Budget(
            shapes.rows,
            shapes.outputs,
            shapes.sequences,
            beside=self._chunk_beside,
            blocks=self._cache.num_free,
            sequence_blocks=blocks_for(self.context),
        )

    def _candidates(self) -> list[Candidate]:
        """Return who may run: all admitted, then as many that wait as there are free slots."""
        free = self._runner.shapes.sequences - len(self._running)
        new, self._beginnings = waiting(islice(self._waiting, free), self._cache)
        return [*admitted(self._running.values()), *new]

    def _among(self, slices: tuple[Slice, ...]) -> list[Sequence]:
        """Return the sequences of slices, in their order."""
        waiting = islice(self._waiting, self._runner.shapes.sequences)
        known = {sequence.id: sequence for sequence in waiting} | self._running
        return [known[part.id] for part in slices]

    def _admit(self, sequence: Sequence) -> None:
        self._waiting.admit(sequence)
        self._running[sequence.id] = sequence
        sequence.state = SequenceState.RUNNING
        beginning = self._beginnings.pop(sequence.id)
        sequence.num_computed = self._cache.open_tables(sequence, beginning)
        if sequence.admitted_at is None:
            sequence.admitted_at = time.perf_counter()
            sequence.num_cached = sequence.num_computed
            self.returns.admitted(sequence, num_forgotten=self._cache.num_forgotten)

    def _preempt(self, sequence: Sequence) -> None:
        """Take a sequence's blocks; its tokens are computed again when there are some."""
        self._cache.close_tables(sequence)
        del self._running[sequence.id]
        sequence.state, sequence.num_computed = SequenceState.WAITING, 0
        sequence.num_preemptions += 1
        self._preemptions += 1
        self._waiting.rejoin(sequence)

    def _sample(self, sequence: Sequence, given: NDArray[np.float32] | int) -> None:
        """Take the token of some logits, or one that the device chose."""
        sampler, logprobs = sequence.sampler, None
        if sequence.max_tokens == 0 or sampler is None:
            self._finish(sequence, FinishReason.LENGTH)
            self._landed.append(Emission(sequence, None))
            return
        try:
            if isinstance(given, int):
                token = chosen_token(given)
            else:
                token = sampler.sample(given, sequence.num_tokens)
                if sampler.params.logprobs is not None:
                    logprobs = sampler.logprobs(given, token)
            sampler.accept(token)
        except Exception as error:  # this sequence is lost, its neighbours are not
            self._lose(sequence, error, "sampling")
            return
        sequence.tokens.append(token)
        reason = sequence.reason_to_finish(token, self.context)
        if reason is not None:
            self._finish(sequence, reason)
        self._landed.append(Emission(sequence, token, logprobs=logprobs))

    def _take_vector(self, sequence: Sequence, output: int) -> None:
        """End a sequence with the hidden state that a row of logits was made of."""
        try:
            vector = self._runner.vectors()[output].copy()
        except CorralError as error:
            self._lose(sequence, error, "reading a hidden state")
            return
        self._finish(sequence, FinishReason.LENGTH)
        self._landed.append(Emission(sequence, None, vector=vector))

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.finish_reason = reason
        sequence.state = SequenceState.FINISHED
        self._cache.close_tables(sequence)
        self.adapters.end(sequence.adapters)
        if self._running.pop(sequence.id, None) is None:
            self._waiting.leave(sequence)

    def _lose(self, sequence: Sequence, error: Exception, what: str) -> None:
        """End a sequence whose keys and values may be wrong, so that nobody else sees them."""
        self._cache.forget(sequence)
        self._finish(sequence, FinishReason.ERROR)
        self._landed.append(Emission(sequence, None, translated(error, what, sequence.adapters)))
