"""Find special tokens in text.

The longest token that starts at the leftmost place wins. What the tokens mean it does not know.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]
"""Where something begins and ends in a text."""

_WHITE_SPACE = re.compile(r"[ \t\n\v\f\r]*")


class SpecialTokens:
    """Tokens to be found by their text; the control tokens among them only where allowed."""

    def __init__(
        self,
        ids: Mapping[str, int],
        *,
        control: frozenset[int],
        strip_after: frozenset[int] = frozenset(),
    ) -> None:
        """Prepare to find the keys of `ids`.

        Args:
            control: tokens that are not found inside protected text.
            strip_after: tokens that swallow the white space behind them.
        """
        self._ids = dict(ids)
        self._control = control
        self._strip_after = strip_after
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        starts = "".join(map(re.escape, self._lengths))
        self._start = re.compile(f"[{starts}]" if starts else r"(?!)")

    def split(self, text: str, protected: Sequence[Span]) -> Iterator[str | int]:
        """Yield the parts of `text` in order: an id for each special token, the text between.

        Args:
            protected: spans, in order and apart, that no control token may touch.
        """
        done = at = 0
        while match := self._start.search(text, at):
            start = match.start()
            found = self._longest(text, start, protected)
            if found is None:
                at = start + 1
                continue
            token, end = found
            if start > done:
                yield text[done:start]
            yield token
            if token in self._strip_after:
                space = _WHITE_SPACE.match(text, end)
                end = space.end() if space else end
            done = at = end
        if done < len(text):
            yield text[done:]

    def _longest(self, text: str, start: int, protected: Sequence[Span]) -> Span | None:
        for length in self._lengths[text[start]]:
            token = self._ids.get(text[start : start + length])
            if token is None:
                continue
            end = start + length
            if token not in self._control or not _touches(protected, start, end):
                return token, end
        return None


def _touches(spans: Sequence[Span], start: int, end: int) -> bool:
    """Say whether `start` to `end` overlaps one of the sorted `spans`."""
    before = bisect_left(spans, (end,))
    return before > 0 and spans[before - 1][1] > start
