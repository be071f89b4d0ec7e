"""One answer as it is made: tokens of a sequence to pieces of text, with stop strings and times."""

import time
from collections.abc import Iterator
from typing import Self

from corral.contract.events import FinishReason
from corral.engine.answers import Answers
from corral.engine.metrics import GenerationStatistics
from corral.engine.sequence import Sequence
from corral.engine.text_stream import TextStream
from corral.errors import InternalError


class Generation:
    """An iterator over the pieces of one answer.

    It may be left at any time: `cancel()`, leaving its `with` block, or dropping it gives its
    blocks back.
    """

    def __init__(
        self,
        sequence: Sequence,
        answers: Answers,
        *,
        parent: object,
        stream: TextStream,
    ) -> None:
        """Wrap a submitted sequence; `parent` is kept alive as long as this is."""
        self._parent = parent
        self._sequence = sequence
        self._answers = answers
        self._stream = stream
        self._started = time.perf_counter()
        self._first: float | None = None
        self._last = self._started
        self._reason: FinishReason | None = None
        self._num_read = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while self._reason is None:
            piece = self._next_piece()
            if piece:
                return piece
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        # Not cancelled here: this can run in the middle of anything, an evaluation included.
        if getattr(self, "_reason", self) is None:
            self._answers.abandon(self._sequence)

    def cancel(self) -> None:
        """End the answer now; what was already given stays."""
        if self._reason is None:
            self._end(FinishReason.CANCELLED)

    def interrupt(self) -> None:
        """Let the answer end before its next evaluation; safe in a signal handler."""
        self._answers.abandon(self._sequence)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens generated so far, one that ended the answer included.

        Those that a full context dropped are not among them.
        """
        return tuple(self._sequence.tokens[self._sequence.first_generated :])

    @property
    def num_unread(self) -> int:
        """Tokens that were generated and wait to be read.

        While one answer is read, all that run get tokens. Whoever reads several reads the one with
        the most of these: what waits is kept.
        """
        return self._sequence.num_generated - self._num_read

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

    def _next_piece(self) -> str:
        try:
            token = self._answers.advance(self._sequence)
        except Exception:
            self._end(FinishReason.ERROR)
            raise
        if token is not None or self._first is None:
            self._last = time.perf_counter()
            self._first = self._first or self._last
        self._num_read += token is not None
        if token is None or token in self._sequence.end_tokens:
            self._reason = self._sequence.finish_reason or FinishReason.CANCELLED
            return self._stream.finish()
        piece = self._stream.push(token)
        if self._stream.stop is not None:
            self._end(FinishReason.STOP)
        return piece

    def _end(self, reason: FinishReason) -> None:
        self._reason = reason
        self._answers.cancel(self._sequence)
