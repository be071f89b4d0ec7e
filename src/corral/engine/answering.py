"""One request while it is answered: tokens in, events out. It knows no engine and no thread."""

import time

from corral.contract.events import (
    Delta,
    FinishEvent,
    FinishReason,
    Timings,
    TokenEvent,
    TokenLogprob,
    TokenLogprobs,
    Usage,
)
from corral.contract.messages import GenerationRequest
from corral.contract.questions import SlotState
from corral.contract.service import Deliver
from corral.engine.reply import Reply
from corral.engine.reply_plan import ReplyPlan
from corral.engine.sequence import Sequence
from corral.engine.text_stream import TextStream
from corral.text.tokenizer import Tokenizer


class Answering:
    """The text, the counts and the times of one answer."""

    def __init__(self, request: GenerationRequest, deliver: Deliver, tokenizer: Tokenizer) -> None:
        """Take a request whose events go to `deliver`.

        Raises:
            InvalidArgument: if it wants what cannot be given.
        """
        self.request = request
        self.deliver = deliver
        self.sequence: Sequence | None = None
        """Known once the engine has the prompt."""
        self._tokenizer = tokenizer
        self._stream = TextStream(tokenizer, request.stop)
        self._reply = Reply(ReplyPlan()) if request.is_parsed else None
        self._submitted_at = time.perf_counter()
        self._first_at: float | None = None
        self._last_at: float | None = None

    @property
    def has_stopped(self) -> bool:
        """Whether a stop text ended the answer."""
        return self._stream.stop is not None

    def read_as(self, plan: ReplyPlan) -> None:
        """Read the answer as `plan` says, where the request wants it read; before the first token.

        It is known only when the prompt is.
        """
        if self._reply is not None:
            self._reply = Reply(plan)

    def token(self, token: int, logprobs: TokenLogprobs | None) -> TokenEvent:
        """Return the event of one more token."""
        self.note_time()
        text, deltas = "", tuple[Delta, ...]()
        if self._reply is None:
            text = self._stream.push(token)
        else:
            deltas = self._reply.push(self._stream.push_pieces(token))
        return TokenEvent(
            request_id=self.request.request_id,
            token=token,
            text=text,
            deltas=deltas,
            logprobs=None if logprobs is None else self._spelled(logprobs),
        )

    def note_time(self) -> None:
        """Note that a token was there, or that the prompt is computed."""
        self._last_at = time.perf_counter()
        self._first_at = self._first_at or self._last_at

    def finished(self, reason: FinishReason) -> FinishEvent:
        """Return the last event."""
        text = self._stream.finish()
        reply = self._reply
        return FinishEvent(
            request_id=self.request.request_id,
            reason=reason,
            text=text if reply is None else "",
            deltas=() if reply is None else reply.finish(text),
            has_tool_calls=reply is not None and reply.has_tool_calls,
            stop=self._stream.stop,
            usage=self.usage,
            timings=self._timings(),
        )

    def lost(self) -> FinishEvent:
        """Return the last event of an answer whose text cannot be finished."""
        return FinishEvent(
            request_id=self.request.request_id,
            reason=FinishReason.ERROR,
            usage=self.usage,
            timings=self._timings(),
        )

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        if self.sequence is None:
            return Usage()
        return Usage(
            prompt_tokens=self.sequence.num_prompt,
            cached_tokens=self.sequence.num_cached,
            generated_tokens=self.sequence.num_generated,
            dropped_tokens=self.sequence.num_dropped,
        )

    @property
    def slot(self) -> SlotState:
        """What is to be seen of it while it runs."""
        assert self.sequence is not None
        return SlotState(
            request_id=self.request.request_id,
            prompt_tokens=self.sequence.num_prompt,
            cached_tokens=self.sequence.num_cached,
            computed_tokens=self.sequence.num_dropped + self.sequence.num_computed,
            generated_tokens=self.sequence.num_generated,
            dropped_tokens=self.sequence.num_dropped,
        )

    def _timings(self) -> Timings:
        now = time.perf_counter()
        admitted = self.sequence.admitted_at if self.sequence is not None else None
        admitted = now if admitted is None else admitted
        first = now if self._first_at is None else self._first_at
        last = first if self._last_at is None else self._last_at
        return Timings(
            queue_s=admitted - self._submitted_at,
            prompt_s=max(0.0, first - admitted),
            generation_s=last - first,
        )

    def _spelled(self, found: TokenLogprobs) -> TokenLogprobs:
        """Return log-probabilities with the bytes of their tokens."""
        return TokenLogprobs(self._spell(found.drawn), tuple(map(self._spell, found.top)))

    def _spell(self, one: TokenLogprob) -> TokenLogprob:
        is_known = one.token < self._tokenizer.vocabulary_size
        piece = self._tokenizer.token_bytes(one.token) if is_known else b""
        return TokenLogprob(one.token, one.logprob, piece)
