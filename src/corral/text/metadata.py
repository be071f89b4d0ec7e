"""Typed, checked access to the `tokenizer.ggml.*` keys of a GGUF file's metadata.

It trusts nothing: a key may be absent, of another type, short, or hold an id that does not exist.
What the keys mean for tokenization it does not know.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from corral.errors import TokenizerError
from corral.log import logger

log = logger(__name__)

PREFIX: Final = "tokenizer.ggml."
MAX_TOKENS: Final = 1 << 22
"""No published vocabulary has more than 2^18 tokens; a larger list is an attack on memory."""
MAX_MERGES: Final = 1 << 22


class TokenizerMetadata:
    """Read tokenizer settings by their name without the common prefix."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata

    def text(self, name: str, default: str) -> str:
        """Return a string, or `default` where the key is absent.

        Raises:
            TokenizerError: the value is not a string.
        """
        value = self._metadata.get(PREFIX + name, default)
        if not isinstance(value, str):
            raise TokenizerError(f"{PREFIX}{name} is {_describe(value)}, expected a string.")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return a truth value, or `default` where the key is absent.

        Raises:
            TokenizerError: the value is neither a bool nor 0 or 1.
        """
        value = self._metadata.get(PREFIX + name, default)
        if not isinstance(value, int) or value not in (0, 1):
            raise TokenizerError(f"{PREFIX}{name} is {_describe(value)}, expected true or false.")
        return bool(value)

    def token_id(self, *names: str, default: int | None, num_tokens: int) -> int | None:
        """Return the id of the first key of `names` that holds one inside the vocabulary.

        An id outside (also −1, read as 4294967295) is no reason to refuse a model: many files have
        one for a token they never use. It is logged and ignored.
        """
        for name in names:
            value = self._metadata.get(PREFIX + name)
            if value is None:
                continue
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < num_tokens:
                return value
            log.warning(
                "%s%s is %s, outside the %d tokens: ignored",
                PREFIX,
                name,
                _describe(value),
                num_tokens,
            )
        return default if default is not None and default < num_tokens else None

    def tokens(self) -> list[str]:
        """Return the texts of all tokens; bytes that are not UTF-8 become lone surrogates.

        Empty texts get a name of their own, since some converters leave holes.

        Raises:
            TokenizerError: the list is absent, empty, too long, not of strings or has duplicates.
        """
        items = self._list("tokens")
        if items is None or not items:
            state = "absent" if items is None else "empty"
            raise TokenizerError(f"{PREFIX}tokens is {state}: the file has no vocabulary to use.")
        tokens = _strings(items, PREFIX + "tokens", MAX_TOKENS)
        if "" in tokens:
            tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
        if len(set(tokens)) != len(tokens):
            raise TokenizerError(_duplicate(tokens))
        return tokens

    def merges(self) -> list[str] | None:
        """Return the merges as written, first means strongest, or None where there are none.

        Raises:
            TokenizerError: the list is too long or not of strings.
        """
        items = self._list("merges")
        return None if items is None else _strings(items, PREFIX + "merges", MAX_MERGES)

    def scores(self, num_tokens: int) -> list[float] | None:
        """Return a score for each token, or None where there are none.

        Raises:
            TokenizerError: there are fewer scores than tokens, or one is not a number.
        """
        items = self._numbers("scores", num_tokens, (int, float))
        if items is not None and any(map(math.isnan, items)):
            raise TokenizerError(
                f"{PREFIX}scores holds a NaN, expected numbers that can be sorted."
            )
        return items

    def token_types(self, num_tokens: int) -> list[int] | None:
        """Return a type for each token, or None where there are none.

        Raises:
            TokenizerError: there are fewer types than tokens, or one is not an integer.
        """
        items = self._numbers("token_type", num_tokens, (int,))
        return None if items is None else list(map(int, items))

    def _list(self, name: str) -> Sequence[object] | None:
        value = self._metadata.get(PREFIX + name)
        if value is None:
            return None
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            raise TokenizerError(f"{PREFIX}{name} is {_describe(value)}, expected a list.")
        return value

    def _numbers(self, name: str, num_tokens: int, kinds: tuple[type, ...]) -> list[float] | None:
        items = self._list(name)
        if items is None:
            return None
        if len(items) < num_tokens:
            raise TokenizerError(
                f"{PREFIX}{name} has {len(items)} items for {num_tokens} tokens: the file is "
                "damaged or was converted wrongly."
            )
        found = set(map(type, items))
        if not found <= set(kinds):
            names = ", ".join(sorted(kind.__name__ for kind in found))
            raise TokenizerError(f"{PREFIX}{name} holds {names}, expected numbers.")
        return [*items[:num_tokens]]  # type: ignore[list-item]


def _strings(items: Sequence[object], name: str, limit: int) -> list[str]:
    if len(items) > limit:
        raise TokenizerError(f"{name} has {len(items)} items, more than the {limit} allowed.")
    found = set(map(type, items))
    if found == {str} or not found:
        return [*items]  # type: ignore[list-item]
    if found <= {str, bytes}:
        return [_text(item) for item in items]
    names = ", ".join(sorted(kind.__name__ for kind in found))
    raise TokenizerError(f"{name} holds {names}, expected strings.")


def _text(item: object) -> str:
    return item.decode("utf-8", "surrogateescape") if isinstance(item, bytes) else str(item)


def _duplicate(tokens: list[str]) -> str:
    seen: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if token in seen:
            return (
                f"tokens {seen[token]} and {index} have the same text {token[:40]!r}; "
                "expected every text once."
            )
        seen[token] = index
    raise AssertionError("there is no duplicate")


def _describe(value: object) -> str:
    shown = repr(value) if isinstance(value, int | float) else type(value).__name__
    return shown if len(shown) < 40 else shown[:37] + "…"
