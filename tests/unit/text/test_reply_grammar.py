"""Tests of `corral.text.reply_grammar`: what random logits write under it is what parsers read."""

import json

import numpy as np
import pytest

from corral.contract.messages import ConstraintKind
from corral.contract.sampling import SamplingParams
from corral.errors import ConstraintError
from corral.sampling.grammar import GrammarCompiler
from corral.sampling.grammar_text import GrammarPart, GrammarText
from corral.sampling.sampler import Sampler
from corral.text.reply import (
    CallArguments,
    CallBegins,
    Content,
    Reasoning,
    ReplyParser,
    reply_format,
)
from corral.text.reply_grammar import ToolSchema, answer_grammar, tool_grammar

MARKS = (
    *("[TOOL_CALLS]", "[ARGS]", "<|tool_call|>", "<|/tool_call|>", "</think>", "<|python_tag|>"),
    *("<|tool_call>", "<tool_call|>", '<|"|>'),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁sep｜>"),
    *("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
)
TOKENS = (*(bytes([byte]) for byte in range(256)), b"<end>", *(mark.encode() for mark in MARKS))
END, SIZE = 256, len(TOKENS)
CONTROL = {mark: END + 1 + number for number, mark in enumerate(MARKS)}
LEVEL = {"enum": ["low", "high"]}
TOOLS = (
    ToolSchema(
        "see",
        {
            "properties": {
                "n": {"type": "integer", "maximum": 99, "minimum": 0},
                "level": {"$ref": "#/$defs/level"},
            },
            "required": ["n"],
            "additionalProperties": False,
            "$defs": {"level": LEVEL},
        },
    ),
    ToolSchema(
        "say",
        {
            "type": "object",
            "properties": {"text": {"type": "string"}},
            "required": ["text"],
            "additionalProperties": False,
        },
    ),
)
SCHEMAS = {tool.name: tool.parameters for tool in TOOLS}
FORMS = {
    "hermes": "<tool_call>",
    "qwen-coder": "<tool_call><function=<parameter=",
    "functionary": "<function=",
    "nemotron": "<TOOLCALL>",
    "granite": "<|tool_call|>",
    "phi": "<|tool|>",
    "llama": "<|python_tag|>",
    "mistral": "[TOOL_CALLS][",
    "mistral-named": "[TOOL_CALLS][ARGS]",
    "deepseek": "<｜tool▁calls▁begin｜>```json",
    "deepseek-plain": "<｜tool▁calls▁begin｜>",
    "gemma": "<|tool_call>",
    "function-gemma": "<start_function_call>",
    "harmony": "<|channel|><|message|>",
}
ANSWER = GrammarPart("answer", ConstraintKind.REGEX, "[0-9]{3}")


@pytest.fixture(scope="module")
def compiler():
    return GrammarCompiler(TOKENS, special=CONTROL.values(), ends=(END,))


def compiled(compiler, grammar, *parts):
    schemas = (GrammarPart(name, ConstraintKind.SCHEMA, text) for name, text in grammar.schemas)
    return compiler.compile(GrammarText(grammar.top, (*schemas, *parts)))


def generate(state, seed, steps=600):
    """Return the tokens that random logits choose, which like to end texts and answers."""
    sampler = Sampler(SamplingParams(seed=seed, top_k=0), SIZE, grammar=state)
    random, tokens = np.random.default_rng(seed), []
    for position in range(steps):
        logits = random.standard_normal(SIZE).astype(np.float32)
        logits[[END, ord('"'), ord("<"), ord("/"), ord(">"), *CONTROL.values()]] += 3
        logits[ord("\n")] += 2
        token = sampler.sample(logits, position)
        sampler.accept(token)
        if token == END:
            return tokens
        tokens.append(token)
    return None


def parse(form, tokens):
    """Return content, reasoning and calls of tokens."""
    parser, deltas = ReplyParser(form, SCHEMAS), []
    for token in tokens:
        text = TOKENS[token].decode("latin-1")
        deltas += parser.push(
            text if token < END else MARKS[token - END - 1], is_control=token > END
        )
    deltas += parser.finish()
    content = "".join(d.text for d in deltas if isinstance(d, Content))
    reasoning = "".join(d.text for d in deltas if isinstance(d, Reasoning))
    names = [d.name for d in deltas if isinstance(d, CallBegins)]
    arguments = [
        "".join(d.text for d in deltas if isinstance(d, CallArguments) and d.index == n)
        for n in range(len(names))
    ]
    return content, reasoning, list(zip(names, arguments, strict=True))


def check(name, arguments):
    """Check that arguments fit the schema of their tool."""
    value = json.loads(arguments)
    if name == "see":
        assert 0 <= value.pop("n") <= 99
        assert value.pop("level", "low") in LEVEL["enum"]
    else:
        assert isinstance(value.pop("text"), str)
    assert not value


@pytest.mark.parametrize("name", FORMS)
def test_forced_calls_are_read_again(compiler, name):
    """Every form is written so that its own parser finds calls of the tools, and nothing else."""
    form = reply_format(FORMS[name], has_tools=True)
    state = compiled(compiler, tool_grammar(form, TOOLS, CONTROL.get))
    finished = 0
    for seed in range(12):
        tokens = generate(state.copy(), seed)
        if tokens is None:
            continue
        finished += 1
        content, _, calls = parse(form, tokens)
        assert not content
        assert calls
        for tool, arguments in calls:
            check(tool, arguments)
    assert finished


def test_one_call_where_only_one_may_be(compiler):
    """Without parallel calls the reply ends after the first one."""
    form = reply_format(FORMS["hermes"], has_tools=True)
    state = compiled(compiler, tool_grammar(form, TOOLS, CONTROL.get, is_parallel=False))
    replies = [generate(state.copy(), seed) for seed in range(8)]
    assert any(replies)
    assert all(len(parse(form, reply)[2]) == 1 for reply in replies if reply is not None)


@pytest.mark.parametrize(
    ("control_id", "prompt"),
    [
        (CONTROL.get, "<think>\n"),
        (lambda mark: None, "<think>\n"),
        (lambda mark: None, ""),
    ],
)
def test_thinking_models_think_first(compiler, control_id, prompt):
    """Thoughts are free; the answer behind them fits, whether the tag is a token or text."""
    form = reply_format("<think></think>", prompt)
    state = compiled(compiler, answer_grammar(form, control_id), ANSWER)
    text = "" if prompt else "<think>"
    reply = [
        *f"{text}a 12 <b>".encode(),
        *([CONTROL["</think>"]] if control_id("</think>") else b"</think>"),
        *b"\n\n123",
    ]
    for token in reply:
        logits = np.zeros(SIZE, np.float32)
        state.mask(logits)
        assert logits[token] == 0, token
        state.accept(token)
    assert state.is_complete
    assert parse(form, reply) == ("123", "a 12 <b>", [])


def test_thinking_is_not_asked_of_models_that_need_not(compiler):
    """Where the prompt does not open the thoughts, the answer may come at once."""
    state = compiled(compiler, answer_grammar(reply_format("<think>"), CONTROL.get), ANSWER)
    for token in b"123":
        state.accept(token)
    assert state.is_complete


@pytest.mark.parametrize("name", FORMS)
def test_answers_or_calls(compiler, name):
    """With tools and a constraint, a reply is an answer that fits or calls that fit."""
    form = reply_format(FORMS[name], has_tools=True)
    state = compiled(compiler, answer_grammar(form, CONTROL.get, TOOLS), ANSWER)
    replies = [parse(form, reply) for n in range(12) if (reply := generate(state.copy(), n))]
    assert replies
    for content, _, calls in replies:
        assert content.isdigit() != bool(calls)
        for tool, arguments in calls:
            check(tool, arguments)


def test_schemas_that_are_none_are_no_fault(compiler):
    """Whatever stands where a schema should be, the grammar is written or refused."""
    form = reply_format(FORMS["qwen-coder"], has_tools=True)
    for parameters in ({"properties": []}, {"properties": {"a": 1}, "required": 3}):
        grammar = tool_grammar(form, [ToolSchema("f", parameters)], CONTROL.get)
        try:
            compiled(compiler, grammar)
        except ConstraintError as error:
            assert str(error)


def test_answers_of_harmony_go_to_the_final_channel(compiler):
    """The grammar puts the answer where it is shown."""
    form = reply_format(FORMS["harmony"])
    state = compiled(compiler, answer_grammar(form, CONTROL.get), ANSWER)
    start = b"<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    reply = [*start, *b"<|channel|>final<|message|>123"]
    for token in reply:
        state.accept(token)
    assert state.is_complete
    assert parse(form, reply) == ("123", "hm", [])
