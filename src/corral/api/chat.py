"""POST /v1/chat/completions: a chat in, a message or a stream of its pieces out."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from corral.api import translate
from corral.api.bodies import read
from corral.api.exchange import Exchange
from corral.api.model import Model
from corral.api.replies import (
    FINGERPRINT,
    ChatLogprobs,
    Tally,
    TimingsReply,
    UsageReply,
    chat_logprobs,
    finish_reason,
    timings,
)
from corral.api.requests import new_id, number_of_choices, requests_for
from corral.api.routing import ApiRoute, json_reply, post
from corral.api.schema import ChatBody
from corral.api.serving import serving_of
from corral.api.sse import DONE, AnswerStream, encode
from corral.contract.events import (
    ContentDelta,
    Delta,
    Event,
    FinishEvent,
    ReasoningDelta,
    TokenEvent,
    TokenLogprobs,
    ToolCallDelta,
)


class FunctionReply(msgspec.Struct, omit_defaults=True):
    """The function of a call, or a piece of it."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class CallReply(msgspec.Struct, kw_only=True):
    """A call, or a piece of it; only streams have an index."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionReply


class MessageReply(msgspec.Struct, kw_only=True):
    """The answer, or what a chunk adds to it."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[CallReply] | UnsetType = UNSET


class Choice(msgspec.Struct, kw_only=True):
    """One answer of a reply."""

    index: int
    message: MessageReply
    logprobs: ChatLogprobs | None = None
    finish_reason: str


class ChunkChoice(msgspec.Struct, kw_only=True):
    """One answer's part of a chunk."""

    index: int
    delta: MessageReply
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class Reply(msgspec.Struct, kw_only=True):
    """A whole reply."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    system_fingerprint: str = FINGERPRINT
    choices: list[Choice]
    usage: UsageReply
    timings: TimingsReply | UnsetType = UNSET


class Chunk(msgspec.Struct, kw_only=True):
    """A piece of a streamed reply."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str = FINGERPRINT
    choices: list[ChunkChoice]
    usage: UsageReply | UnsetType | None = UNSET
    timings: TimingsReply | UnsetType = UNSET


def routes() -> list[ApiRoute]:
    """Return the routes of this file."""
    return [post("/v1/chat/completions", chat, ChatBody), post("/chat/completions", chat, ChatBody)]


async def chat(request: Request) -> Response:
    """Answer a chat."""
    serving = serving_of(request)
    serving.require_open()
    body = await read(request, ChatBody, serving.settings.limits)
    model = serving.find(body.model)
    choices = number_of_choices(body.n, 1, serving.settings.limits)
    is_logged = bool(body.logprobs) or body.top_logprobs is not None
    if body.top_logprobs is not None and body.logprobs is False:
        translate.wrong("top_logprobs", "needs logprobs")
    given = await requests_for(
        request,
        body,
        model,
        prompts=[translate.chat_prompt(body)],
        choices=choices,
        max_tokens=translate.max_tokens(body.max_completion_tokens, body.max_tokens),
        logprobs=(body.top_logprobs or 0) if is_logged else None,
        tool_choice=translate.tool_choice(body),
        is_parsed=True,
    )
    exchange = await Exchange.open(serving, model, given, request.receive)
    if body.stream:
        stream = ChatChunks(exchange, body, model)
        return await AnswerStream(exchange, stream, model.pace(serving.settings)).begin()
    try:
        events = await exchange.rest([])
    finally:
        exchange.close()
    return json_reply(_whole(events, exchange, choices, model.name))


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    arguments: list[str]


class _Answer:
    """Joins what one answer consists of."""

    def __init__(self) -> None:
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, _Call] = {}
        self.logprobs: list[TokenLogprobs] = []
        self.finish: FinishEvent | None = None

    def add(self, event: TokenEvent | FinishEvent) -> None:
        """Add one event."""
        for delta in deltas_of(event):
            match delta:
                case ContentDelta():
                    self.content.append(delta.text)
                case ReasoningDelta():
                    self.reasoning.append(delta.text)
                case ToolCallDelta():
                    call = self.calls.setdefault(delta.index, _Call("", "", []))
                    call.id, call.name = call.id or delta.id, call.name or delta.name
                    call.arguments.append(delta.arguments)
        if isinstance(event, FinishEvent):
            self.finish = event
        elif event.logprobs is not None:
            self.logprobs.append(event.logprobs)

    def message(self) -> MessageReply:
        """Return the message."""
        content = "".join(self.content)
        reply = MessageReply(
            role="assistant", content=content if content or not self.calls else None
        )
        if self.reasoning:
            reply.reasoning_content = "".join(self.reasoning)
        if self.calls:
            reply.tool_calls = [
                CallReply(
                    id=call.id,
                    type="function",
                    function=FunctionReply(call.name, "".join(call.arguments)),
                )
                for _, call in sorted(self.calls.items())
            ]
        return reply


def deltas_of(event: TokenEvent | FinishEvent) -> Iterator[Delta]:
    """Yield what an event adds; text that nobody parsed is content."""
    if event.deltas:
        yield from event.deltas
    elif event.text:
        yield ContentDelta(event.text)


def _whole(events: Sequence[Event], exchange: Exchange, choices: int, model: str) -> Reply:
    answers = [_Answer() for _ in exchange.requests]
    tally = Tally(choices)
    for event in events:
        if isinstance(event, TokenEvent | FinishEvent):
            answers[exchange.place(event)].add(event)
            if isinstance(event, FinishEvent):
                tally.add(exchange.place(event), event)
    reply = Reply(
        id=new_id("chatcmpl-"),
        created=int(time.time()),
        model=model,
        choices=[_choice(index, answer) for index, answer in enumerate(answers)],
        usage=tally.reply(),
    )
    if len(answers) == 1 and answers[0].finish is not None:
        reply.timings = timings(answers[0].finish)
    return reply


def _choice(index: int, answer: _Answer) -> Choice:
    assert answer.finish is not None, "an exchange is complete with every finish"
    return Choice(
        index=index,
        message=answer.message(),
        logprobs=chat_logprobs(answer.logprobs) if answer.logprobs else None,
        finish_reason=finish_reason(answer.finish),
    )


class ChatChunks:
    """Makes chunks of an exchange's events."""

    def __init__(self, exchange: Exchange, body: ChatBody, model: Model) -> None:
        """Answer a body; every choice begins with its role."""
        self._exchange = exchange
        self._wants_usage = bool(body.stream_options and body.stream_options.include_usage)
        self._has_logprobs = bool(body.logprobs) or body.top_logprobs is not None
        self._tally = Tally(len(exchange.requests))
        self._begun: set[int] = set()
        self._head = {
            "id": new_id("chatcmpl-"),
            "created": int(time.time()),
            "model": model.name,
        }

    def of(self, events: Sequence[Event]) -> bytes:
        """Return the chunks of events."""
        return b"".join(
            encode(chunk)
            for event in events
            if isinstance(event, TokenEvent | FinishEvent)
            for chunk in self._chunks(event)
        )

    def end(self) -> bytes:
        """Return the usage, if it is wanted, and the mark of the end."""
        if not self._wants_usage:
            return DONE
        usage = self._tally.reply()
        return encode(Chunk(**self._head, choices=[], usage=usage)) + DONE  # type: ignore[arg-type]

    def _chunks(self, event: TokenEvent | FinishEvent) -> Iterator[Chunk]:
        place = self._exchange.place(event)
        if place not in self._begun:
            self._begun.add(place)
            yield self._chunk(place, MessageReply(role="assistant", content=None))
        logged = (isinstance(event, TokenEvent) and event.logprobs) or None
        replies = [_delta(delta) for delta in deltas_of(event)]
        if logged is not None and not replies:
            replies = [MessageReply(content="")]
        for number, reply in enumerate(replies):
            chunk = self._chunk(place, reply)
            if logged is not None and number == 0:
                chunk.choices[0].logprobs = chat_logprobs([logged])
            yield chunk
        if isinstance(event, FinishEvent):
            self._tally.add(place, event)
            last = self._chunk(place, MessageReply())
            last.choices[0].finish_reason = finish_reason(event)
            last.timings = timings(event)
            yield last

    def _chunk(self, place: int, delta: MessageReply) -> Chunk:
        choice = ChunkChoice(index=place, delta=delta)
        usage = None if self._wants_usage else UNSET
        return Chunk(**self._head, choices=[choice], usage=usage)  # type: ignore[arg-type]


def _delta(delta: Delta) -> MessageReply:
    match delta:
        case ContentDelta():
            return MessageReply(content=delta.text)
        case ReasoningDelta():
            return MessageReply(reasoning_content=delta.text)
    function = FunctionReply(arguments=delta.arguments)
    call = CallReply(index=delta.index, function=function)
    if delta.id or delta.name:
        call.id, call.type, function.name = delta.id, "function", delta.name
    return MessageReply(tool_calls=[call])
