"""JSON that arrives in pieces: where a value ends, without reading what it says."""

import json
import re
from typing import Final

from corral.text.parsers.source import Parsing, Source, Take

_STRUCTURE = re.compile(r'["\[\]{}]')
_IN_STRING = re.compile(r'["\\]')
_CLOSERS: Final = {"{": "}", "[": "]"}
_SCALAR_END = re.compile(r"[\s,:\]}\[{\"]")


class JsonScanner:
    """Finds the end of an object, a list or a string; knows strings, escapes and brackets."""

    def __init__(self) -> None:
        """Start before the value."""
        self._closers: list[str] = []
        self._is_in_string = False
        self._is_escaped = False
        self.is_broken = False
        """Whether a bracket was closed that was not open."""

    def scan(self, text: str) -> int | None:
        """Return how many characters of `text` belong to the value; None if it goes on."""
        at = 0
        while at < len(text):
            if self._is_escaped:
                self._is_escaped = False
                at += 1
                continue
            pattern = _IN_STRING if self._is_in_string else _STRUCTURE
            found = pattern.search(text, at)
            if found is None:
                return None
            at = found.end()
            if self._step(found.group()):
                return at
        return None

    def _step(self, char: str) -> bool:
        """Note a character of structure; return whether the value has ended."""
        if self._is_in_string:
            self._is_escaped = char == "\\"
            self._is_in_string = self._is_escaped
            return not self._is_in_string and not self._closers
        if char == '"':
            self._is_in_string = True
            return False
        if char in _CLOSERS:
            self._closers.append(_CLOSERS[char])
            return False
        self.is_broken = not self._closers or self._closers.pop() != char
        return self.is_broken or not self._closers


def pass_value(source: Source, take: Take) -> Parsing[bool]:
    """Pass on the text of a value as it comes; return whether it came to a proper end."""
    first = yield from source.skip_space()
    if first in ("{", "[", '"'):
        scanner = JsonScanner()
        while text := (yield from source.available()):
            end = scanner.scan(text)
            take(text if end is None else text[:end])
            source.advance(len(text) if end is None else end)
            if end is not None:
                return not scanner.is_broken
        return False
    return (yield from _pass_scalar(source, take))


def read_value(source: Source) -> Parsing[str | None]:
    """Return the text of a value, or None where it is broken or does not end."""
    pieces: list[str] = []
    is_whole = yield from pass_value(source, pieces.append)
    return "".join(pieces) if is_whole else None


def read_string(source: Source) -> Parsing[str | None]:
    """Return what a JSON string says, or None if none is there."""
    if (yield from source.skip_space()) != '"':
        return None
    text = yield from read_value(source)
    return None if text is None else decoded(text)


def decoded(text: str) -> str | None:
    """Return what the text of a JSON string says, or None if it is none; line ends may be raw."""
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        return None
    return value if isinstance(value, str) and _is_text(value) else None


def is_json(text: str) -> bool:
    """Say whether a text is JSON as the standard has it."""
    try:
        json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        return False
    return True


def escaped(text: str) -> str:
    """Return text as it stands inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _refused(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _is_text(value: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in value)


def _pass_scalar(source: Source, take: Take) -> Parsing[bool]:
    length = 0
    while text := (yield from source.available()):
        found = _SCALAR_END.search(text)
        end = len(text) if found is None else found.start()
        take(text[:end])
        source.advance(end)
        length += end
        if found is not None:
            return length > 0
    return length > 0
