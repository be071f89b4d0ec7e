"""Calls of Gemma 4 and FunctionGemma: `call:name{key:value}` with quotes of their own.

Arguments become JSON on the way. Keys stand bare or in quotes, texts between two quote marks; what
else JSON has is written as in JSON, and JSON itself is read too.
"""

from typing import Final

from corral.text.parsers.forms import Handler, Reading, Spelling, ToolForm
from corral.text.parsers.json_text import escaped, is_json, pass_value
from corral.text.parsers.source import Parsing, text_until

CALL: Final = "<|tool_call>"
CALL_END: Final = "<tool_call|>"
FUNCTION_CALL: Final = "<start_function_call>"
FUNCTION_CALL_END: Final = "<end_function_call>"
_QUOTE: Final = '<|"|>'
_ESCAPE: Final = "<escape>"
_PUNCTUATION: Final = ("{", "}", "[", "]", ",", ":")


def _reader(quote: str, end: str) -> Handler:
    def read(reading: Reading, _opening: str) -> Parsing[bool]:
        source, sink = reading.source, reading.sink
        if not (yield from source.starts_with("call:")):
            return False
        name, found = yield from text_until(source, "{", end)
        sink.begin(name.strip())
        if found == "{":
            found = yield from _Arguments(reading, quote, end).read()
        if found != end:
            yield from source.skip_space()
            yield from source.starts_with(end)
        return True

    return read


class _Arguments:
    """Arguments that are being read, from behind their first brace on."""

    def __init__(self, reading: Reading, quote: str, end: str) -> None:
        self._source = reading.source
        self._give = reading.sink.arguments
        self._quote = quote
        self._marks = (quote, end, '"', *_PUNCTUATION)
        self._open = "{"
        """The brackets that are open."""

    def read(self) -> Parsing[str | None]:
        """Read up to the closing brace, and return the mark that ended the arguments."""
        self._give("{")
        while self._open:
            text, mark = yield from text_until(self._source, *self._marks)
            if mark == ":":
                self._give(f'"{escaped(text.strip())}": ' if text.strip() else ": ")
                continue
            if mark is None:
                return None
            self._scalar(text.strip())
            if mark == self._quote:
                self._give('"')
                if (yield from self._source.until((mark,), self._quoted)) is None:
                    return None
                self._give('"')
            elif mark == '"':
                self._source.advance(-1)
                yield from pass_value(self._source, self._give)
            elif mark in _PUNCTUATION:
                self._punctuation(mark)
            else:
                return mark
        return None

    def _scalar(self, text: str) -> None:
        if text:
            self._give(text if is_json(text) else f'"{escaped(text)}"')

    def _quoted(self, text: str) -> None:
        self._give(escaped(text))

    def _punctuation(self, mark: str) -> None:
        self._give(", " if mark == "," else mark)
        if mark in "{[":
            self._open += mark
        elif mark in "}]":
            self._open = self._open[:-1]


GEMMA: Final = ToolForm(
    "gemma",
    Spelling(before_name=CALL + "call:", after_name="", after_arguments=CALL_END),
    handlers={CALL: _reader(_QUOTE, CALL_END)},
    markup=(CALL_END, _QUOTE),
)
FUNCTION_GEMMA: Final = ToolForm(
    "function-gemma",
    Spelling(before_name=FUNCTION_CALL + "call:", after_name="", after_arguments=FUNCTION_CALL_END),
    handlers={FUNCTION_CALL: _reader(_ESCAPE, FUNCTION_CALL_END)},
    markup=(FUNCTION_CALL_END, _ESCAPE),
)
