"""Replies through the service: parsed, constrained, with tools; errors end one request only."""

import json
import queue

import pytest

import tiny
from corral.contract.events import (
    ContentDelta,
    ErrorEvent,
    FinishEvent,
    FinishReason,
    ReasoningDelta,
    TokenEvent,
    ToolCallDelta,
)
from corral.contract.messages import (
    ChatPrompt,
    Constraint,
    ConstraintKind,
    GenerationRequest,
    Message,
    TextPrompt,
    Tool,
    ToolCall,
    ToolChoice,
)
from corral.contract.questions import RenderQuestion
from corral.contract.sampling import SamplingParams
from corral.engine.opened import Sizes, open_by_name
from corral.engine.serving import EngineService
from corral.engine.targets import Targets
from smollm2 import demo_path, needs_demo

LIMIT_S = 60.0
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "job": {"enum": ["cook", "pilot", "nurse"]},
    },
    "required": ["name", "age", "job"],
    "additionalProperties": False,
}
TOOLS = (
    Tool(
        "set_level",
        "Sets a level.",
        json.dumps(
            {
                "type": "object",
                "properties": {"level": {"enum": ["low", "high"]}},
                "required": ["level"],
                "additionalProperties": False,
            }
        ),
    ),
    Tool("stop", "Stops.", '{"type": "object", "additionalProperties": false}'),
)
USER = (Message("user", "Tell me about a person."),)


def request(prompt, name="a", *, max_tokens=400, temperature=1.0, seed=1, **options):
    return GenerationRequest(
        request_id=name,
        prompt=prompt,
        sampling=SamplingParams(seed=seed, temperature=temperature),
        max_tokens=max_tokens,
        **options,
    )


def answers(service, *requests):
    """Submit requests together and return the events of each."""
    taken = {one.request_id: [] for one in requests}
    coming = queue.SimpleQueue()
    for one in requests:
        service.submit(one, coming.put)
    while not all(events and isinstance(events[-1], FinishEvent) for events in taken.values()):
        event = coming.get(timeout=LIMIT_S)
        taken[event.request_id].append(event)
    return [taken[one.request_id] for one in requests]


def deltas(events):
    return [d for event in events if not isinstance(event, ErrorEvent) for d in event.deltas]


def content(events):
    return "".join(d.text for d in deltas(events) if isinstance(d, ContentDelta))


def calls(events):
    """Return (id, name, arguments) of each call."""
    found = []
    for delta in deltas(events):
        if isinstance(delta, ToolCallDelta):
            if delta.name:
                assert delta.index == len(found)
                found.append([delta.id, delta.name, ""])
            found[delta.index][2] += delta.arguments
    return [tuple(call) for call in found]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """Serve a tiny model, whose weights are random, with a chat template that thinks."""
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    tiny.write(path, context_length=1536)
    sizes = Sizes(context=1536, parallel=3)
    opened = open_by_name(path, Targets.of("reference"), sizes, isolates_template=True)
    with EngineService(opened) as serving:
        yield serving


def test_random_weights_keep_to_a_schema(service):
    """Whatever the model likes to say, a finished answer fits, and neighbours are not touched."""
    constraint = Constraint(
        ConstraintKind.SCHEMA,
        json.dumps({"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 3}),
    )
    chat = ChatPrompt(USER)
    found = answers(
        service,
        request(chat, "a", constraint=constraint, is_parsed=True),
        request(TextPrompt("Hello"), "b", max_tokens=20),
        request(TextPrompt("Hello"), "c", constraint=constraint, temperature=0.0),
    )
    for events in (found[0], found[2]):
        assert events[-1].reason is FinishReason.STOP
        text = content(events) + "".join(e.text for e in events)
        value = json.loads(text)
        assert 2 <= len(value) <= 3
        assert set(value) <= {"a", "b"}
    alone = answers(service, request(TextPrompt("Hello"), "b", max_tokens=20))[0]
    assert [e.token for e in found[1][:-1]] == [e.token for e in alone[:-1]]


@pytest.mark.parametrize("choice", [ToolChoice("required"), ToolChoice("required", "set_level")])
def test_forced_calls_arrive_as_calls(service, choice):
    """The deltas of a call name it first and then give its arguments piece by piece."""
    chat = ChatPrompt(USER, TOOLS)
    choice = ToolChoice(choice.mode, choice.name, is_parallel=False)
    events = answers(service, request(chat, tool_choice=choice, is_parsed=True))[0]
    assert events[-1].reason is FinishReason.STOP
    assert events[-1].has_tool_calls
    ((call_id, name, arguments),) = calls(events)
    assert len(call_id) == 9
    assert name in {choice.name} if choice.name else {"set_level", "stop"}
    if name == "set_level":
        assert json.loads(arguments)["level"] in ("low", "high")
    assert content(events) == ""
    pieces = [d for d in deltas(events) if isinstance(d, ToolCallDelta) and d.arguments]
    assert len(pieces) > 3
    assert not any(e.text for e in events)


def test_what_cannot_be_kept_is_an_error_of_its_request(service):
    """Bad grammars and contradictions end one request with a code; the service lives on."""
    cases = {
        "schema": (Constraint(ConstraintKind.SCHEMA, '{"type": "thing"}'), "constraint"),
        "chain": (Constraint(ConstraintKind.LARK, "start: " + "(" * 9999), "constraint"),
        "dead": (Constraint(ConstraintKind.SCHEMA, '{"$ref": "#"}'), "constraint"),
    }
    for constraint, code in cases.values():
        events = answers(service, request(TextPrompt("a"), constraint=constraint))[0]
        assert [e.code for e in events if isinstance(e, ErrorEvent)] == [code]
        assert events[-1].reason is FinishReason.ERROR
    chat = ChatPrompt(USER)
    events = answers(service, request(chat, tool_choice=ToolChoice("required")))[0]
    assert events[0].code == "invalid_argument"
    assert answers(service, request(TextPrompt("a"), max_tokens=2))[0][-1].reason.value == "length"


def test_calls_and_results_come_back_in_the_prompt(service):
    """The next turn shows the model what it called, whose result it reads."""
    chat = ChatPrompt(
        (
            *USER,
            Message("assistant", "", reasoning="hm", tool_calls=(ToolCall("1", "stop", "{}"),)),
            Message("tool", "stopped", tool_call_id="1", name="stop"),
        ),
        TOOLS,
    )
    text = service.ask(RenderQuestion(chat), timeout_s=LIMIT_S).text
    assert '{"name": "stop", "arguments": {}}' in text
    assert "stopped" in text
    assert "set_level" in text
    events = answers(service, request(ChatPrompt(USER), "b", max_tokens=3, is_parsed=True))[0]
    assert events[-1].reason is FinishReason.LENGTH


def test_stop_texts_count_in_parsed_replies(service):
    """A stop text ends a parsed reply too, and is no part of it."""
    plain = answers(service, request(ChatPrompt(USER), max_tokens=30))[0]
    text = "".join(e.text for e in plain)
    stop = text[5:8]
    events = answers(
        service, request(ChatPrompt(USER), max_tokens=30, stop=(stop,), is_parsed=True)
    )[0]
    assert events[-1].stop == stop
    assert content(events) == text[: text.index(stop)]


@needs_demo
def test_the_demo_model_answers_as_asked():
    """A real model: a person that fits the schema, a call that streams, and no thoughts."""
    chat = ChatPrompt(USER, TOOLS)
    schema = Constraint(ConstraintKind.SCHEMA, json.dumps(PERSON))
    opened = open_by_name(demo_path(), Targets.of("cpu"), Sizes(context=512, parallel=2))
    with EngineService(opened) as service:
        person, call = answers(
            service,
            request(ChatPrompt(USER), "a", constraint=schema, is_parsed=True, temperature=0.0),
            request(chat, "b", tool_choice=ToolChoice("required"), is_parsed=True, temperature=0.0),
        )
    value = json.loads(content(person))
    assert person[-1].reason is FinishReason.STOP
    assert value.keys() == PERSON["properties"].keys()
    assert value["job"] in PERSON["properties"]["job"]["enum"]
    assert calls(call)
    assert all(name in ("set_level", "stop") for _, name, _ in calls(call))
    assert not any(isinstance(d, ReasoningDelta) for d in deltas(person))
    tokens = [e for e in call if isinstance(e, TokenEvent)]
    assert sum(bool(e.deltas) for e in tokens) > 5
