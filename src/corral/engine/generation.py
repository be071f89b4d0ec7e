"""One answer as it is made: tokens of a sequence to pieces of text, with stop strings and times."""

import time
from collections.abc import Callable, Iterator
from typing import Self

from corral.contract.messages import FinishReason
from corral.engine.metrics import GenerationStatistics
from corral.engine.sequence import Sequence
from corral.errors import InternalError
from corral.text.detokenizer import Detokenizer
from corral.text.stops import StopMatcher


class Generation:
    """An iterator over the pieces of one answer.

    It may be left at any time: `cancel()`, or leaving its `with` block, gives its blocks back.
    """

    def __init__(
        self,
        sequence: Sequence,
        advance: Callable[[Sequence], int | None],
        cancel: Callable[[Sequence], None],
        *,
        detokenizer: Detokenizer,
        stops: StopMatcher,
    ) -> None:
        """Wrap a submitted sequence; `advance` computes and returns its next token, or None."""
        self._sequence = sequence
        self._advance = advance
        self._cancel = cancel
        self._detokenizer = detokenizer
        self._stops = stops
        self._started = time.perf_counter()
        self._first: float | None = None
        self._last = self._started
        self._reason: FinishReason | None = None
        self._pieces = self._run()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def cancel(self) -> None:
        """End the answer now; what was already given stays."""
        if self._reason is None:
            self._reason = FinishReason.CANCELLED
            self._cancel(self._sequence)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens generated so far, one that ended the answer included."""
        return tuple(self._sequence.tokens[self._sequence.num_prompt :])

    @property
    def statistics(self) -> GenerationStatistics:
        """How the answer came to be.

        Raises:
            InternalError: while it is still being made.
        """
        if self._reason is None:
            raise InternalError("the answer is not finished; read it to its end or cancel it")
        first = self._first if self._first is not None else self._last
        return GenerationStatistics(
            prompt_tokens=self._sequence.num_prompt,
            cached_tokens=self._sequence.num_cached,
            generated_tokens=self._sequence.num_generated,
            prefill_s=first - self._started,
            decode_s=self._last - first,
            time_to_first_token_s=first - self._started,
            finish_reason=self._reason,
        )

    def _run(self) -> Iterator[str]:
        while (token := self._next_token()) is not None:
            emit, stopped = self._stops.push(self._detokenizer.push(token))
            if stopped:
                self._reason = FinishReason.STOP
                self._cancel(self._sequence)
            if emit:
                yield emit
            if stopped:
                return
        if self._reason is FinishReason.CANCELLED:
            return
        self._reason = self._sequence.finish_reason
        emit, stopped = self._stops.push(self._detokenizer.finish())
        if not stopped:
            emit += self._stops.finish()
        if emit:
            yield emit

    def _next_token(self) -> int | None:
        """Return the next token that is part of the answer, or None at its end."""
        if self._reason is not None:
            return None
        token = self._advance(self._sequence)
        if token is None:
            return None
        self._last = time.perf_counter()
        self._first = self._first or self._last
        return None if token in self._sequence.end_tokens else token
