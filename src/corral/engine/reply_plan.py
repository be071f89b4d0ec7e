"""Decides what a reply will mean and what it must fit, once its prompt is known: a pure function.

             chat template, end of the prompt ──▶ format ──▶ parser
constraint, tool choice, schemas of the tools ──▶ grammar ──▶ sampler
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from corral.contract.messages import ChatPrompt, ConstraintKind, GenerationRequest
from corral.errors import InvalidArgument
from corral.sampling.grammar import GrammarCompiler
from corral.sampling.grammar_text import GrammarPart, GrammarText
from corral.text.parsers.forms import Schemas
from corral.text.reply import PLAIN, ReplyFormat, reply_format
from corral.text.reply_grammar import (
    ANSWER,
    ReplyGrammar,
    ToolSchema,
    answer_grammar,
    tool_grammar,
)
from corral.text.tokenizer import Tokenizer

_TAIL_TOKENS = 16
"""Tokens of the prompt's end that are looked at for an open reasoning tag."""


@dataclass(frozen=True, slots=True)
class ReplyPlan:
    """How a reply is read, and what it must fit."""

    form: ReplyFormat = PLAIN
    schemas: Schemas = field(default_factory=dict)
    grammar: GrammarText | None = None


def plan_reply(
    request: GenerationRequest, tokens: Sequence[int], tokenizer: Tokenizer, template_source: str
) -> ReplyPlan:
    """Return the plan of the reply to a request.

    Args:
        tokens: of the prompt.
        template_source: the chat template; counts with a chat only.

    Raises:
        InvalidArgument: the request contradicts itself, or a schema is no JSON object.
    """
    _check(request)
    tools = _tools(request)
    if not isinstance(request.prompt, ChatPrompt):
        return ReplyPlan(grammar=_grammar(request, PLAIN, tools, tokenizer))
    tail = tokenizer.decode(tokens[-_TAIL_TOKENS:])
    form = reply_format(template_source, tail, has_tools=bool(tools))
    schemas = {tool.name: tool.parameters for tool in tools}
    return ReplyPlan(form, schemas, _grammar(request, form, tools, tokenizer))


def grammar_compiler(tokenizer: Tokenizer, vocabulary_size: int) -> GrammarCompiler:
    """Return what compiles grammars for a model with so many logits."""
    known = range(min(vocabulary_size, tokenizer.vocabulary_size))
    return GrammarCompiler(
        [tokenizer.token_bytes(token) for token in known],
        special=[token for token in known if tokenizer.is_special(token)],
        ends=[token for token in tokenizer.end_of_generation if token < vocabulary_size],
        vocabulary_size=vocabulary_size,
    )


def _check(request: GenerationRequest) -> None:
    is_required = request.tool_choice.mode == "required"
    if request.constraint is not None and is_required:
        raise InvalidArgument(
            "the answer is to fit a constraint, and a tool is to be called; expected one of both"
        )
    if request.ignore_eos and (request.constraint is not None or is_required):
        raise InvalidArgument(
            "ignore_eos lets an answer go on behind its end, where no constraint holds; "
            "expected one of both"
        )


def _tools(request: GenerationRequest) -> tuple[ToolSchema, ...]:
    """Return the tools that may be called."""
    choice = request.tool_choice
    given = request.prompt.tools if isinstance(request.prompt, ChatPrompt) else ()
    tools = tuple(
        ToolSchema(tool.name, _object(f"the parameters of tool {tool.name}", tool.parameters))
        for tool in given
        if choice.mode != "none" and choice.name in ("", tool.name)
    )
    if choice.mode == "required" and not tools:
        named = f" named {choice.name!r}" if choice.name else ""
        known = ", ".join(tool.name for tool in given)[:200] or "none"
        raise InvalidArgument(f"a tool{named} is to be called; the request has {known}")
    return tools


def _grammar(
    request: GenerationRequest,
    form: ReplyFormat,
    tools: tuple[ToolSchema, ...],
    tokenizer: Tokenizer,
) -> GrammarText | None:
    def control_id(text: str) -> int | None:
        token = tokenizer.token_id(text)
        return token if token is not None and tokenizer.is_special(token) else None

    is_parallel = request.tool_choice.is_parallel
    if request.constraint is not None:
        part = GrammarPart(ANSWER, request.constraint.kind, request.constraint.text)
        return _text(answer_grammar(form, control_id, tools, is_parallel=is_parallel), part)
    if request.tool_choice.mode == "required":
        return _text(tool_grammar(form, tools, control_id, is_parallel=is_parallel))
    return None


def _text(grammar: ReplyGrammar, *parts: GrammarPart) -> GrammarText:
    schemas = (GrammarPart(name, ConstraintKind.SCHEMA, text) for name, text in grammar.schemas)
    return GrammarText(grammar.top, (*schemas, *parts))


def _object(field_name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error)[:100]
        raise InvalidArgument(f"{field_name} are no JSON ({reason}); expected a schema") from error
    if not isinstance(value, dict):
        raise InvalidArgument(
            f"{field_name} are a {type(value).__name__}; expected a JSON schema, an object"
        )
    return value
