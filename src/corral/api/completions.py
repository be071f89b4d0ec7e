"""POST /v1/completions: prompts in, their continuations or a stream of pieces out."""

import time
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
from corral.api.replies import (
    FINGERPRINT,
    Tally,
    TextLogprobs,
    TimingsReply,
    UsageReply,
    finish_reason,
    text_logprobs,
    timings,
)
from corral.api.requests import new_id, number_of_choices, requests_for
from corral.api.routing import ApiRoute, json_reply, post
from corral.api.schema import CompletionBody
from corral.api.serving import serving_of
from corral.api.sse import DONE, AnswerStream, encode
from corral.contract.events import Event, FinishEvent, TokenEvent, TokenLogprobs
from corral.contract.messages import TextPrompt, TokenPrompt
from corral.contract.questions import DetokenizeQuestion, TextAnswer


class Choice(msgspec.Struct, kw_only=True):
    """One continuation, or a piece of it."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None


class Reply(msgspec.Struct, kw_only=True):
    """A whole reply, or a chunk of one."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    system_fingerprint: str = FINGERPRINT
    choices: list[Choice]
    usage: UsageReply | UnsetType | None = UNSET
    timings: TimingsReply | UnsetType = UNSET


def routes() -> list[ApiRoute]:
    """Return the routes of this file."""
    return [post("/v1/completions", completions, CompletionBody)]


async def completions(request: Request) -> Response:
    """Continue prompts."""
    serving = serving_of(request)
    serving.require_open()
    body = await read(request, CompletionBody, serving.settings.limits)
    model = serving.find(body.model)
    _refuse_what_is_missing(body)
    prompts = translate.prompts("prompt", body.prompt, serving.settings.limits.prompts)
    choices = number_of_choices(body.n, len(prompts), serving.settings.limits)
    given = await requests_for(
        request,
        body,
        model,
        prompts=prompts,
        choices=choices,
        max_tokens=translate.max_tokens(body.max_tokens),
        logprobs=body.logprobs,
    )
    echoes = [""] * len(prompts)
    if body.echo:
        echoes = await while_there(request.receive, _echoes(model, prompts))
    exchange = await Exchange.open(serving, model, given, request.receive)
    texts = [text for text in echoes for _ in range(choices)]
    chunks = TextChunks(exchange, body, model, choices, texts)
    if body.stream:
        return await AnswerStream(exchange, chunks, model.pace(serving.settings)).begin()
    try:
        events = await exchange.rest([])
    finally:
        exchange.close()
    return json_reply(chunks.whole(events))


def _refuse_what_is_missing(body: CompletionBody) -> None:
    if body.suffix:
        translate.wrong("suffix", "text before a suffix cannot be written")
    if body.best_of not in (None, 1, body.n):
        translate.wrong("best_of", "only as many answers are generated as are wanted")
    if body.echo and body.logprobs is not None:
        translate.wrong("echo", "logprobs of the prompt are not known")


async def _echoes(model: Model, prompts: Sequence[TextPrompt | TokenPrompt]) -> list[str]:
    return [await _echo(model, prompt) for prompt in prompts]


async def _echo(model: Model, prompt: TextPrompt | TokenPrompt) -> str:
    if isinstance(prompt, TextPrompt):
        return prompt.text
    return (await model.ask(DetokenizeQuestion(prompt.tokens), TextAnswer)).text


class TextChunks:
    """Makes chunks, or one reply, of an exchange's events."""

    def __init__(
        self,
        exchange: Exchange,
        body: CompletionBody,
        model: Model,
        choices: int,
        echoes: Sequence[str],
    ) -> None:
        """Answer a body; each answer begins with its echo."""
        self._exchange = exchange
        options = body.stream_options
        self._wants_usage = bool(options and options.include_usage)
        self._tally = Tally(choices)
        self._echoes = dict(enumerate(echoes))
        self._offsets = [0] * len(echoes)
        self._head = {
            "id": new_id("cmpl-"),
            "created": int(time.time()),
            "model": model.name,
        }

    def of(self, events: Sequence[Event]) -> bytes:
        """Return the chunks of events."""
        return b"".join(encode(chunk) for chunk in self._chunks(events))

    def end(self) -> bytes:
        """Return the usage, if it is wanted, and the mark of the end."""
        if not self._wants_usage:
            return DONE
        return encode(self._reply([], usage=self._tally.reply())) + DONE

    def whole(self, events: Sequence[Event]) -> Reply:
        """Return all events of an exchange as one reply."""
        pieces: dict[int, list[str]] = {n: [text] for n, text in self._echoes.items()}
        logged: dict[int, list[TokenLogprobs]] = {}
        finishes: dict[int, FinishEvent] = {}
        for event in events:
            if not isinstance(event, TokenEvent | FinishEvent):
                continue
            place = self._exchange.place(event)
            pieces[place].append(event.text)
            if isinstance(event, FinishEvent):
                finishes[place] = event
                self._tally.add(place, event)
            elif event.logprobs is not None:
                logged.setdefault(place, []).append(event.logprobs)
        choices = [
            Choice(
                index=place,
                text="".join(pieces[place]),
                logprobs=text_logprobs(logged[place], 0) if place in logged else None,
                finish_reason=finish_reason(finish),
            )
            for place, finish in sorted(finishes.items())
        ]
        reply = self._reply(choices, usage=self._tally.reply())
        if len(choices) == 1:
            reply.timings = timings(finishes[0])
        return reply

    def _chunks(self, events: Sequence[Event]) -> Iterator[Reply]:
        for event in events:
            if not isinstance(event, TokenEvent | FinishEvent):
                continue
            place = self._exchange.place(event)
            choice = Choice(index=place, text=self._echoes.pop(place, "") + event.text)
            usage = None if self._wants_usage else UNSET
            reply = self._reply([choice], usage=usage)
            if isinstance(event, FinishEvent):
                self._tally.add(place, event)
                choice.finish_reason = finish_reason(event)
                reply.timings = timings(event)
            elif event.logprobs is not None:
                choice.logprobs = text_logprobs([event.logprobs], self._offsets[place])
                self._offsets[place] += len(choice.logprobs.tokens[0])
            elif not choice.text:
                continue
            yield reply

    def _reply(self, choices: list[Choice], usage: UsageReply | UnsetType | None) -> Reply:
        return Reply(**self._head, choices=choices, usage=usage)  # type: ignore[arg-type]
