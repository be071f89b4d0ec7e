"""Arguments of the Python API: taken as meant, or refused by name while the model goes on."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny
from corral.contract.sampling import SamplingParams
from corral.engine import checks
from corral.engine.model import Model
from corral.errors import InvalidArgument

USER = {"role": "user", "content": "Hi"}
WRONG_TOKENS = (None, 5, "abc", b"abc", bytearray(b"a"), {1: 2}, 1.5, object(), np.array(3))
WRONG_ITEMS = (
    ["a"],
    [1.5],
    [None],
    [True],
    [[1]],
    [np.float32(1)],
    [-1],
    [tiny.VOCABULARY],
    [b"a"],
)
WRONG_MESSAGES = (
    *(
        None,
        [],
        "text",
        b"text",
        3,
        {"role": "user", "content": "Hi"},
        ["Hi"],
        [None],
        [3],
        [[USER]],
    ),
    *([{**USER, "role": role}] for role in (None, 3, "", b"user", ["user"])),
    *([{**USER, "content": content}] for content in (None, 3, b"Hi", {"text": "Hi"}, [3], [None])),
    *([{"role": "user"}], [{"content": "Hi"}], [{}], [USER, {"role": "assistant"}]),
)

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.sampled_from([object(), np.float64(1.5), np.int8(3), np.array([1, 2]), np.array("a")]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "text", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def model(paths):
    with Model.load(paths["llama"], device="reference", context=128) as loaded:
        yield loaded


def wrong_calls():
    """Yield (name of the method, its arguments, options, word of the message)."""
    for value in (*WRONG_TOKENS, *WRONG_ITEMS):
        if not isinstance(value, str):
            yield "generate", (value,), {}, "prompt"
        yield "detokenize", (value,), {}, "tokens"
        yield "logits", (value,), {}, "tokens"
    for value in (None, b"text", 3, ["text"]):
        yield "tokenize", (value,), {}, "text"
    for value in WRONG_MESSAGES:
        yield "chat", (value,), {}, "messages"
        yield "stream_chat", (value,), {}, "messages"
    options = {
        "max_tokens": ("3", 3.7, True, -1, math.nan, [3]),
        "stop": (None, 3, b"stop", "", [""], ["a", 3], [None], {"a": 1}),
        "ignore_eos": (None, 1, "no"),
        "sampling": ({}, {"temperature": 1}, 0, "greedy", SamplingParams),
    }
    for name, values in options.items():
        for value in values:
            yield "generate", ("Hi",), {name: value}, name
            yield "chat", ([USER],), {name: value}, name
    for name in ("add_special", "parse_special"):
        yield "tokenize", ("Hi",), {name: "no"}, name
    yield "generate", ("Hi",), {"parse_special": 1}, "parse_special"
    for counts in ((-1, 1), (1, -1), ("1", 1), (1, 1.5), (True, 1)):
        yield "benchmark", counts, {}, "_tokens"


@pytest.mark.parametrize(("method", "arguments", "options", "named"), list(wrong_calls()))
def test_a_wrong_argument_is_refused_by_name(model, method, arguments, options, named):
    """It says what, got and expected; nothing is left, and the model still answers."""
    before = model.statistics()
    with pytest.raises(InvalidArgument, match=f"{named}.*; expected ") as refusal:
        getattr(model, method)(*arguments, **options)
    assert len(str(refusal.value)) < 200
    assert model.statistics() == before
    assert len(model.tokenize("Hi")) == 2


def test_the_model_answers_after_all_that(model):
    """A call that was refused has taken nothing."""
    options = {"max_tokens": 5, "sampling": SamplingParams(seed=1), "ignore_eos": True}
    expected = list(model.generate("Hi", **options))
    for method, arguments, wrong, _ in wrong_calls():
        with pytest.raises(InvalidArgument):
            getattr(model, method)(*arguments, **wrong)
    assert list(model.generate("Hi", **options)) == expected
    assert model.chat([USER], max_tokens=2).statistics.prompt_tokens > 0


@pytest.mark.parametrize("value", ["hot", math.nan, None, True, [1]])
def test_sampling_parameters_are_checked_when_made(value):
    """The error comes where the mistake is, not where it is used."""
    with pytest.raises(
        InvalidArgument, match=r"temperature is .*; expected a number from 0 to 100"
    ):
        SamplingParams(temperature=value)


@given(anything)
def test_whatever_is_passed_is_taken_or_refused(value):
    """No value gets any other error out of a check than InvalidArgument."""
    attempts = (
        lambda: checks.integer("n", value, low=0, high=9),
        lambda: checks.integer_or_none("n", value, low=0),
        lambda: checks.flag("f", value),
        lambda: checks.text("t", value),
        lambda: checks.model_name(value),
        lambda: checks.progress(value),
        lambda: checks.tokens("tokens", value, vocabulary_size=4, shortest=1),
        lambda: checks.stop_strings(value),
        lambda: checks.sampling(value),
        lambda: checks.messages(value),
    )
    for attempt in attempts:
        try:
            attempt()
        except InvalidArgument as refusal:
            assert "expected" in str(refusal)


@given(st.integers(-3, 12), st.sampled_from([int, np.int8, np.int64, np.array]))
def test_integers_of_any_library(number, kind):
    """An integer is taken in its range, whoever made it, and comes out as Python's."""
    if 0 <= number <= 9:
        taken = checks.integer("n", kind(number), low=0, high=9)
        assert (type(taken), taken) == (int, number)
    else:
        with pytest.raises(
            InvalidArgument, match=f"n is {number}; expected an integer from 0 to 9"
        ):
            checks.integer("n", kind(number), low=0, high=9)


@given(st.lists(st.integers(0, 99), max_size=9))
def test_tokens_of_any_iterable(tokens):
    """A list, a tuple, an array or a generator of tokens is a list of ints, and a new one."""
    for made in (tokens, tuple(tokens), np.array(tokens, np.int32), iter(tokens)):
        taken = checks.tokens("tokens", made, vocabulary_size=100)
        assert taken == tokens
        assert taken is not tokens
        assert all(type(token) is int for token in taken)


@given(st.text(min_size=1))
def test_a_text_is_one_stop_string(stop):
    """Given alone or in a list, it is never taken apart."""
    assert checks.stop_strings(stop) == checks.stop_strings([stop]) == (stop,)
    assert checks.stop_strings(iter([stop, "b"])) == (stop, "b")


@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        (USER, {"role": "assistant", "content": ""}),
        iter([USER]),
        [{"role": "user", "content": [{"type": "text", "text": "Hi"}, "there"]}],
        [USER, {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}],
        [{**USER, "name": "Ann"}],
    ],
)
def test_messages_as_templates_know_them(messages):
    """Texts, parts, calls of tools and further keys pass."""
    assert checks.messages(messages)


@pytest.mark.parametrize("name", ["demo", "", Path("a.gguf")])
def test_names_pass_unchanged(name):
    """What a name means is not decided here."""
    assert checks.model_name(name) is name


def test_many_tokens_are_checked_quickly():
    """A long prompt is no reason to wait; its one wrong token is found."""
    with pytest.raises(InvalidArgument, match=r"tokens\[1000000\] is -1"):
        checks.tokens("tokens", [1] * 10**6 + [-1], vocabulary_size=2)
