"""Parts of answers that several routes share: usage, timings, reasons, logprobs."""

from collections.abc import Iterable, Sequence

import msgspec

from corral.contract.events import (
    Event,
    FinishEvent,
    FinishReason,
    TokenEvent,
    TokenLogprob,
    TokenLogprobs,
    Usage,
)

FINGERPRINT = "corral"
_LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say, as OpenAI writes it."""


class PromptDetails(msgspec.Struct):
    """What is known of the prompt's tokens."""

    cached_tokens: int


class UsageReply(msgspec.Struct):
    """OpenAI's count of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class TimingsReply(msgspec.Struct):
    """llama-server's `timings`: counts, milliseconds and tokens per second."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class Tally:
    """Adds up the usage of answers, each prompt counted once whatever answers it has."""

    def __init__(self, choices: int = 1) -> None:
        """Expect so many answers to each prompt, in order."""
        self._choices = choices
        self._usages: dict[int, Usage] = {}

    def add(self, place: int, event: FinishEvent) -> None:
        """Count the answer at a place."""
        self._usages[place] = event.usage

    def reply(self) -> UsageReply:
        """Return the sum."""
        firsts = [usage for place, usage in self._usages.items() if place % self._choices == 0]
        prompt = sum(usage.prompt_tokens for usage in firsts)
        cached = sum(usage.cached_tokens for usage in firsts)
        generated = sum(usage.generated_tokens for usage in self._usages.values())
        return UsageReply(prompt, generated, prompt + generated, PromptDetails(cached))


def timings(event: FinishEvent) -> TimingsReply:
    """Return where the time of an answer went."""
    usage, taken = event.usage, event.timings
    computed = max(usage.prompt_tokens - usage.cached_tokens, 0)
    return TimingsReply(
        cache_n=usage.cached_tokens,
        prompt_n=computed,
        prompt_ms=taken.prompt_s * 1e3,
        prompt_per_token_ms=_ratio(taken.prompt_s * 1e3, computed),
        prompt_per_second=_ratio(computed, taken.prompt_s),
        predicted_n=usage.generated_tokens,
        predicted_ms=taken.generation_s * 1e3,
        predicted_per_token_ms=_ratio(taken.generation_s * 1e3, usage.generated_tokens),
        predicted_per_second=_ratio(usage.generated_tokens, taken.generation_s),
    )


def _ratio(top: float, bottom: float) -> float:
    return top / bottom if bottom > 0 else 0.0


def finish_reason(event: FinishEvent) -> str:
    """Return OpenAI's word for why an answer ended."""
    if event.has_tool_calls:
        return "tool_calls"
    is_cut = event.reason in (FinishReason.LENGTH, FinishReason.CONTEXT)
    return "length" if is_cut else "stop"


class LogprobReply(msgspec.Struct):
    """A token and its logprob."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobReply(msgspec.Struct):
    """A drawn token with the likeliest in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[LogprobReply]


class ChatLogprobs(msgspec.Struct):
    """Logprobs as chat completions have them."""

    content: list[TokenLogprobReply]
    refusal: None = None


def piece_text(token: TokenLogprob) -> str:
    """Return a token as text; bytes that are only part of a character become a mark."""
    return token.piece.decode("utf-8", errors="replace")


def finite(logprob: float) -> float:
    """Return a logprob that JSON can hold."""
    return max(logprob, _LOWEST_LOGPROB) if logprob == logprob else _LOWEST_LOGPROB


def chat_logprobs(given: Iterable[TokenLogprobs]) -> ChatLogprobs:
    """Return logprobs of tokens as chat completions have them."""
    return ChatLogprobs([_drawn(item) for item in given])


def _drawn(item: TokenLogprobs) -> TokenLogprobReply:
    drawn = item.drawn
    return TokenLogprobReply(
        piece_text(drawn),
        finite(drawn.logprob),
        [*drawn.piece],
        [LogprobReply(piece_text(t), finite(t.logprob), [*t.piece]) for t in item.top],
    )


class TextLogprobs(msgspec.Struct):
    """Logprobs as the older completions have them."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


def text_logprobs(given: Sequence[TokenLogprobs], offset: int) -> TextLogprobs:
    """Return logprobs of tokens whose text begins at an offset."""
    tokens = [piece_text(item.drawn) for item in given]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return TextLogprobs(
        tokens,
        [finite(item.drawn.logprob) for item in given],
        [{piece_text(t): finite(t.logprob) for t in item.top} for item in given],
        offsets,
    )


def text_of(events: Iterable[Event]) -> str:
    """Return the joined text of events."""
    return "".join(event.text for event in events if isinstance(event, TokenEvent | FinishEvent))
