"""Messages hold what they may hold, survive the wire format, and turn errors into events."""

import math
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral import errors
from corral.contract.events import (
    ErrorEvent,
    Event,
    FinishEvent,
    FinishReason,
    Timings,
    TokenEvent,
    TokenLogprob,
    TokenLogprobs,
    Usage,
    as_error,
    error_event,
)
from corral.contract.limits import MAX_LOGIT_BIASES, MAX_MESSAGES, MAX_SCHEMA_CHARACTERS, MAX_SEED
from corral.contract.messages import (
    ChatPrompt,
    Constraint,
    ConstraintKind,
    GenerationRequest,
    Message,
    TextPrompt,
    TokenPrompt,
    Tool,
    ToolCall,
    ToolChoice,
)
from corral.contract.sampling import SamplingParams
from corral.errors import ContextExceeded, InvalidArgument


def test_defaults_are_those_of_llama_cpp():
    """Whoever says nothing gets what llama.cpp would do."""
    params = SamplingParams()
    params.validate(vocabulary_size=1)
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.8, 40, 0.95, 0.05)
    assert (params.repeat_penalty, params.repeat_last_n, params.typical_p) == (1.0, 64, 1.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("temperature", v) for v in (-1, math.nan, math.inf, 1e308, 100.1, True, "1", None)),
        *(("top_k", v) for v in (-1, -2, 2**31, 40.0, True, None)),
        *(("top_p", v) for v in (0, -0.1, 1.01, 2, math.nan, False)),
        *(("min_p", v) for v in (-0.1, 1.01, math.nan)),
        *(("typical_p", v) for v in (0, 1.5, math.nan)),
        *(("top_n_sigma", v) for v in (-1, 0, math.inf, math.nan, True)),
        *(("xtc_probability", v) for v in (-0.1, 1.1, math.nan)),
        *(("xtc_threshold", v) for v in (0, 1.1, math.nan)),
        *(("repeat_penalty", v) for v in (0, -1, 1e38, math.nan)),
        *(("repeat_last_n", v) for v in (-1, 65_537, 2**31, 64.0, True)),
        *(("frequency_penalty", v) for v in (-101, 1e38, math.nan)),
        *(("presence_penalty", v) for v in (101, -1e38, math.inf)),
        *(("dry_multiplier", v) for v in (-1, 101, math.nan)),
        *(("dry_base", v) for v in (0.9, 101, math.nan)),
        *(("dry_allowed_length", v) for v in (0, -1, 2.0)),
        *(("dry_last_n", v) for v in (-1, 65_537)),
        *(("dry_breakers", v) for v in ("abc", None, ("",), (1,), ("x" * 2000,), ("x",) * 17)),
        *(("seed", v) for v in (-1, 2**64, 1.0, True, "1")),
        *(("logprobs", v) for v in (-1, 21, 10**6, 5.0, True)),
    ],
)
def test_sampling_fields_out_of_range(field, value):
    """Every field refuses what is out of its range, by name, when the object is made."""
    with pytest.raises(InvalidArgument, match=rf"^{field}.* is .*; expected"):
        SamplingParams(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0),
        ("temperature", 100),
        ("top_k", 0),
        ("top_k", 2**31 - 1),
        ("top_p", 1),
        ("min_p", 0),
        ("min_p", 1),
        ("top_n_sigma", None),
        ("repeat_last_n", 0),
        ("seed", 0),
        ("seed", MAX_SEED),
        ("logprobs", 0),
        ("logprobs", 20),
        ("dry_breakers", ()),
        ("logit_bias", ((0, -100), (1, 100.0), (2, -math.inf))),
    ],
)
def test_sampling_fields_at_the_border(field, value):
    """The ends of each range belong to it."""
    SamplingParams(**{field: value}).validate(vocabulary_size=3)


@pytest.mark.parametrize(
    "biases",
    [
        None,
        {1: 2.0},
        (1,),
        ((1,),),
        ((1, 2.0, 3),),
        ((-1, 0.0),),
        ((10, 0.0),),
        ((2**31, 0.0),),
        ((1.0, 0.0),),
        ((True, 0.0),),
        ((1, math.nan),),
        ((1, math.inf),),
        ((1, 101.0),),
        ((1, "1"),),
        ((1, None),),
        ((1, 1.0), (2, 1.0), (1, 2.0)),
        tuple((token, 0.0) for token in range(MAX_LOGIT_BIASES + 1)),
        ((1, 0.0),) * 10**6,
    ],
)
def test_biases_out_of_range(biases):
    """Biases name tokens of the vocabulary once each, and finite numbers or minus infinity."""
    with pytest.raises(InvalidArgument, match=r"^logit_bias"):
        SamplingParams(logit_bias=biases).validate(vocabulary_size=10)


def request(**fields):
    return GenerationRequest(**{"request_id": "a", "prompt": TextPrompt("Hi"), **fields})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("request_id", v) for v in ("", "x" * 129, None, 3)),
        *(("max_tokens", v) for v in (-1, -2, 2**31, 2**63, 1.5, True, "5")),
        *(("stop", v) for v in ("stop", None, ("",), ("a", ""), (1,), ("x" * 1025,), ("a",) * 17)),
        ("stop", ("a",) * 10**5),
        *(("ignore_eos", v) for v in (None, 1, "true")),
        *((field, 1) for field in ("is_parsed", "reuse", "namespace", "constraint", "tool_choice")),
        ("constraint", Constraint("json")),
        ("constraint", Constraint(ConstraintKind.SCHEMA, "")),
        ("constraint", Constraint(ConstraintKind.REGEX, "a" * (MAX_SCHEMA_CHARACTERS + 1))),
        ("tool_choice", ToolChoice("sometimes")),
        ("tool_choice", ToolChoice(name=1)),
        ("tool_choice", ToolChoice(is_parallel=1)),
        ("sampling", None),
        ("sampling", {"top_p": 2}),
    ],
)
def test_request_fields_out_of_range(field, value):
    """Every field refuses what is out of its range, by name."""
    with pytest.raises(InvalidArgument, match=rf"^{field}.* is .*; expected"):
        request(**{field: value}).validate()


def said(**fields):
    return ChatPrompt((Message("assistant", "", **fields),))


def with_tools(*tools):
    return ChatPrompt((Message("user", "a"),), tools=tools)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (None, "prompt is None"),
        ("text", "prompt is 'text'"),
        (TokenPrompt(()), "prompt is a tuple of 0"),
        (TokenPrompt("abc"), "prompt is 'abc'"),
        (TokenPrompt((1, -1)), "prompt token 1 is -1"),
        (TokenPrompt((1, 100)), "prompt token 1 is 100"),
        (TokenPrompt((1.0,)), "prompt token 0 is 1.0"),
        (TokenPrompt((True,)), "prompt token 0 is True"),
        (TokenPrompt(((1, 2),)), "prompt token 0 is a tuple of 2"),
        (TextPrompt(None), "prompt is None"),
        (ChatPrompt(()), "messages is a tuple of 0"),
        (ChatPrompt(None), "messages is None"),
        (ChatPrompt("hello"), "messages is 'hello'"),
        (ChatPrompt((123,)), r"messages\[0\] is 123"),
        (
            ChatPrompt((Message("user", "a"), Message("robot", "b"))),
            r"messages\[1\] role is 'robot'",
        ),
        (ChatPrompt((Message(123, "a"),)), r"messages\[0\] role is 123"),
        (ChatPrompt((Message(["user"], "a"),)), r"messages\[0\] role is a list of 1"),
        (ChatPrompt((Message("user", 123),)), r"messages\[0\] content is 123"),
        (ChatPrompt((Message("user", "a"),) * (MAX_MESSAGES + 1)), "messages is a tuple of 16385"),
        (said(tool_calls=(1,)), r"messages\[0\] tool_calls\[0\] is 1"),
        (said(tool_calls=(ToolCall("", "", "{}"),)), r"messages\[0\] tool_calls\[0\] name is ''"),
        (said(reasoning=None), r"messages\[0\] reasoning is None"),
        (with_tools(1), r"tools\[0\] is 1"),
        (with_tools(Tool("")), r"tools\[0\] name is ''"),
        (with_tools(Tool("a", parameters="")), r"tools\[0\] parameters is ''"),
        (with_tools(Tool("a"), Tool("a")), r"tools\[1\] name is 'a'"),
        (ChatPrompt((Message("user", "a"),), variables=None), "variables is None"),
    ],
)
def test_prompts_out_of_range(prompt, words):
    """A prompt that cannot be one is refused, and the message says where."""
    with pytest.raises(InvalidArgument, match=rf"^{words}.*; expected"):
        request(prompt=prompt).validate(vocabulary_size=100)


@pytest.mark.parametrize(
    "prompt",
    [
        TokenPrompt((0, 99)),
        TextPrompt(""),
        ChatPrompt((Message("developer", ""), Message("assistant", "a"), Message("assistant", ""))),
    ],
)
def test_valid_requests(prompt):
    """Any of the three kinds of prompt makes a request, also with the least of everything."""
    request(prompt=prompt, max_tokens=0, stop=("\n",)).validate(vocabulary_size=100)


def test_large_input_is_checked_quickly():
    """A million prompt tokens are checked within two seconds."""
    start = time.perf_counter()
    with pytest.raises(InvalidArgument, match="prompt token 1000000"):
        request(prompt=TokenPrompt((1,) * 10**6 + (-1,))).validate()
    assert time.perf_counter() - start < 2


events = st.one_of(
    st.builds(
        TokenEvent,
        request_id=st.text(),
        token=st.integers(0, 2**31 - 1),
        text=st.text(),
        logprobs=st.none()
        | st.builds(
            TokenLogprobs,
            st.builds(TokenLogprob, st.integers(0, 9), st.floats(-50, 0), st.binary()),
            st.tuples(st.builds(TokenLogprob, st.integers(0, 9), st.floats(-50, 0))),
        ),
    ),
    st.builds(
        FinishEvent,
        request_id=st.text(),
        reason=st.sampled_from(FinishReason),
        stop=st.none() | st.text(),
        usage=st.builds(Usage, prompt_tokens=st.integers(0, 9)),
        timings=st.builds(Timings, queue_s=st.floats(0, 9)),
    ),
    st.builds(ErrorEvent, request_id=st.text(), code=st.text(), message=st.text()),
)


@given(events)
def test_events_survive_the_wire(event):
    """An event read back from msgpack is the event that was sent."""
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=Event) == event


@given(
    st.builds(
        GenerationRequest,
        request_id=st.text(),
        prompt=st.one_of(
            st.builds(TokenPrompt, st.lists(st.integers(0, 9)).map(tuple)),
            st.builds(TextPrompt, st.text()),
            st.builds(ChatPrompt, st.tuples(st.builds(Message, st.text(), st.text()))),
        ),
        sampling=st.builds(
            SamplingParams,
            seed=st.none() | st.integers(0, MAX_SEED),
            logit_bias=st.tuples(st.tuples(st.integers(0, 9), st.just(-math.inf))),
        ),
        stop=st.tuples(st.text()),
    )
)
def test_requests_survive_the_wire(sent):
    """A request read back from msgpack is the request that was sent."""
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=GenerationRequest) == sent


def concrete_errors(kind=errors.CorralError):
    yield kind
    for child in kind.__subclasses__():
        yield from concrete_errors(child)


@pytest.mark.parametrize("kind", list(concrete_errors()))
def test_errors_survive_the_wire(kind):
    """An error of the tree comes out on the other side as the same class with the same words."""
    error = as_error(error_event("a", kind("what, got, expected")))
    assert type(error) is kind
    assert str(error) == "what, got, expected"


def test_foreign_errors_do_not_tell_secrets():
    """An error nobody foresaw crosses as an internal one, without its text."""
    event = error_event("a", OSError("/home/someone/secret"))
    assert event.code == "internal"
    assert "secret" not in event.message
    assert "OSError" in event.message


def test_unknown_codes_are_internal_errors():
    """A code of a newer peer becomes an internal error that still says everything."""
    error = as_error(ErrorEvent(request_id="a", code="newer", message="words"))
    assert type(error) is errors.InternalError
    assert str(error) == "newer: words"


def test_an_overfull_context_keeps_its_numbers():
    """How long the prompt is and what fits cross the border with the message."""
    event = error_event("a", ContextExceeded("too long", prompt_tokens=9, context=8))
    error = as_error(event)
    assert isinstance(error, ContextExceeded)
    assert (str(error), error.prompt_tokens, error.context) == ("too long", 9, 8)


def test_a_refusal_names_its_field():
    """Whoever answers a client can say which of its fields is wrong."""
    request = GenerationRequest(request_id="a", prompt=TextPrompt("Hi"), stop=("",))
    with pytest.raises(InvalidArgument) as caught:
        request.validate()
    assert caught.value.field == "stop[0]"
