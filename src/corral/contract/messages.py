"""What crosses a process border between a client, the router and a worker: plain frozen data.

Knows no engine, no arrays and no bytes on a wire; `service.py` says who receives what. Limits of
every field are in the tables below and nowhere else; `validate()` enforces them. SamplingParams,
which people write themselves, are validated when they are made; nothing else is: whoever accepts
data from outside calls `validate()`.
"""

import enum
import math

import msgspec

from corral.contract.checks import (
    check_integer,
    check_number,
    check_text,
    check_tuple,
    refuse,
)
from corral.errors import CorralError, InternalError

MAX_SEED = 2**64 - 1
MAX_TOKEN = 2**31 - 1
MAX_LOGPROBS = 20
MAX_WINDOW = 65_536
MAX_LOGIT_BIASES = 4096
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_BREAKERS = 16
MAX_MESSAGES = 16_384
MAX_TEXT_CHARACTERS = 2**28
MAX_PROMPT_TOKENS = 2**24
ROLES = ("system", "developer", "user", "assistant", "tool")

# field: lowest, highest
_INTEGERS = {
    "top_k": (0, MAX_TOKEN),
    "repeat_last_n": (0, MAX_WINDOW),
    "dry_allowed_length": (1, MAX_WINDOW),
    "dry_last_n": (0, MAX_WINDOW),
}
# field: lowest, highest, whether the lowest itself is excluded
_NUMBERS = {
    "temperature": (0.0, 100.0, False),
    "top_p": (0.0, 1.0, True),
    "min_p": (0.0, 1.0, False),
    "typical_p": (0.0, 1.0, True),
    "xtc_probability": (0.0, 1.0, False),
    "xtc_threshold": (0.0, 1.0, True),
    "repeat_penalty": (0.0, 100.0, True),
    "frequency_penalty": (-100.0, 100.0, False),
    "presence_penalty": (-100.0, 100.0, False),
    "dry_multiplier": (0.0, 100.0, False),
    "dry_base": (1.0, 100.0, False),
}
_BIAS_LIMIT = 100.0
_SIGMA_LIMIT = 100.0


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the next token is chosen from the logits; the defaults are those of llama.cpp.

    A filter is off at the value that would keep everything: `top_k` 0, `top_p` 1, `min_p` 0,
    `typical_p` 1, `top_n_sigma` None, `xtc_probability` 0, `repeat_penalty` 1, `dry_multiplier` 0.

    A field of a wrong type or out of range raises InvalidArgument when the object is made.
    """

    temperature: float = 0.8
    """0 takes the likeliest token after bias and penalties; no other filter is then applied."""
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float | None = None
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens among the last `repeat_last_n`."""
    repeat_last_n: int = 64
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_last_n: int = 1024
    dry_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    """A token whose text holds one of these ends a repetition."""
    seed: int | None = None
    """The same seed and position give the same random number; None draws a fresh seed."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, what is added to its logit) pairs; minus infinity bans the token."""
    logprobs: int | None = None
    """How many of the likeliest tokens are reported with each token; None reports nothing."""

    def __post_init__(self) -> None:
        self.validate()

    def validate(self, *, vocabulary_size: int | None = None) -> None:
        """Check every field, and token ids too where the vocabulary is known.

        Raises:
            InvalidArgument: naming the field, what it holds and what it may hold.
        """
        for field, (low, high) in _INTEGERS.items():
            check_integer(field, getattr(self, field), low=low, high=high)
        for field, (lowest, highest, is_excluded) in _NUMBERS.items():
            value = getattr(self, field)
            check_number(field, value, low=lowest, high=highest, is_low_excluded=is_excluded)
        self._validate_optional()
        _check_biases(self.logit_bias, vocabulary_size)

    def _validate_optional(self) -> None:
        if self.top_n_sigma is not None:
            check_number(
                "top_n_sigma", self.top_n_sigma, low=0.0, high=_SIGMA_LIMIT, is_low_excluded=True
            )
        if self.seed is not None:
            check_integer("seed", self.seed, low=0, high=MAX_SEED)
        if self.logprobs is not None:
            check_integer("logprobs", self.logprobs, low=0, high=MAX_LOGPROBS)
        breakers = check_tuple("dry_breakers", self.dry_breakers, longest=MAX_BREAKERS, of="texts")
        for index, breaker in enumerate(breakers):
            check_text(f"dry_breakers[{index}]", breaker, shortest=1, longest=MAX_STOP_CHARACTERS)


def _check_biases(biases: object, vocabulary_size: int | None) -> None:
    pairs = check_tuple("logit_bias", biases, longest=MAX_LOGIT_BIASES, of="pairs (token, bias)")
    highest = MAX_TOKEN if vocabulary_size is None else vocabulary_size - 1
    seen = set()
    for index, pair in enumerate(pairs):
        field = f"logit_bias[{index}]"
        token, bias = check_tuple(field, pair, shortest=2, longest=2, of="items: token, bias")
        check_integer(f"{field} token", token, low=0, high=highest)
        if bias != -math.inf:
            check_number(f"{field} bias", bias, low=-_BIAS_LIMIT, high=_BIAS_LIMIT)
        if token in seen:
            refuse(f"{field} token", token, "each token once")
        seen.add(token)


class Message(msgspec.Struct, frozen=True):
    """One turn of a chat."""

    role: str
    content: str


class TokenPrompt(msgspec.Struct, frozen=True, tag="tokens"):
    """A prompt that is tokens already; nothing is added to it."""

    tokens: tuple[int, ...]


class TextPrompt(msgspec.Struct, frozen=True, tag="text"):
    """A prompt in plain text, tokenized by the worker without any template."""

    text: str


class ChatPrompt(msgspec.Struct, frozen=True, tag="chat"):
    """A chat, rendered by the template of the model."""

    messages: tuple[Message, ...]


Prompt = TokenPrompt | TextPrompt | ChatPrompt


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One answer wanted from a model."""

    request_id: str
    prompt: Prompt
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    """None generates until the model stops or the context is full; 0 only reads the prompt."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer and are not part of it."""
    ignore_eos: bool = False
    """Never stop at an end token; it is then not drawn either."""

    def validate(self, *, vocabulary_size: int | None = None) -> None:
        """Check every field, and token ids too where the vocabulary is known.

        Raises:
            InvalidArgument: naming the field, what it holds and what it may hold.
        """
        check_text("request_id", self.request_id, shortest=1, longest=128)
        if self.max_tokens is not None:
            check_integer("max_tokens", self.max_tokens, low=0, high=MAX_TOKEN)
        for index, text in enumerate(
            check_tuple("stop", self.stop, longest=MAX_STOPS, of="texts"),
        ):
            check_text(f"stop[{index}]", text, shortest=1, longest=MAX_STOP_CHARACTERS)
        if not isinstance(self.ignore_eos, bool):
            refuse("ignore_eos", self.ignore_eos, "true or false")
        if not isinstance(self.sampling, SamplingParams):
            refuse("sampling", self.sampling, "sampling parameters")
        _check_prompt(self.prompt, vocabulary_size)
        self.sampling.validate(vocabulary_size=vocabulary_size)


def _check_prompt(prompt: object, vocabulary_size: int | None) -> None:
    match prompt:
        case TokenPrompt():
            _check_tokens(prompt.tokens, vocabulary_size)
        case TextPrompt():
            check_text("prompt", prompt.text, longest=MAX_TEXT_CHARACTERS)
        case ChatPrompt():
            _check_messages(prompt.messages)
        case _:
            refuse("prompt", prompt, "tokens, text or a chat")


def _check_tokens(tokens: object, vocabulary_size: int | None) -> None:
    given = check_tuple("prompt", tokens, shortest=1, longest=MAX_PROMPT_TOKENS, of="tokens")
    highest = MAX_TOKEN if vocabulary_size is None else vocabulary_size - 1
    for index, token in enumerate(given):
        if type(token) is not int or not 0 <= token <= highest:
            refuse(f"prompt token {index}", token, f"an integer from 0 to {highest}")


def _check_messages(messages: object) -> None:
    given = check_tuple("messages", messages, shortest=1, longest=MAX_MESSAGES, of="messages")
    for index, message in enumerate(given):
        field = f"messages[{index}]"
        if not isinstance(message, Message):
            refuse(field, message, "a message with role and content")
        if message.role not in ROLES:
            refuse(f"{field} role", message.role, f"one of {', '.join(ROLES)}")
        check_text(f"{field} content", message.content, longest=MAX_TEXT_CHARACTERS)


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


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of one request went."""

    queue_s: float = 0.0
    prompt_s: float = 0.0
    generation_s: float = 0.0


class TokenEvent(msgspec.Struct, frozen=True, kw_only=True, tag="token"):
    """One token was drawn."""

    request_id: str
    token: int
    text: str = ""
    """Text that became certain with this token; empty inside a character or a possible stop."""
    logprobs: TokenLogprobs | None = None


class FinishEvent(msgspec.Struct, frozen=True, kw_only=True, tag="finish"):
    """The answer is complete; the last event of its request."""

    request_id: str
    reason: FinishReason
    text: str = ""
    """Text still held back when the answer ended."""
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


Event = TokenEvent | FinishEvent | ErrorEvent


def error_event(request_id: str, error: BaseException) -> ErrorEvent:
    """Describe an error for the other side; a foreign one only by its kind, not by its text."""
    if isinstance(error, CorralError):
        return ErrorEvent(request_id=request_id, code=error.code, message=str(error))
    message = f"unexpected {type(error).__name__}; see the log of the worker"
    return ErrorEvent(request_id=request_id, code=InternalError.code, message=message)


def as_error(event: ErrorEvent) -> CorralError:
    """Return the error an event describes; one of unknown code is an InternalError."""
    pending: list[type[CorralError]] = [CorralError]
    while pending:
        kind = pending.pop()
        if kind.code == event.code:
            return kind(event.message)
        pending.extend(kind.__subclasses__())
    return InternalError(f"{event.code}: {event.message}")


class ServiceStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a service holds now and has done since it started."""

    waiting_requests: int = 0
    running_requests: int = 0
    finished_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
