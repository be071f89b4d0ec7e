"""Tests of `corral.text.reply` and `corral.text.parsers`: what replies of each family mean."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.text.parsers.source import MAX_UNDECIDED
from corral.text.reply import (
    PLAIN,
    CallArguments,
    CallBegins,
    Content,
    Reasoning,
    ReplyParser,
    reply_format,
)

# What of each family's template tells its format.
TEMPLATES = {
    "plain": "{{ messages }}",
    "qwen3": "{{ '<think>' }}{{ '<tool_call>' }}",
    "hermes": "{{ '<tool_call>' }}",
    "qwen-coder": "{{ '<tool_call>\n<function=' ~ name ~ '<parameter=' }}",
    "functionary": "{{ '<function=' }}",
    "nemotron": "{{ '<TOOLCALL>' }}",
    "llama": "{{ '<|python_tag|>' }}",
    "mistral": "{{ '[TOOL_CALLS] [' }}",
    "mistral-named": "{{ '[TOOL_CALLS]' ~ name ~ '[ARGS]' }}",
    "granite": "{{ '<|tool_call|>' }}",
    "phi": "{{ '<|tool|>' }}",
    "deepseek": "{{ '<｜tool▁calls▁begin｜>```json' }}",
    "deepseek-plain": "{{ '<｜tool▁calls▁begin｜>' }}",
    "gemma": "{{ '<|tool_call>call:' }}{{ '<|channel>thought\\n<channel|>' }}",
    "function-gemma": "{{ '<start_function_call>' }}",
    "harmony": "{{ '<|channel|>analysis<|message|>' }}",
}
SCHEMAS = {"f": {"properties": {"x": {"type": "string"}, "n": {"type": "integer"}}}}

THINK = "<think>\nhm\n</think>\n\n"
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": "a"}}\n</tool_call>'
DEEP = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>"
DEEP_31 = '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜>'
XML = "<function=f>\n<parameter=x>\na\n\n</parameter>\n<parameter=n>\n1\n</parameter>\n</function>"

# family, reply, (what is content, what is reasoning, calls)
REPLIES = [
    ("plain", " <think>a</think>\n" + CALL + " ", (" <think>a</think>\n" + CALL + " ", "", [])),
    ("hermes", "", ("", "", [])),
    ("hermes", "  a <tool_cal", ("  a <tool_cal", "", [])),
    ("hermes", "a\n" + CALL + "\n" + CALL, ("a", "", [("f", '{"x": "a"}')] * 2)),
    ("hermes", CALL.replace('"a"', '"}</tool_call>\\"{"'), ("", "", [("f", None)])),
    ("hermes", '<tool_call>{"arguments": {}, "name": "f"}', ("", "", [("f", "{}")])),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>.', (".", "", [("f", "{}")])),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}', ("", "", [("f", "{}")])),
    ("hermes", '<tool_call>{"name":"f","arguments":"{\\"x\\":1}"}', ("", "", [("f", '{"x":1}')])),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"x": "a', ("", "", [("f", '{"x": "a')])),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"x": ]}}', ("", "", [("f", '{"x": ]')])),
    (
        "hermes",
        "<tool_call>no</tool_call>" + CALL,
        ("<tool_call>no</tool_call>", "", [("f", None)]),
    ),
    (
        "hermes",
        '<tool_call>{"name": 3}</tool_call>',
        ('<tool_call>{"name": 3}</tool_call>', "", []),
    ),
    ("hermes", '<tool_call>{"name": "f', ('<tool_call>{"name": "f', "", [])),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}}}</tool_call>', ("", "", [("f", "{}")])),
    ("qwen3", THINK + "b\n", ("b\n", "hm", [])),
    ("qwen3", THINK + CALL, ("", "hm", [("f", None)])),
    ("qwen3", "<think>\n\n</think>\n\nb", ("b", "", [])),
    ("qwen3", "<think>a <tool_call>", ("", "a <tool_call>", [])),
    ("qwen3", "a <think> b</think>c", ("a <think> b</think>c", "", [])),
    ("qwen3", f"{CALL}\n<think>b</think>c", ("c", "b", [("f", None)])),
    ("qwen-coder", f"<tool_call>\n{XML}\n</tool_call>", ("", "", [("f", '{"x": "a\\n", "n": 1}')])),
    ("qwen-coder", "b " + XML, ("b", "", [("f", '{"x": "a\\n", "n": 1}')])),
    (
        "qwen-coder",
        "<function=g>\n<parameter=y>\nTrue\n</parameter>\n</function>",
        ("", "", [("g", '{"y": true}')]),
    ),
    (
        "qwen-coder",
        "<function=g><parameter=y>a b</parameter></function>",
        ("", "", [("g", '{"y": "a b"}')]),
    ),
    ("qwen-coder", "<function=f><parameter=x>\na", ("", "", [("f", '{"x": "a')])),
    ("qwen-coder", CALL, ("", "", [("f", None)])),
    ("llama", '{"name": "f", "parameters": {"x": [1]}}', ("", "", [("f", '{"x": [1]}')])),
    (
        "llama",
        '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}',
        ("", "", [("f", "{}"), ("g", "{}")]),
    ),
    ("llama", '{"x": 1} is JSON', ('{"x": 1} is JSON', "", [])),
    ("llama", '<|python_tag|>{"name": "f", "parameters": {}}', ("", "", [("f", "{}")])),
    (
        "llama",
        '<|python_tag|>print("a")\n',
        ("", "", [("python", '{"code": "print(\\"a\\")\\n"}')]),
    ),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "1"}, {"name": "g"}]',
        ("", "", [("f", "{}"), ("g", "{}")]),
    ),
    ("mistral", "a [TOOL_CALLS] [no]", ("a [TOOL_CALLS] [no]", "", [])),
    (
        "mistral-named",
        '[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[CALL_ID]12[ARGS]{}',
        ("", "", [("f", '{"x": 1}'), ("g", "{}")]),
    ),
    ("mistral-named", "[TOOL_CALLS]f{}", ("", "", [("f", "{}")])),
    ("granite", '<|tool_call|>[{"name": "f", "arguments": {}}]', ("", "", [("f", "{}")])),
    ("granite", CALL, ("", "", [("f", None)])),
    ("phi", '<|tool_call|>[{"name": "f", "arguments": {}}]<|/tool_call|>', ("", "", [("f", "{}")])),
    (
        "phi",
        'functools[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]',
        ("", "", [("f", "{}"), ("g", "{}")]),
    ),
    (
        "deepseek",
        f"a<｜tool▁calls▁begin｜>{DEEP}\n{DEEP}<｜tool▁calls▁end｜>",
        ("a", "", [("f", "{}")] * 2),
    ),
    (
        "deepseek-plain",
        f"<｜tool▁calls▁begin｜>{DEEP_31}<｜tool▁calls▁end｜>b",
        ("b", "", [("f", '{"x": 1}')]),
    ),
    (
        "harmony",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>a\n",
        ("a\n", "hm", []),
    ),
    (
        "harmony",
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}",
        ("", "", [("f", "{}")]),
    ),
    (
        "harmony",
        "<|start|>assistant to=functions.f<|channel|>commentary<|message|>{}<|call|>",
        ("", "", [("f", "{}")]),
    ),
]


REPLIES += [
    ("functionary", '<function=f>{"x": "</function>"}</function>', ("", "", [("f", None)])),
    ("nemotron", '<TOOLCALL>[{"name": "f", "arguments": {}}]</TOOLCALL>', ("", "", [("f", "{}")])),
    (
        "gemma",
        '<|channel>thought\nhm<channel|>a<|tool_call>call:f{x:<|"|>a"b<|"|>,n:[1,{k:true}]}<tool_call|>',
        ("a", "hm", [("f", '{"x": "a\\"b", "n": [1, {"k": true}]}')]),
    ),
    (
        "gemma",
        "<|tool_call>call:f{}<tool_call|><|tool_call>call:g{}",
        ("", "", [("f", "{}"), ("g", "{}")]),
    ),
    ("gemma", '<|tool_call>call:f{"x": "a:}", "n": 1}<tool_call|>', ("", "", [("f", None)])),
    ("gemma", '<|tool_call>call:f{x:<|"|>a', ("", "", [("f", '{"x": "a')])),
    ("gemma", "<|tool_call>no", ("<|tool_call>no", "", [])),
    (
        "function-gemma",
        "<start_function_call>call:f{x:<escape>a<escape>}<end_function_call>",
        ("", "", [("f", '{"x": "a"}')]),
    ),
]


def parse(family, pieces, *, tail="", has_tools=True, control=()):
    """Return all deltas of a reply given in pieces."""
    form = reply_format(TEMPLATES[family], tail, has_tools=has_tools and family != "plain")
    parser = ReplyParser(form, SCHEMAS)
    deltas = []
    for piece in pieces:
        deltas += parser.push(piece, is_control=piece in control)
    return [*deltas, *parser.finish()]


def joined(deltas):
    """Return content, reasoning and calls of deltas."""
    content = "".join(d.text for d in deltas if isinstance(d, Content))
    reasoning = "".join(d.text for d in deltas if isinstance(d, Reasoning))
    calls = []
    for delta in deltas:
        if isinstance(delta, CallBegins):
            assert delta.index == len(calls)
            calls.append([delta.name, ""])
        elif isinstance(delta, CallArguments):
            assert delta.index == len(calls) - 1
            calls[-1][1] += delta.text
    return content, reasoning, [tuple(call) for call in calls]


@pytest.mark.parametrize(("family", "reply", "expected"), REPLIES)
def test_replies_of_all_families(family, reply, expected):
    """Content, reasoning and calls are told apart; the arguments are those of the reply."""
    content, reasoning, calls = joined(parse(family, [reply]))
    assert (content, reasoning) == expected[:2]
    assert [name for name, _ in calls] == [name for name, _ in expected[2]]
    for (_, got), (_, wanted) in zip(calls, expected[2], strict=True):
        assert got == wanted if wanted is not None else json.loads(got)


@pytest.mark.parametrize(("family", "reply", "expected"), REPLIES)
def test_single_characters_mean_the_same(family, reply, expected):
    """Nothing depends on how the reply arrives."""
    assert joined(parse(family, reply)) == joined(parse(family, [reply]))


MARKS = [
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<function=f>", "</function>"),
    *("<parameter=x>", "</parameter>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<|tool_call|>"),
    *('{"name": "f"', ', "arguments": {', '"a}": "\\"', '"', "}", "[", "]", ",", ";", "\\", "\n"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    *(
        "<|channel|>",
        "<|message|>",
        "<|end|>",
        "final",
        "analysis",
        " to=functions.f",
        " ",
        "a",
        "<",
    ),
]


@given(
    st.sampled_from([family for family in TEMPLATES if family != "plain"]),
    st.one_of(
        st.lists(st.sampled_from(MARKS), max_size=14).map("".join),
        st.sampled_from([reply for _, reply, _ in REPLIES]),
    ),
    st.sampled_from(["", "<think>\n"]),
    st.data(),
)
@settings(deadline=None, max_examples=300)
def test_cuts_change_nothing(family, reply, tail, data):
    """Any text, however broken, means the same however it is cut into pieces."""
    places = data.draw(st.sets(st.integers(0, len(reply))))
    cuts = [0, *sorted(places), len(reply)]
    pieces = [reply[a:b] for a, b in pairwise(cuts)]
    assert joined(parse(family, pieces, tail=tail)) == joined(parse(family, [reply], tail=tail))


@given(st.lists(st.sampled_from(MARKS), max_size=14))
def test_plain_replies_lose_nothing(pieces):
    """Without a format all of the text is content, at once."""
    parser = ReplyParser(PLAIN)
    for piece in pieces:
        assert parser.push(piece) == [Content(piece)]
    assert parser.finish() == []


def test_prompts_may_open_the_reasoning():
    """A reply to a prompt that ends with the tag begins with thoughts, the tag written or not."""
    for reply in ("hm</think>a", "<think>hm</think>a", "\n<think>\nhm</think>\na"):
        assert joined(parse("qwen3", [reply], tail="x<think>\n")) == ("a", "hm", [])
    closed = "<think>\n\n</think>\n\n"
    assert joined(parse("qwen3", ["hm</think>a"], tail=closed)) == ("hm</think>a", "", [])


def test_calls_are_read_only_where_tools_are():
    """Without tools a reply that looks like a call is content, and reasoning is still told."""
    text = '{"name": "f", "parameters": {}}'
    assert joined(parse("llama", [text], has_tools=False)) == (text, "", [])
    assert joined(parse("qwen3", [THINK + CALL], has_tools=False)) == (CALL, "hm", [])


def test_arguments_arrive_as_they_are_written():
    """Each piece of the arguments is given with the piece of the reply that brings it."""
    parser = ReplyParser(reply_format(TEMPLATES["hermes"], has_tools=True))
    assert parser.push('<tool_call>{"name": "f", "argu') == [CallBegins(0, "f")]
    assert parser.push('ments": {"a') == [CallArguments(0, '{"a')]
    assert parser.push('": 1') == [CallArguments(0, '": 1')]
    assert parser.push("}}</tool") == [CallArguments(0, "}")]
    assert parser.push("_call>\n") == []
    assert parser.finish() == []
    assert parser.num_calls == 1


def test_control_tokens_are_marks_or_nothing():
    """A control token counts where the format knows it, and is shown nowhere."""
    control = {"[TOOL_CALLS]", "<|x|>", "[ARGS]"}
    pieces = ["a", "<|x|>", "b", "[TOOL_CALLS]", "f", "[ARGS]", '{"x":', "<|x|>", "1}"]
    deltas = parse("mistral-named", pieces, control=control)
    assert joined(deltas) == ("ab", "", [("f", '{"x":1}')])
    assert joined(parse("plain", ["a", "<|x|>", "b"], control=control)) == ("ab", "", [])


def test_objects_that_are_no_calls_are_shown_as_they_come():
    """A JSON answer of a model that may call tools is content as soon as that is sure."""
    parser = ReplyParser(reply_format(TEMPLATES["llama"], has_tools=True))
    assert parser.push('{"id": 1, "answer": ') == [Content('{"id": 1, "answer":')]
    assert parser.push("[1") == [Content(" [1")]
    parser = ReplyParser(reply_format(TEMPLATES["llama"], has_tools=True))
    assert parser.push('{"type": "function", "function": "f", ') == [CallBegins(0, "f")]


def test_what_stays_undecided_for_long_is_content():
    """A call whose name does not come is not waited for without end."""
    text = '<tool_call>{"arguments": "' + "a" * (MAX_UNDECIDED + 10)
    pieces = [text[:50], text[50:-20], text[-20:]]
    assert joined(parse("hermes", pieces)) == (text, "", [])
    parser = ReplyParser(reply_format(TEMPLATES["hermes"], has_tools=True))
    assert len("".join(d.text for d in parser.push(text))) == len(text)


def test_templates_without_calls_are_told_to_write_hermes():
    """With tools, an unknown format is read in the form that the fallback describes."""
    assert reply_format("{{ x }}", has_tools=True).tools.name == "hermes"
    assert reply_format("{{ x }}").tools is None
