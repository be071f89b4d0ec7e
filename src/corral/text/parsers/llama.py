"""Calls of Llama 3: the whole reply is an object, or code follows `<|python_tag|>`."""

from typing import Final

from corral.text.parsers.forms import Reading, Spelling, ToolForm
from corral.text.parsers.json_calls import read_call
from corral.text.parsers.json_text import escaped
from corral.text.parsers.source import Parsing

PYTHON: Final = "<|python_tag|>"


def _read_objects(reading: Reading, _opening: str = "") -> Parsing[bool]:
    """Read one object after the other, a semicolon between them."""
    source = reading.source
    if not (yield from read_call(source, reading.sink)):
        return False
    while (yield from source.skip_space()) == ";":
        source.advance(1)
        if not (yield from read_call(source, reading.sink)):
            break
    return True


def _read_python(reading: Reading, _opening: str) -> Parsing[bool]:
    """Read objects, or else code, which is a call of a tool named python."""
    source, sink = reading.source, reading.sink
    if (yield from source.skip_space()) == "{" and (yield from _read_objects(reading)):
        return True
    sink.begin("python")
    sink.arguments('{"code": "')
    yield from source.until((), lambda text: sink.arguments(escaped(text)))
    sink.arguments('"}')
    return True


LLAMA: Final = ToolForm(
    "llama",
    Spelling(
        before_name='{"name": "',
        after_name='", "parameters": ',
        after_arguments="}",
        between="; ",
    ),
    handlers={PYTHON: _read_python},
    at_start=_read_objects,
)
