"""Chats with tools, in the form that a template takes; in plain words where it knows no tools."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from corral.text.parsers.forms import Spelling
from corral.text.parsers.json_text import escaped
from corral.text.template_facts import ArgumentsForm, TemplateFacts

Message: TypeAlias = Mapping[str, Any]

_TOOLS_TEXT: Final = (
    "You can call functions to answer the user. These are the functions, each with the JSON schema "
    "of its arguments:\n<tools>\n{tools}\n</tools>\n\nTo call a function, write its name and a "
    "JSON object of arguments in just this form:\n{example}"
)


def adapted(
    messages: Sequence[Message],
    tools: Sequence[Message] | None,
    facts: TemplateFacts,
    spelling: Spelling,
) -> tuple[list[Message], Sequence[Message] | None]:
    """Return messages and tools as a template with these facts takes them.

    Arguments of earlier calls are JSON text or mappings when they come; a template that writes no
    tools, calls or results is given texts in their place.

    Args:
        spelling: of calls, as the reply is read.
    """
    out: list[Message] = []
    is_after_result = False
    for message in messages:
        shown = _with_calls(_with_reasoning(_with_role(message), facts), facts, spelling)
        is_result = message.get("role") == "tool" and not facts.writes_results
        if is_result:
            shown = _as_user(shown)
        if is_result and is_after_result:  # one turn of the user for several results
            out[-1] = {**out[-1], "content": f"{out[-1]['content']}\n{shown['content']}"}
        else:
            out.append(shown)
        is_after_result = is_result
    if tools and not facts.writes_tools:
        example = spelling.written(("<name>", "<arguments>"))
        text = _TOOLS_TEXT.format(tools=_lines(tools), example=example)
        out, tools = _with_system(out, text), None
    return out if facts.writes_system else _without_system(out), tools


def _with_role(message: Message) -> Message:
    """Give instructions the role that all templates know."""
    if message.get("role") == "developer":
        return {**message, "role": "system"}
    return message


def _with_reasoning(message: Message, facts: TemplateFacts) -> Message:
    if "reasoning_content" not in message or facts.reasoning_key == "reasoning_content":
        return message
    rest = {key: item for key, item in message.items() if key != "reasoning_content"}
    if facts.reasoning_key is None:
        return rest
    return {**rest, facts.reasoning_key: message["reasoning_content"]}


def _with_calls(message: Message, facts: TemplateFacts, spelling: Spelling) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    if facts.arguments is ArgumentsForm.NONE:
        rest = {key: item for key, item in message.items() if key != "tool_calls"}
        texts = [message.get("content") or "", spelling.written(*map(_name_and_arguments, calls))]
        return {**rest, "content": "\n".join(filter(None, texts))}
    is_text = facts.arguments is ArgumentsForm.TEXT
    if facts.calls_have_no_content and not message.get("content"):
        message = {**message, "content": None}
    return {**message, "tool_calls": [_with_arguments(call, is_text=is_text) for call in calls]}


def _with_arguments(call: Message, *, is_text: bool) -> Message:
    function = call.get("function")
    if not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    if is_text and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    elif not is_text and isinstance(arguments, str):
        arguments = _parsed(arguments)
    return {**call, "function": {**function, "arguments": arguments}}


def _parsed(arguments: str) -> object:
    """Return the mapping a JSON text describes; a text that describes none stays what it is."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _name_and_arguments(call: Message) -> tuple[str, str]:
    function = call.get("function", call)
    arguments = function.get("arguments") or "{}"
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return escaped(str(function.get("name", ""))), arguments


def _as_user(message: Message) -> Message:
    content = f"<tool_response>\n{message.get('content') or ''}\n</tool_response>"
    return {"role": "user", "content": content}


def _lines(tools: Sequence[Message]) -> str:
    return "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)


def _with_system(messages: list[Message], text: str) -> list[Message]:
    """Add to the system message, or put one in front."""
    if messages and messages[0].get("role") == "system":
        first = messages[0]
        return [{**first, "content": _joined(first.get("content"), text)}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _without_system(messages: list[Message]) -> list[Message]:
    """Let the first message of the user begin with the system message before it."""
    roles = [message.get("role") for message in messages[:2]]
    if roles != ["system", "user"]:
        return messages
    system, user = messages[:2]
    return [{**user, "content": _joined(system.get("content"), user.get("content"))}, *messages[2:]]


def _joined(first: Any, second: Any) -> Any:
    """Put two contents together: texts with a line between, or lists of parts."""
    if isinstance(first, str) and isinstance(second, str):
        return "\n\n".join(filter(None, (first, second)))
    return [*_parts(first), *_parts(second)]


def _parts(content: Any) -> Sequence[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list | tuple) else ()
