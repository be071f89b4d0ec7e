"""The grammar of a whole reply: thoughts first if the model thinks, then an answer or tool calls.

It is written in Lark as llguidance reads it, and refers to grammars of others by `@name`. Compiling
it is the matter of whoever has the vocabulary.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from corral.text.parsers.forms import Spelling
from corral.text.parsers.harmony import CHANNEL, HARMONY, MESSAGE, START
from corral.text.parsers.json_text import escaped
from corral.text.reply import ReasoningTags, ReplyFormat

ANSWER: Final = "answer"
"""The name of the grammar that `answer_grammar` refers to."""

ControlId: TypeAlias = Callable[[str], int | None]
"""Returns the id of a control token by its spelling, None where the vocabulary has none."""

_TEXT = r"/(.|\n)*/"
_LINE = "\n"
_GAP = r"/\n{0,2}/"
_END = "<|end|>"
_MARK = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool that may be called."""

    name: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReplyGrammar:
    """A Lark grammar, and the JSON schemas it refers to by name."""

    top: str
    schemas: tuple[tuple[str, str], ...] = ()


def answer_grammar(
    form: ReplyFormat,
    control_id: ControlId,
    tools: Sequence[ToolSchema] = (),
    *,
    is_parallel: bool = True,
) -> ReplyGrammar:
    """Return the grammar of a reply whose answer fits `@answer`, which the caller has.

    Where there are tools, a reply may call them instead.
    """
    lead, rules = _lead(form, control_id)
    channel = f"{CHANNEL}final{MESSAGE}" if form.tools is HARMONY else ""
    answer = f"answer: {_spelled(channel, control_id)} @{ANSWER}"
    if not tools:
        return _grammar([f"start: {lead} answer", answer, *rules])
    calls, schemas = _calls(form, tools, control_id, is_parallel=is_parallel)
    return _grammar([f"start: {lead} (answer | calls)", answer, *rules, *calls], schemas)


def tool_grammar(
    form: ReplyFormat,
    tools: Sequence[ToolSchema],
    control_id: ControlId,
    *,
    is_parallel: bool = True,
) -> ReplyGrammar:
    """Return the grammar of a reply that calls one of `tools`, or several where that may be.

    The calls have the form that the model was trained on, and their arguments fit the schemas.
    """
    lead, rules = _lead(form, control_id)
    calls, schemas = _calls(form, tools, control_id, is_parallel=is_parallel)
    return _grammar([f"start: {lead} calls", *rules, *calls], schemas)


def _grammar(lines: list[str], schemas: Sequence[tuple[str, str]] = ()) -> ReplyGrammar:
    return ReplyGrammar("\n".join(lines) + "\n", tuple(schemas))


def _calls(
    form: ReplyFormat, tools: Sequence[ToolSchema], control_id: ControlId, *, is_parallel: bool
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the rules of calls, from the rule `calls` on, and the schemas they refer to."""
    assert form.tools is not None
    spelling = form.tools.spelling
    is_single = not is_parallel or form.tools is HARMONY  # whose calls end the reply
    more = "" if is_single else f"({_spelled(spelling.between, control_id)} call)*"
    begin, end = (_spelled(text, control_id) for text in (spelling.begin, spelling.end))
    lines = [
        f"calls: {begin} call {more} {end}",
        "call: " + " | ".join(f"call_{number}" for number in range(len(tools))),
    ]
    schemas: list[tuple[str, str]] = []
    for number, tool in enumerate(tools):
        if form.tools.writes_json:
            arguments, rules, found = _json_arguments(number, tool)
            name = escaped(tool.name)
        else:
            arguments, rules, found = _tagged_arguments(number, tool)
            name = tool.name
        head, tail = _around(spelling, name)
        spelled = f"{_spelled(head, control_id)} {arguments} {_spelled(tail, control_id)}"
        lines += [f"call_{number}: {spelled}", *rules]
        schemas += found
    return lines, schemas


def _around(spelling: Spelling, name: str) -> tuple[str, str]:
    return spelling.before_name + name + spelling.after_name, spelling.after_arguments


_Written: TypeAlias = tuple[str, list[str], list[tuple[str, str]]]
"""What stands for arguments in a rule, further rules, and the schemas these refer to by name."""


def _json_arguments(number: int, tool: ToolSchema) -> _Written:
    """Return a reference, no further rules, and the schema: that of an object in any case."""
    schema = dict(tool.parameters)
    if "type" not in schema and "$ref" not in schema:
        schema["type"] = "object"
    name = f"arguments_{number}"
    return f"@{name}", [], [(name, json.dumps(schema))]


def _tagged_arguments(number: int, tool: ToolSchema) -> _Written:
    """Return the parameters one by one: the required ones, and each of the others or not."""
    references, rules, schemas = [], [], []
    properties, required = (tool.parameters.get(key) for key in ("properties", "required"))
    properties = properties if isinstance(properties, Mapping) else {}
    required = required if isinstance(required, list) else ()
    for place, (key, schema) in enumerate(properties.items()):
        name = f"value_{number}_{place}"
        opening = _quoted(f"<parameter={key}>\n")
        if isinstance(schema, Mapping) and schema.get("type") == "string" and "enum" not in schema:
            rules.append(f"{name}[suffix={_quoted('</parameter>')}]: {_TEXT}")
            rules.append(f"parameter_{number}_{place}: {opening} {name} {_quoted(_LINE)}")
        else:
            end = _quoted("\n</parameter>\n")
            rules.append(f"parameter_{number}_{place}: {opening} @{name} {end}")
            schemas.append((name, json.dumps(_with_definitions(schema, tool.parameters))))
        references.append(f"parameter_{number}_{place}" + ("" if key in required else "?"))
    return " ".join(references), rules, schemas


def _with_definitions(schema: Any, whole: Mapping[str, Any]) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    shared = {key: whole[key] for key in ("$defs", "definitions") if key in whole}
    return {**shared, **schema}


def _lead(form: ReplyFormat, control_id: ControlId) -> tuple[str, list[str]]:
    """Return what a reply may begin with before its answer, and the rules of it."""
    if form.tools is HARMONY:
        tags = ReasoningTags(f"{CHANNEL}analysis{MESSAGE}", f"{_END}{START}assistant")
        lead, rules = _thoughts(tags, control_id)
        return f"({lead})?", [rules]
    if form.reasoning is None:
        return "", []
    if form.starts_in_reasoning:
        lead, rules = _thoughts(ReasoningTags("", form.reasoning.close), control_id)
        return f"{lead} {_GAP}", [rules]
    lead, rules = _thoughts(form.reasoning, control_id)
    return f"({lead} {_GAP})?", [rules]


def _thoughts(tags: ReasoningTags, control_id: ControlId) -> tuple[str, str]:
    """Return text between tags, and the rule of that text: it ends at the first closing tag."""
    opening = _spelled(tags.open, control_id)
    first, *rest = _pieces(tags.close, control_id)
    if isinstance(first, int):
        return f"{opening} thoughts {_joined([first, *rest])}", f"thoughts: {_TEXT}"
    return f"{opening} thoughts {_joined(rest)}", f"thoughts[suffix={_quoted(first)}]: {_TEXT}"


def _spelled(text: str, control_id: ControlId) -> str:
    """Return text as Lark: control tokens by their ids, everything else as strings."""
    return _joined(list(_pieces(text, control_id)))


def _joined(pieces: Sequence[str | int]) -> str:
    return " ".join(
        f"<[{piece}]>" if isinstance(piece, int) else _quoted(piece) for piece in pieces
    )


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _pieces(text: str, control_id: ControlId) -> Iterator[str | int]:
    """Yield a text's control tokens, and what stands between."""
    done = 0
    for mark in _MARK.finditer(text):
        token = control_id(mark.group())
        if token is not None:
            if mark.start() > done:
                yield text[done : mark.start()]
            yield token
            done = mark.end()
    if done < len(text):
        yield text[done:]
