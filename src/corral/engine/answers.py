"""The answers being made on one engine: each is read at its own pace, all advance together.

Whoever reads an answer drives the engine until that answer has a token; tokens of the others wait
here until they are asked for.
"""

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from corral.engine.engine import Engine
from corral.engine.flight import Emission
from corral.engine.growth import GrowthWatch
from corral.engine.metrics import EngineStatistics, MemoryGrowth
from corral.engine.sequence import Sequence, SequenceState
from corral.errors import Closed, InvalidArgument
from corral.sampling.sampler import Sampler


class Answers:
    """Owns an engine and the tokens that nobody has read yet."""

    def __init__(self, engine: Engine, *, name: str, watch: GrowthWatch | None = None) -> None:
        self._engine = engine
        self._name = name
        self._watch = watch
        self._lock = threading.Lock()
        self._unread: dict[int, deque[Emission]] = {}
        self._abandoned: deque[Sequence] = deque()
        self.is_closed = False

    def submit(
        self,
        tokens: Iterable[int],
        *,
        sampler: Sampler,
        max_tokens: int | None,
        end_tokens: frozenset[int] = frozenset(),
        reuse: bool = True,
        adapters: Iterable[tuple[int, float]] | None = None,
    ) -> Sequence:
        """Queue a prompt; raises as `Engine.submit` does, and Closed after close()."""
        with self._lock:
            self._settle()
            sequence = self._engine.submit(
                tokens,
                sampler=sampler,
                max_tokens=max_tokens,
                end_tokens=end_tokens,
                reuse=reuse,
                adapters=adapters,
            )
            self._unread[sequence.id] = deque()
        return sequence

    def advance(self, sequence: Sequence) -> int | None:
        """Step until a sequence has a token; None when it has ended.

        Raises:
            CorralError: what ended the sequence.
            Closed: after close().
        """
        with self._lock:
            self._settle()
            unread = self._unread.get(sequence.id)
            while not unread and sequence.state is not SequenceState.FINISHED:
                self._cancel_abandoned()
                emissions = self._engine.step()
                for emission in emissions:
                    if emission.token is not None or emission.error is not None:
                        self._unread[emission.sequence.id].append(emission)
                if self._watch is not None:
                    self._watch.generated(len(emissions))
            if not unread:
                self._unread.pop(sequence.id, None)
                return None
            emission = unread.popleft()
        if emission.error is not None:
            raise emission.error
        return emission.token

    def score(
        self,
        tokens: Iterable[int],
        into: NDArray[np.float32],
        *,
        adapters: Iterable[tuple[int, float]] | None = None,
    ) -> None:
        """Write logits of one causal pass; raises as `Engine.score` does, and Closed."""
        with self._lock:
            self._settle()
            self._engine.score(tokens, into, adapters=adapters)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let nothing be computed meanwhile; what was is told afterwards.

        Raises:
            Closed: after close().
        """
        with self._lock:
            self._settle()
            self._engine.settle()
            yield

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Let nothing be computed meanwhile, and nothing that was computed before be known after.

        Raises:
            InvalidArgument: while answers are made.
            Closed: after close().
        """
        with self.paused():
            if self._engine.has_work:
                raise InvalidArgument(
                    "answers are being made with the model as it is: let them end, or cancel them"
                )
            try:
                yield
            finally:
                if self._engine.prefixes is not None:
                    self._engine.prefixes.forget_all()

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence now; one that has ended stays as it is."""
        with self._lock:
            self._drop(sequence)

    def abandon(self, sequence: Sequence) -> None:
        """Cancel a sequence before the next evaluation: safe in the middle of anything."""
        self._abandoned.append(sequence)

    def statistics(self) -> EngineStatistics:
        """Return the engine's counts."""
        with self._lock:
            self._cancel_abandoned()
            return self._engine.statistics()

    def growth(self) -> MemoryGrowth | None:
        """Return what the tokens so far added to memory; None if nobody watches."""
        if self._watch is None:
            return None
        with self._lock:
            return self._watch.growth()

    def close(self) -> None:
        """Let nothing run any more; a second call does nothing."""
        with self._lock:
            self.is_closed = True

    def _settle(self) -> None:
        if self.is_closed:
            raise Closed(f"model {self._name} was closed")
        self._cancel_abandoned()

    def _cancel_abandoned(self) -> None:
        while self._abandoned:
            self._drop(self._abandoned.popleft())

    def _drop(self, sequence: Sequence) -> None:
        self._unread.pop(sequence.id, None)
        self._engine.cancel(sequence)
