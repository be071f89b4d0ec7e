"""Control tokens spelled inside data: find them and put a sign behind their first character.

It knows no template and no ids, only how the tokens are spelled.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

_SIGNS = tuple(map(chr, range(0xF8B0, 0xF8D0)))  # for private use, free in practice


class Markup:
    """The spellings of control tokens."""

    def __init__(self, tokens: Iterable[str]) -> None:
        """Look for any of `tokens`."""
        self._tokens = tuple(filter(None, tokens))
        self._longest = max(map(len, self._tokens), default=0)
        self._by_first: dict[str, list[str]] = {}
        for token in self._tokens:
            self._by_first.setdefault(token[0], []).append(token)
        starts = "".join(map(re.escape, self._by_first))
        self._start = re.compile(f"[{starts}]" if starts else r"(?!)")

    def sign_for(self, data: object) -> str | None:
        """Return a character that `data` do not hold, or None where no text needs a sign."""
        texts = list(_texts(data))
        if not any(next(self._places(text), None) is not None for text in texts):
            return None
        return next((sign for sign in _SIGNS if not any(sign in text for text in texts)), _SIGNS[0])

    def marked(self, data: Any, sign: str) -> Any:
        """Return a copy of lists, mappings and texts with a sign wherever one is needed."""
        if isinstance(data, str):
            return self._marked_text(data.replace(sign, ""), sign)
        if isinstance(data, dict):
            return {self.marked(key, sign): self.marked(item, sign) for key, item in data.items()}
        if isinstance(data, list | tuple):
            return [self.marked(item, sign) for item in data]
        return data

    def _marked_text(self, text: str, sign: str) -> str:
        pieces, done = [], 0
        for place in self._places(text):
            pieces += [text[done : place + 1], sign]
            done = place + 1
        return "".join([*pieces, text[done:]])

    def _places(self, text: str) -> Iterator[int]:
        """Yield where a token begins, also one that only begins at the end of the text."""
        end = len(text.rstrip())
        for match in self._start.finditer(text):
            place = match.start()
            tail = text[place:end] if end - place < self._longest else ""
            for token in self._by_first[text[place]]:
                if text.startswith(token, place) or (tail and token.startswith(tail)):
                    yield place
                    break


def split_at_signs(text: str, sign: str) -> list[tuple[str, bool]]:
    """Return segments of `text` without signs; the characters before them are not to be parsed."""
    *pieces, rest = text.split(sign)
    segments: list[tuple[str, bool]] = []
    for piece in pieces:
        segments += [(piece[:-1], True), (piece[-1:], False)]
    return [segment for segment in (*segments, (rest, True)) if segment[0]]


def _texts(data: object) -> Iterator[str]:
    stack = [data]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            stack.extend(item)
            stack.extend(item.values())
        elif isinstance(item, list | tuple):
            stack.extend(item)
