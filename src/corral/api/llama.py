"""POST /completion as llama-server has it: its names of fields, its `timings`, its stream."""

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from corral.api import translate
from corral.api.bodies import read
from corral.api.exchange import Exchange
from corral.api.model import Model
from corral.api.presence import while_there
from corral.api.replies import TimingsReply, finite, piece_text, text_of, timings
from corral.api.requests import number_of_choices, requests_for
from corral.api.routing import ApiRoute, json_reply, post
from corral.api.schema import LlamaBody
from corral.api.serving import serving_of
from corral.api.settings import Limits
from corral.api.sse import AnswerStream, encode
from corral.contract.events import (
    Event,
    FinishEvent,
    FinishReason,
    TokenEvent,
    TokenLogprob,
    TokenLogprobs,
)
from corral.contract.messages import TextPrompt, TokenPrompt
from corral.contract.questions import TokenizeQuestion, TokensAnswer


class Probability(msgspec.Struct, omit_defaults=True):
    """A token and its logprob, with the likeliest in its place."""

    id: int
    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: "list[Probability] | UnsetType" = UNSET


class Reply(msgspec.Struct, kw_only=True):
    """An answer, or a piece of one."""

    index: int
    content: str
    tokens: list[int]
    id_slot: int = -1
    stop: bool
    tokens_predicted: int
    tokens_evaluated: int
    model: str | UnsetType = UNSET
    completion_probabilities: list[Probability] | UnsetType = UNSET
    stop_type: str | UnsetType = UNSET
    stopping_word: str | UnsetType = UNSET
    tokens_cached: int | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET
    has_new_line: bool | UnsetType = UNSET
    timings: TimingsReply | UnsetType = UNSET


def routes() -> list[ApiRoute]:
    """Return the routes of this file."""
    return [post(path, completion, LlamaBody) for path in ("/completion", "/completions")]


async def completion(request: Request) -> Response:
    """Continue a prompt, with llama-server's names."""
    serving = serving_of(request)
    serving.require_open()
    body = await read(request, LlamaBody, serving.settings.limits)
    model = serving.find(body.model)
    asked = _prompts(body, model, serving.settings.limits)
    prompts = await while_there(request.receive, asked)
    number_of_choices(1, len(prompts), serving.settings.limits)
    given = await requests_for(
        request,
        body,
        model,
        prompts=prompts,
        choices=1,
        max_tokens=translate.max_tokens(body.n_predict, body.max_tokens),
        logprobs=body.n_probs or None,
    )
    exchange = await Exchange.open(serving, model, given, request.receive)
    chunks = LlamaChunks(exchange, body, model)
    if body.stream:
        return await AnswerStream(exchange, chunks, model.pace(serving.settings)).begin()
    try:
        events = await exchange.rest([])
    finally:
        exchange.close()
    replies = chunks.whole(events)
    return json_reply(replies[0] if len(replies) == 1 else replies)


async def _prompts(body: LlamaBody, model: Model, limits: Limits) -> list[TextPrompt | TokenPrompt]:
    """Return the prompts; a list that mixes tokens and texts is one of them."""
    given = body.prompt
    if isinstance(given, str) or not any(isinstance(item, int) for item in given):
        return translate.prompts("prompt", given, limits.prompts)
    tokens: list[int] = []
    if sum(isinstance(item, str) for item in given) > limits.prompts:
        translate.wrong("prompt", f"expected at most {limits.prompts} texts")
    texts = "".join(item for item in given if isinstance(item, str))
    translate.tokenized_text("prompt", texts, limits.tokenized_characters)
    for item in given:
        if isinstance(item, int):
            tokens.append(item)
        elif isinstance(item, str):
            question = TokenizeQuestion(item, add_special=not tokens)
            tokens += (await model.ask(question, TokensAnswer)).tokens
        else:
            translate.wrong("prompt", "a prompt that holds tokens is not a list of prompts")
    return translate.prompts("prompt", [*tokens], limits.prompts)


class LlamaChunks:
    """Makes chunks, or whole replies, of an exchange's events."""

    def __init__(self, exchange: Exchange, body: LlamaBody, model: Model) -> None:
        """Answer a body."""
        self._exchange = exchange
        self._has_tokens = bool(body.return_tokens)
        self._model = model.name
        self._counts = [0] * len(exchange.requests)

    def of(self, events: Sequence[Event]) -> bytes:
        """Return the chunks of events."""
        return b"".join(encode(chunk) for chunk in self._chunks(events))

    def end(self) -> bytes:
        """Return nothing: the last chunk says that it is the last."""
        return b""

    def whole(self, events: Sequence[Event]) -> list[Reply]:
        """Return all events of an exchange, one reply a prompt."""
        parts: list[list[TokenEvent | FinishEvent]] = [[] for _ in self._counts]
        for event in events:
            if isinstance(event, TokenEvent | FinishEvent):
                parts[self._exchange.place(event)].append(event)
        return [self._joined(place, part) for place, part in enumerate(parts)]

    def _joined(self, place: int, part: Sequence[TokenEvent | FinishEvent]) -> Reply:
        finish = part[-1]
        assert isinstance(finish, FinishEvent), "an exchange is complete with every finish"
        drawn = [event for event in part if isinstance(event, TokenEvent)]
        reply = self._last(place, finish)
        reply.content = text_of(part)
        reply.has_new_line = "\n" in reply.content
        reply.tokens = [event.token for event in drawn] if self._has_tokens else []
        logged = [event.logprobs for event in drawn if event.logprobs is not None]
        if logged:
            reply.completion_probabilities = [_probability(item) for item in logged]
        return reply

    def _chunks(self, events: Sequence[Event]) -> Iterator[Reply]:
        for event in events:
            match event:
                case TokenEvent():
                    place = self._exchange.place(event)
                    self._counts[place] += 1
                    yield self._piece(place, event)
                case FinishEvent():
                    yield self._last(self._exchange.place(event), event)

    def _piece(self, place: int, event: TokenEvent) -> Reply:
        reply = Reply(
            index=place,
            content=event.text,
            tokens=[event.token],
            stop=False,
            tokens_predicted=self._counts[place],
            tokens_evaluated=0,
        )
        if event.logprobs is not None:
            reply.completion_probabilities = [_probability(event.logprobs)]
        return reply

    def _last(self, place: int, event: FinishEvent) -> Reply:
        usage = event.usage
        return Reply(
            index=place,
            content=event.text,
            tokens=[],
            stop=True,
            tokens_predicted=usage.generated_tokens,
            tokens_evaluated=usage.prompt_tokens,
            model=self._model,
            stop_type=_stop_type(event),
            stopping_word=event.stop or "",
            tokens_cached=usage.prompt_tokens + usage.generated_tokens - usage.dropped_tokens,
            truncated=event.reason is FinishReason.CONTEXT or usage.dropped_tokens > 0,
            timings=timings(event),
        )


def _stop_type(event: FinishEvent) -> str:
    if event.stop is not None:
        return "word"
    return "eos" if event.reason is FinishReason.STOP else "limit"


def _probability(item: TokenLogprobs) -> Probability:
    reply = _one(item.drawn)
    reply.top_logprobs = [_one(token) for token in item.top]
    return reply


def _one(token: TokenLogprob) -> Probability:
    return Probability(token.token, piece_text(token), [*token.piece], finite(token.logprob))
