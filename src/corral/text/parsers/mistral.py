"""Calls of Mistral: `[TOOL_CALLS]` and a list, or a name and its arguments for each call."""

from typing import Final

from corral.text.parsers.forms import Reading, Spelling, ToolForm
from corral.text.parsers.json_calls import read_calls
from corral.text.parsers.json_text import pass_value
from corral.text.parsers.source import Parsing, Source, drop

CALLS: Final = "[TOOL_CALLS]"
ARGUMENTS: Final = "[ARGS]"
ID: Final = "[CALL_ID]"


def _read(reading: Reading, _opening: str) -> Parsing[bool]:
    source, sink = reading.source, reading.sink
    if (yield from source.visible()) in ("[", "{"):
        return (yield from read_calls(source, sink))
    name = yield from _name(source)
    if name is None:
        return False
    sink.begin(name)
    yield from pass_value(source, sink.arguments)
    return True


def _name(source: Source) -> Parsing[str | None]:
    """Return the name before the arguments; None, nothing read, if there is no call."""
    source.mark()
    name = ""
    while char := (yield from source.peek()):
        marker = None
        if char == "[":
            marker = yield from source.starts_with(ARGUMENTS, ID)
        if marker == ID:
            yield from source.until((ARGUMENTS,), drop)
        if name.strip() and (marker or char == "{"):
            source.decide()
            return name.strip()
        if marker or char in "\n[]{}":
            break
        source.advance(1)
        name += char
    source.rewind()
    return None


MISTRAL: Final = ToolForm(
    "mistral",
    Spelling(
        begin=CALLS + "[",
        before_name='{"name": "',
        after_name='", "arguments": ',
        after_arguments="}",
        between=", ",
        end="]",
    ),
    handlers={CALLS: _read},
    markup=(ARGUMENTS, ID),
)
MISTRAL_NAMED: Final = ToolForm(
    "mistral-named",
    Spelling(before_name=CALLS, after_name=ARGUMENTS, after_arguments=""),
    handlers={CALLS: _read},
    markup=(ARGUMENTS, ID),
)
