"""Tests of `corral.engine.reply_plan`: what a request makes of its reply."""

import json

import numpy as np
import pytest

import tiny
from corral.contract.messages import (
    ChatPrompt,
    Constraint,
    ConstraintKind,
    GenerationRequest,
    Message,
    TextPrompt,
    Tool,
    ToolChoice,
)
from corral.engine.reply_plan import grammar_compiler, plan_reply
from corral.errors import ConstraintError, InvalidArgument
from corral.text.reply import PLAIN
from corral.text.tokenizer import Tokenizer

TOOLS = (
    Tool("see", parameters='{"type": "object", "properties": {"n": {"type": "integer"}}}'),
    Tool("say", parameters="{}"),
)
MESSAGES = (Message("user", "Hi"),)
SCHEMA = Constraint(ConstraintKind.SCHEMA, '{"enum": [1, 2]}')


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_metadata(tiny.vocabulary())


def request(**options):
    options = {"prompt": ChatPrompt(MESSAGES, TOOLS), "request_id": "r"} | options
    return GenerationRequest(**options)


def plan(tokenizer, *, source="<tool_call>", tail="", **options):
    tokens = tokenizer.encode(tail, parse_special=True) if tail else []
    return plan_reply(request(**options), tokens, tokenizer, source)


def test_free_replies_have_a_format_and_no_grammar(tokenizer):
    """Tools that may be called are looked for; what may not be called is content."""
    found = plan(tokenizer)
    assert found.form.tools.name == "hermes"
    assert found.grammar is None
    assert found.schemas.keys() == {"see", "say"}
    assert plan(tokenizer, tool_choice=ToolChoice("none")).form.tools is None
    assert plan(tokenizer, prompt=ChatPrompt(MESSAGES)).form == PLAIN
    assert plan(tokenizer, prompt=TextPrompt("a"), source="<think>").form == PLAIN


def test_the_end_of_the_prompt_counts(tokenizer):
    """Where the prompt opens the reasoning, the reply begins inside."""
    assert plan(tokenizer, source="<think>", tail="a<think>\n").form.starts_in_reasoning
    assert not plan(tokenizer, source="<think>", tail="a").form.starts_in_reasoning


def test_required_tools_become_a_grammar(tokenizer):
    """Of all tools, or of the one that is named."""
    every = plan(tokenizer, tool_choice=ToolChoice("required"))
    assert '\\"see' in json.dumps(every.grammar.top)
    assert "say" in every.grammar.top
    named = plan(tokenizer, tool_choice=ToolChoice("required", "say"))
    assert "see" not in named.grammar.top
    assert len(named.grammar.parts) == 1


def test_constraints_become_a_grammar(tokenizer):
    """The answer fits, behind the thoughts where there are some; a call may stand for it."""
    found = plan(tokenizer, constraint=SCHEMA, source="<think><tool_call>")
    assert found.grammar.parts[-1].text == SCHEMA.text
    assert "</think>" in found.grammar.top
    assert "| calls" in found.grammar.top
    assert found.form.tools.name == "hermes"
    untold = plan(tokenizer, constraint=SCHEMA, tool_choice=ToolChoice("none"))
    assert "calls" not in untold.grammar.top
    plain = plan(tokenizer, constraint=SCHEMA, prompt=TextPrompt("a"))
    assert "think" not in plain.grammar.top


@pytest.mark.parametrize(
    "options",
    [
        {"constraint": SCHEMA, "tool_choice": ToolChoice("required")},
        {"constraint": SCHEMA, "ignore_eos": True},
        {"tool_choice": ToolChoice("required"), "ignore_eos": True},
        {"tool_choice": ToolChoice("required", "other")},
        {"tool_choice": ToolChoice("required"), "prompt": ChatPrompt(MESSAGES)},
        {"tool_choice": ToolChoice("required"), "prompt": TextPrompt("a")},
        {"prompt": ChatPrompt(MESSAGES, (Tool("a", parameters="[]"),))},
        {"prompt": ChatPrompt(MESSAGES, (Tool("a", parameters='{"a": '),))},
    ],
)
def test_contradictions_are_refused(tokenizer, options):
    """What cannot be kept is refused before anything is computed."""
    with pytest.raises(InvalidArgument):
        plan(tokenizer, **options)


def test_the_vocabulary_of_a_model_compiles_grammars(tokenizer):
    """Logits beyond the tokens are banned, control tokens and ends are known."""
    size = tokenizer.vocabulary_size + 3
    compiler = grammar_compiler(tokenizer, size)
    untold = {"prompt": TextPrompt("a"), "constraint": SCHEMA}
    state = compiler.compile(plan(tokenizer, **untold).grammar)
    logits = np.zeros(size, np.float32)
    state.mask(logits)
    allowed = {tokenizer.token_bytes(int(token)) for token in np.flatnonzero(logits == 0)}
    assert allowed == {b"1", b"2"}
    state.accept(tokenizer.token_id("1"))
    logits[:] = 0
    state.mask(logits)
    assert set(np.flatnonzero(logits == 0).tolist()) == set(tokenizer.end_of_generation)
    with pytest.raises(ConstraintError):
        compiler.compile(plan(tokenizer, constraint=Constraint(ConstraintKind.REGEX, "((")).grammar)
