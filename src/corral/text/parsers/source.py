"""The text of a reply as it arrives, and how a parser waits for more of it.

A parser is a generator that yields whenever it cannot go on without more text. What it does depends
on the text only, never on how it was cut into pieces.
"""

import functools
import re
from collections.abc import Callable, Generator
from typing import Final, TypeAlias, TypeVar

_T = TypeVar("_T")

Parsing: TypeAlias = Generator[None, None, _T]
"""A part of a parser: it yields when it needs more text and returns what it found."""

Take: TypeAlias = Callable[[str], None]

MAX_UNDECIDED: Final = 1 << 16
"""Characters that are kept until it is known what they are; longer ones are content."""


def drop(_text: str) -> None:
    """Take text that means nothing."""


class Source:
    """Text that has arrived and was not read yet."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._text = ""
        self._at = 0
        self._marks: list[int] = []
        self.is_ended = False

    def feed(self, text: str) -> None:
        """Add text; what was read and can not be asked for again is forgotten."""
        first = self._marks[0] if self._marks else self._at
        self._text = self._text[first:] + text
        self._at -= first
        self._marks = [mark - first for mark in self._marks]

    def mark(self) -> None:
        """Remember this place, so that `rewind` leads back to it, and read no further than allowed.

        Until a decision is made, the text seems to end MAX_UNDECIDED characters behind the first
        mark: what is longer cannot become a call.
        """
        self._marks.append(self._at)

    def decide(self) -> None:
        """Forget all places: what was read since is understood."""
        self._marks.clear()

    def rewind(self) -> None:
        """Read anew from the place that was remembered last."""
        self._at = self._marks.pop()

    def available(self) -> Parsing[str]:
        """Return the text that can be read now, at least a character; none at the end."""
        while self._at == len(self._text) and not self.is_ended:
            yield
        end = self._marks[0] + MAX_UNDECIDED if self._marks else len(self._text)
        return self._text[self._at : end]

    def advance(self, count: int) -> None:
        """Count characters as read."""
        self._at += count

    def peek(self) -> Parsing[str]:
        """Return the next character without reading it; none at the end."""
        return (yield from self.available())[:1]

    def skip_space(self) -> Parsing[str]:
        """Read white space; return the character behind it, none at the end."""
        while (char := (yield from self.peek())).isspace():
            self._at += 1
        return char

    def visible(self) -> Parsing[str]:
        """Return the next character that is no white space, nothing read; none at the end."""
        self.mark()
        char = yield from self.skip_space()
        self.rewind()
        return char

    def starts_with(self, *markers: str) -> Parsing[str | None]:
        """Read the longest of `markers` if the text goes on with one, and return it."""
        longest = max(map(len, markers))
        while True:
            text = self._text[self._at : self._at + longest]
            is_open = not self.is_ended and len(text) < longest
            if is_open and any(len(m) > len(text) and m.startswith(text) for m in markers):
                yield
                continue
            found = max((m for m in markers if text.startswith(m)), key=len, default=None)
            self._at += len(found or "")
            return found

    def until(self, markers: tuple[str, ...], take: Take) -> Parsing[str | None]:
        """Pass on text before the first of `markers`; read and return it, None at the end.

        The first is the one that starts first, the longest of those that start together.
        """
        whole, maybe = _patterns(markers)
        while True:
            found = (whole if self.is_ended else maybe).search(self._text, self._at)
            end = len(self._text) if found is None else found.start()
            if end > self._at:
                take(self._text[self._at : end])
            self._at = end
            if found is not None and found.lastgroup == "whole":
                self._at = found.end()
                return found.group()
            if found is None and self.is_ended:
                return None
            yield


def text_until(source: Source, *markers: str) -> Parsing[tuple[str, str | None]]:
    """Return the text before the first of `markers`, and which it was."""
    pieces: list[str] = []
    found = yield from source.until(markers, pieces.append)
    return "".join(pieces), found


@functools.lru_cache(maxsize=256)
def _patterns(markers: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return patterns of whole markers, and of those or of a beginning at the end of the text."""
    if not markers:
        never = re.compile(r"(?!)")
        return never, never
    ordered = sorted(markers, key=len, reverse=True)
    whole = "(?P<whole>" + "|".join(map(re.escape, ordered)) + ")"
    beginnings = {marker[:length] for marker in markers for length in range(1, len(marker))}
    longest = sorted(beginnings, key=len, reverse=True)
    if not longest:
        return re.compile(whole), re.compile(whole)
    maybe = "(?P<part>(?:" + "|".join(map(re.escape, longest)) + r")\Z)"
    return re.compile(whole), re.compile(f"{maybe}|{whole}")
