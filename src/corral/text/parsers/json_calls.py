"""Calls written as JSON objects {"name": …, "arguments": …}, one or a list of them."""

from corral.text.parsers.deltas import Sink
from corral.text.parsers.json_text import decoded, is_json, pass_value, read_string, read_value
from corral.text.parsers.source import Parsing, Source

_ARGUMENTS = ("arguments", "parameters")
_NAMES = ("name", "function")
_BESIDE = ("id", "type", "call_id", "tool_call_id", "index")
"""Members that may stand before the name; any other one there means that the object is no call."""


def read_call(source: Source, sink: Sink) -> Parsing[bool]:
    """Read an object as a call; return whether it is one.

    The call begins as soon as its name is known, and then stays one, whatever follows: arguments
    are passed on as they come. Before that nothing is given, and the source leads back to where it
    was if the object is no call.
    """
    source.mark()
    call = _Call(source, sink)
    if (yield from source.skip_space()) == "{":
        source.advance(1)
        yield from call.members()
    if not call.has_begun:
        source.rewind()
    return call.has_begun


def read_calls(source: Source, sink: Sink) -> Parsing[bool]:
    """Read a call or a list of them; return whether there was any."""
    source.mark()
    if (yield from source.skip_space()) != "[":
        source.rewind()
        return (yield from read_call(source, sink))
    source.advance(1)
    if not (yield from read_call(source, sink)):
        source.rewind()
        return False
    while (yield from source.skip_space()) == ",":
        source.advance(1)
        if not (yield from read_call(source, sink)):
            return True
    yield from source.starts_with("]")
    return True


class _Call:
    """One object that is being read."""

    def __init__(self, source: Source, sink: Sink) -> None:
        self._source = source
        self._sink = sink
        self._early: str | None = None
        """Arguments that came before the name."""
        self._has_arguments = False
        self.has_begun = False

    def members(self) -> Parsing[None]:
        """Read the object's members and its end, as far as they are right."""
        source = self._source
        if (yield from source.skip_space()) == "}":
            return
        while (key := (yield from read_string(source))) is not None:
            if (yield from source.skip_space()) != ":":
                return
            source.advance(1)
            if not (yield from self._member(key)):
                return
            following = yield from source.skip_space()
            if following not in (",", "}"):
                return
            source.advance(1)
            if following == "}":
                self._end()
                return

    def _member(self, key: str) -> Parsing[bool]:
        if key in _NAMES and not self.has_begun:
            name = yield from read_string(self._source)
            if not name:
                return False
            self._begin(name)
            return True
        if key in _ARGUMENTS and not self._has_arguments:
            self._has_arguments = True
            return (yield from self._arguments())
        if not self.has_begun and key not in _BESIDE:
            return False
        return (yield from read_value(self._source)) is not None

    def _begin(self, name: str) -> None:
        self._source.decide()
        self.has_begun = True
        self._sink.begin(name)
        if self._early is not None:
            self._sink.arguments(as_object(self._early))

    def _arguments(self) -> Parsing[bool]:
        if not self.has_begun:
            self._early = yield from read_value(self._source)
            return self._early is not None
        if (yield from self._source.skip_space()) == "{":
            return (yield from pass_value(self._source, self._sink.arguments))
        text = yield from read_value(self._source)
        self._sink.arguments(as_object(text or ""))
        return text is not None

    def _end(self) -> None:
        if self.has_begun and not self._has_arguments:
            self._sink.arguments("{}")


def as_object(text: str) -> str:
    """Return arguments as the text of an object: some models write it into a string, or null."""
    inner = decoded(text) if text.startswith('"') else None
    if inner is not None and inner.lstrip().startswith("{") and is_json(inner):
        return inner.strip()
    return "{}" if text in ("null", "", '""') else text
