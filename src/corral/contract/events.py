"""What comes back from a service while it answers: plain frozen data.

TokenEvent* ─▶ ErrorEvent? ─▶ FinishEvent
"""

import enum

import msgspec

from corral.errors import ContextExceeded, CorralError, InternalError, OutOfMemory


class TokenLogprob(msgspec.Struct, frozen=True):
    """A token and the logarithm of its probability before bias, penalties and filters."""

    token: int
    logprob: float
    piece: bytes = b""
    """The token's bytes; empty where only ids are known."""


class TokenLogprobs(msgspec.Struct, frozen=True):
    """The token drawn, and the likeliest tokens in its place."""

    drawn: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()


class FinishReason(enum.Enum):
    """Why an answer ended."""

    STOP = "stop"
    """An end token, or one of the stop texts."""
    LENGTH = "length"
    """`max_tokens` were generated."""
    CONTEXT = "context"
    """The context is full."""
    CANCELLED = "cancelled"
    ERROR = "error"
    """An ErrorEvent came just before."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """How many tokens one request took."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Part of `prompt_tokens` that was taken from the prefix cache, not computed."""
    generated_tokens: int = 0
    dropped_tokens: int = 0
    """Part of both that a full context was shifted by."""


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of one request went."""

    queue_s: float = 0.0
    prompt_s: float = 0.0
    generation_s: float = 0.0


class ContentDelta(msgspec.Struct, frozen=True, tag="content"):
    """Text of the answer itself."""

    text: str


class ReasoningDelta(msgspec.Struct, frozen=True, tag="reasoning"):
    """Text of what the model thinks before it answers."""

    text: str


class ToolCallDelta(msgspec.Struct, frozen=True, tag="tool_call"):
    """A tool call begins, or its arguments go on."""

    index: int
    """Which call of the answer, from 0."""
    id: str = ""
    """Given with the first delta of a call, as is `name`."""
    name: str = ""
    arguments: str = ""
    """The next piece of the arguments' JSON."""


Delta = ContentDelta | ReasoningDelta | ToolCallDelta


class TokenEvent(msgspec.Struct, frozen=True, kw_only=True, tag="token"):
    """One token was drawn."""

    request_id: str
    token: int
    text: str = ""
    """Text that became certain with this token; empty inside a character or a possible stop."""
    deltas: tuple[Delta, ...] = ()
    """What the text means, in place of `text`, where the request wants its reply parsed."""
    logprobs: TokenLogprobs | None = None


class FinishEvent(msgspec.Struct, frozen=True, kw_only=True, tag="finish"):
    """The answer is complete; the last event of its request."""

    request_id: str
    reason: FinishReason
    text: str = ""
    """Text still held back when the answer ended."""
    deltas: tuple[Delta, ...] = ()
    """The same, parsed, where the request wants that."""
    has_tool_calls: bool = False
    stop: str | None = None
    """The stop text that ended the answer, if one did."""
    usage: Usage = Usage()
    timings: Timings = Timings()


class ErrorEvent(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """The request failed; a FinishEvent with reason ERROR follows."""

    request_id: str
    code: str
    """The `code` of a class in `corral.errors`."""
    message: str
    prompt_tokens: int | None = None
    """With "context_exceeded": the tokens of the prompt, and those that the context holds."""
    context: int | None = None
    needed_bytes: int | None = None
    """Where memory lacks: the bytes that are needed and those there are, and who holds others."""
    available_bytes: int | None = None
    holders: tuple[str, ...] = ()


Event = TokenEvent | FinishEvent | ErrorEvent


def error_event(request_id: str, error: BaseException) -> ErrorEvent:
    """Describe an error for the other side; a foreign one only by its kind, not by its text."""
    code, message = described(error)
    if isinstance(error, ContextExceeded):
        return ErrorEvent(
            request_id=request_id,
            code=code,
            message=message,
            prompt_tokens=error.prompt_tokens,
            context=error.context,
        )
    if isinstance(error, OutOfMemory):
        return ErrorEvent(
            request_id=request_id,
            code=code,
            message=message,
            needed_bytes=error.needed_bytes,
            available_bytes=error.available_bytes,
            holders=error.holders,
        )
    return ErrorEvent(request_id=request_id, code=code, message=message)


def as_error(event: ErrorEvent) -> CorralError:
    """Return the error an event describes; one of unknown code is an InternalError."""
    if event.code == ContextExceeded.code:
        return ContextExceeded(
            event.message, prompt_tokens=event.prompt_tokens, context=event.context
        )
    error = error_of(event.code, event.message)
    if isinstance(error, OutOfMemory):
        error.needed_bytes, error.available_bytes = event.needed_bytes, event.available_bytes
        error.holders = event.holders
    return error


def described(error: BaseException) -> tuple[str, str]:
    """Return the code and the message that stand for an error on the other side."""
    if isinstance(error, CorralError):
        return error.code, str(error)
    return InternalError.code, f"unexpected {type(error).__name__}; see the log of the worker"


def error_of(code: str, message: str) -> CorralError:
    """Return the error of a code; one of unknown code is an InternalError."""
    pending: list[type[CorralError]] = [CorralError]
    while pending:
        kind = pending.pop()
        if kind.code == code:
            return kind(message)
        pending.extend(kind.__subclasses__())
    return InternalError(f"{code}: {message}")
