"""Calls in tags: JSON inside (Hermes, Qwen, Granite, Phi-4-mini, …), or tags (Qwen3-Coder)."""

import json
from collections.abc import Mapping
from typing import Any, Final

from corral.text.parsers.forms import Handler, Reading, Spelling, ToolForm
from corral.text.parsers.json_calls import read_calls
from corral.text.parsers.json_text import escaped, is_json, pass_value
from corral.text.parsers.source import Parsing, drop, text_until

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
FUNCTION: Final = "<function="
_FUNCTION_END = "</function>"
PARAMETER: Final = "<parameter="
NEMOTRON_OPEN: Final = "<TOOLCALL>"
_NEMOTRON_CLOSE = "</TOOLCALL>"
_PARAMETER_END = "</parameter>"
_WORDS: Final = {"True": "true", "False": "false", "None": "null"}


def tagged(close: str) -> Handler:
    """Return a reader of calls that end with `close`."""

    def read(reading: Reading, _opening: str) -> Parsing[bool]:
        source = reading.source
        source.mark()
        yield from source.skip_space()
        if (yield from source.starts_with(FUNCTION)):
            source.decide()
            yield from _read_function(reading)
        else:
            source.rewind()
            if not (yield from read_calls(source, reading.sink)):
                return False
        yield from source.skip_space()
        if not (yield from source.starts_with(close)):
            yield from _skip_rest(reading, close)
        return True

    return read


def _skip_rest(reading: Reading, close: str) -> Parsing[None]:
    """Pass over what stands wrongly between the end of a call and `close`, a brace mostly."""
    source = reading.source
    while (yield from source.skip_space()) in ("}", "]", ","):
        source.advance(1)
    yield from source.starts_with(close)


def _read_bare_function(reading: Reading, _opening: str) -> Parsing[bool]:
    yield from _read_function(reading)
    yield from reading.source.skip_space()
    yield from reading.source.starts_with(CLOSE)
    return True


def _read_function(reading: Reading) -> Parsing[None]:
    """Read from behind `<function=`; arguments become JSON on the way."""
    source, sink = reading.source, reading.sink
    name, _ = yield from text_until(source, ">")
    name = name.strip()
    sink.begin(name)
    if (yield from source.visible()) == "{":  # all arguments as one object
        yield from pass_value(source, sink.arguments)
        yield from source.until((_FUNCTION_END, CLOSE), drop)
        return
    sink.arguments("{")
    separator = ""
    schema = reading.schemas.get(name, {})
    ends = (PARAMETER, _FUNCTION_END, CLOSE)
    found = yield from source.until(ends, drop)
    while found == PARAMETER:
        key, closed = yield from text_until(source, ">")
        if closed is None:
            return
        sink.arguments(f'{separator}"{escaped(key.strip())}": ')
        separator = ", "
        found = yield from _read_parameter(reading, is_text=_is_text(schema, key.strip()))
        if found == _PARAMETER_END:
            found = yield from source.until(ends, drop)
    if found is not None:
        sink.arguments("}")


def _read_parameter(reading: Reading, *, is_text: bool) -> Parsing[str | None]:
    """Read a value; the line ends next to its tags are not part of it."""
    source, sink = reading.source, reading.sink
    ends = (_PARAMETER_END, PARAMETER, _FUNCTION_END)
    yield from source.starts_with("\n")
    if not is_text:
        text, found = yield from text_until(source, *ends)
        if found is not None:
            sink.arguments(_guessed(text.strip()))
        return found
    sink.arguments('"')
    held = ""

    def take(text: str) -> None:
        nonlocal held
        text = held + text
        held = "\n" if text.endswith("\n") else ""
        sink.arguments(escaped(text.removesuffix("\n")))

    found = yield from source.until(ends, take)
    if found is not None:
        sink.arguments('"')
    return found


def _is_text(schema: Mapping[str, Any], key: str) -> bool:
    """Say whether a parameter can be nothing but text."""
    properties = schema.get("properties")
    found = properties.get(key) if isinstance(properties, Mapping) else None
    return isinstance(found, Mapping) and found.get("type") == "string"


def _guessed(text: str) -> str:
    """Return a value of unknown type as JSON: what it is if it is JSON, else a string."""
    text = _WORDS.get(text, text)
    return text if is_json(text) else json.dumps(text, ensure_ascii=False)


def _read_functools(reading: Reading, _opening: str) -> Parsing[bool]:
    source, sink = reading.source, reading.sink
    if not (yield from read_calls(source, sink)):
        return False
    while (yield from source.skip_space()) == ",":
        source.advance(1)
        if not (yield from read_calls(source, sink)):
            break
    yield from source.starts_with("]")
    return True


HERMES: Final = ToolForm(
    "hermes",
    Spelling(
        before_name=OPEN + '\n{"name": "',
        after_name='", "arguments": ',
        after_arguments="}\n" + CLOSE,
        between="\n",
    ),
    handlers={OPEN: tagged(CLOSE)},
    markup=(CLOSE,),
)
QWEN_CODER: Final = ToolForm(
    "qwen-coder",
    Spelling(
        before_name=OPEN + "\n" + FUNCTION,
        after_name=">\n",
        after_arguments=_FUNCTION_END + "\n" + CLOSE,
        between="\n",
    ),
    handlers={OPEN: tagged(CLOSE), FUNCTION: _read_bare_function},
    markup=(CLOSE,),
    writes_json=False,
)
FUNCTIONARY: Final = ToolForm(
    "functionary",
    Spelling(before_name=FUNCTION, after_name=">", after_arguments=_FUNCTION_END),
    handlers={FUNCTION: _read_bare_function},
)
NEMOTRON: Final = ToolForm(
    "nemotron",
    Spelling(
        begin=NEMOTRON_OPEN + "[",
        before_name='{"name": "',
        after_name='", "arguments": ',
        after_arguments="}",
        between=", ",
        end="]" + _NEMOTRON_CLOSE,
    ),
    handlers={NEMOTRON_OPEN: tagged(_NEMOTRON_CLOSE)},
    markup=(_NEMOTRON_CLOSE,),
)
GRANITE: Final = ToolForm(
    "granite",
    Spelling(
        begin="<|tool_call|>[",
        before_name='{"name": "',
        after_name='", "arguments": ',
        after_arguments="}",
        between=", ",
        end="]",
    ),
    handlers={"<|tool_call|>": tagged("<|/tool_call|>"), OPEN: tagged(CLOSE)},
    markup=("<|/tool_call|>", CLOSE),
)
PHI: Final = ToolForm(
    "phi",
    Spelling(
        begin="<|tool_call|>[",
        before_name='{"name": "',
        after_name='", "arguments": ',
        after_arguments="}",
        between=", ",
        end="]<|/tool_call|>",
    ),
    handlers={
        "<|tool_call|>": tagged("<|/tool_call|>"),
        "functools[": _read_functools,
    },
    markup=("<|/tool_call|>",),
)
