"""What a chat template can write, found by giving it small chats and looking at the result."""

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Try: TypeAlias = Callable[[Mapping[str, object]], str | None]
"""Renders variables; None where the template refuses them."""

_PROBE: Final = "corral probe"
_TOOL_NAME: Final = "corral_tool"
_NAME: Final = "corral_called"
"""Of the call, another one than of the tool, which templates write too."""
_KEY: Final = "corral_key"
_RESULT: Final = "corral_result"
_ID: Final = "corral001"  # Mistral's templates want nine letters or digits


class ContentForm(enum.Enum):
    """The forms of a message's content that a template can write."""

    TEXT = enum.auto()
    PARTS = enum.auto()
    BOTH = enum.auto()


class ArgumentsForm(enum.Enum):
    """The form in which a template takes the arguments of an earlier call."""

    OBJECT = "a mapping, which the template writes as JSON"
    TEXT = "JSON text"
    NONE = "earlier calls are not written at all"


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """What a template can write."""

    content: ContentForm
    writes_system: bool
    """Whether it writes a system message; else the first message of the user begins with it."""
    writes_tools: bool
    """Whether it describes tools; else a text in the system message does."""
    arguments: ArgumentsForm
    calls_have_no_content: bool
    """Whether a message with nothing but calls has None for its content; else an empty text."""
    writes_results: bool
    """Whether it writes messages of role "tool"; else they become messages of the user."""
    reasoning_key: str | None
    """Under which name it takes what was thought in earlier turns, if it writes that."""


def find_facts(source: str, render: Try) -> TemplateFacts:
    """Return what a template can write."""
    calls = _find_calls(render)
    return TemplateFacts(
        content=_content_form(render),
        writes_system=_writes_system(render),
        writes_tools=_writes_tools(render),
        arguments=calls.arguments,
        calls_have_no_content=calls.have_no_content,
        writes_results=calls.have_results,
        reasoning_key=_reasoning_key(source),
    )


def _reasoning_key(source: str) -> str | None:
    """Return the name that reasoning has in a template's messages; gpt-oss has one of its own."""
    if "reasoning_content" in source:
        return "reasoning_content"
    return "thinking" if _THINKING.search(source) else None


_THINKING = re.compile(r"\.thinking\b|\[['\"]thinking['\"]\]")
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": _TOOL_NAME,
        "description": "A probe.",
        "parameters": {
            "type": "object",
            "properties": {"value": {"type": "string", "description": "A value."}},
            "required": ["value"],
        },
    },
}


def _variables(messages: list[Any], tools: list[Any] | None = None) -> Mapping[str, object]:
    return {"messages": messages, "tools": tools, "add_generation_prompt": False}


def _user(content: object = "?") -> dict[str, object]:
    return {"role": "user", "content": content}


def _content_form(render: Try) -> ContentForm:
    text = _around_probe(render(_variables([_user(_PROBE)])))
    parts = _around_probe(render(_variables([_user([{"type": "text", "text": _PROBE}])])))
    if parts and "'text'" not in parts and '"text"' not in parts:  # not written as a list
        return ContentForm.BOTH if text else ContentForm.PARTS
    return ContentForm.TEXT


def _around_probe(text: str | None) -> str | None:
    """Return what was written around a content, if it was written at all."""
    before, found, after = (text or "").partition(_PROBE)
    return before[-40:] + found + after[:40] if found else None


def _writes_system(render: Try) -> bool:
    forms: tuple[Any, ...] = (_PROBE, [{"type": "text", "text": _PROBE}])
    texts = (render(_variables([{**_user(form), "role": "system"}, _user(form)])) for form in forms)
    return any((text or "").count(_PROBE) == 2 for text in texts)


def _writes_tools(render: Try) -> bool:
    forms: tuple[object, ...] = ("?", [{"type": "text", "text": "?"}])
    texts = (render(_variables([_user(form)], [_TOOL])) for form in forms)
    return any(_TOOL_NAME in (text or "") for text in texts)


@dataclass(frozen=True, slots=True)
class _Calls:
    arguments: ArgumentsForm
    have_no_content: bool
    have_results: bool


def _find_calls(render: Try) -> _Calls:
    """Return how earlier calls are taken, and whether their results are written."""
    result = {"role": "tool", "content": _RESULT, "tool_call_id": _ID, "name": _NAME}
    answered = {"role": "assistant", "content": "."}
    for form, arguments in (
        (ArgumentsForm.OBJECT, {_KEY: "v"}),
        (ArgumentsForm.TEXT, f'{{"{_KEY}": "v"}}'),
    ):
        call = {"type": "function", "function": {"name": _NAME, "arguments": arguments}, "id": _ID}
        for content in (None, ""):
            asked = {"role": "assistant", "content": content, "tool_calls": [call]}
            text = render(_variables([_user(), asked, result, answered], [_TOOL])) or ""
            if _NAME in text and _is_written_well(text):
                return _Calls(form, content is None, _RESULT in text)
    alone = render(_variables([_user(), answered, result])) or ""
    has_results = _RESULT in alone and not _is_any_role_written(render)
    return _Calls(ArgumentsForm.NONE, False, has_results)


def _is_written_well(text: str) -> bool:
    """Say whether arguments were written, and as no more than themselves."""
    wrong = (f"'{_KEY}'", f'\\"{_KEY}', "None")  # as Python has them, or as JSON inside JSON
    return _KEY in text and not any(form in text for form in wrong)


def _is_any_role_written(render: Try) -> bool:
    """Say whether a template writes any role by its name, known to the model or not."""
    return "corral_role" in (render(_variables([{**_user(), "role": "corral_role"}])) or "")
