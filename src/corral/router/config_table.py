"""Takes tables of a configuration apart, and gathers every mistake with its line."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from corral.contract.checks import (
    check_integer,
    check_number,
    check_text,
    check_tuple,
    refuse,
    shown,
)
from corral.contract.sizes import parse_size
from corral.errors import InvalidArgument
from corral.router.toml_lines import Key, line_of

Check = Callable[[str, object], Any]
"""Takes a key's name and value; returns what is kept, or raises InvalidArgument."""
_MAX_BYTES = 1 << 60
_T = TypeVar("_T")


class Mistakes:
    """What is wrong with one file."""

    def __init__(self, path: Path, lines: dict[Key, int]) -> None:
        self.folder = path.absolute().parent
        self._name = path.name
        self._lines = lines
        self._found: list[tuple[int, str]] = []

    def add(self, key: Key, message: str) -> None:
        """Write down a mistake."""
        line = line_of(self._lines, key) or 1
        self._found.append((line, f"{self._name}:{line}: {message}"))

    def finish(self) -> None:
        """Raise if there is any.

        Raises:
            InvalidArgument: with all of them, in the order of the file.
        """
        if self._found:
            raise InvalidArgument("\n".join(text for _line, text in sorted(self._found)))


class Table:
    """One table: keys are taken, each by its check, and those that nobody knows are mistakes."""

    def __init__(self, mistakes: Mistakes, key: Key, values: Mapping[str, object]) -> None:
        self.mistakes = mistakes
        self.key = key
        self.values = values

    def table(self, name: str) -> "Table":
        """Return an inner table; an empty one where there is none."""
        key, value = (*self.key, name), self.values.get(name, {})
        if isinstance(value, dict):
            return Table(self.mistakes, key, value)
        self.mistakes.add(key, f"{dotted(key)} is {shown(value)}; expected a table")
        return Table(self.mistakes, key, {})

    def tables(self) -> Iterable["Table"]:
        """Yield all inner tables."""
        return [self.table(name) for name in self.values]

    def take(self, checks: Mapping[str, Check]) -> dict[str, Any]:
        """Return the values of the keys that are there, each as its check returns it."""
        taken = {}
        for name, value in self.values.items():
            if name not in checks:
                self._refuse_name(name, checks)
                continue
            try:
                taken[name] = checks[name](dotted((*self.key, name)), value)
            except InvalidArgument as error:
                self.mistakes.add((*self.key, name), str(error))
        return taken

    def take_all(self, check: Check) -> dict[str, Any]:
        """Return the values of all keys, which may be called anything."""
        return self.take(dict.fromkeys(self.values, check))

    def _refuse_name(self, name: str, known: Iterable[str]) -> None:
        near = difflib.get_close_matches(name, list(known), n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
        where = f"[{dotted(self.key)}]" if self.key else "the file"
        self.mistakes.add((*self.key, name), f"{where} has no key {name[:60]!r}: {hint}")


def dotted(key: Key) -> str:
    """Return the name of a key as people write it."""
    return ".".join(key)


def integer(low: int, high: int) -> Check:
    """Accept integers of low … high."""

    def check(name: str, value: object) -> object:
        check_integer(name, value, low=low, high=high)
        return value

    return check


def number(low: float, high: float, *, is_low_excluded: bool = False) -> Check:
    """Accept numbers of low … high, or of (low, high]."""

    def check(name: str, value: object) -> float:
        check_number(name, value, low=low, high=high, is_low_excluded=is_low_excluded)
        return float(value)  # type: ignore[arg-type]  # it was checked

    return check


def text(longest: int) -> Check:
    """Accept text that is not empty."""

    def check(name: str, value: object) -> object:
        check_text(name, value, shortest=1, longest=longest)
        if "\0" in str(value):
            refuse(name, value, "text without NUL")
        return value

    return check


def flag(name: str, value: object) -> bool:
    """Accept true and false."""
    if not isinstance(value, bool):
        refuse(name, value, "true or false")
    return value


def one_of(*choices: str) -> Check:
    """Accept one of a few words."""

    def check(name: str, value: object) -> object:
        if value not in choices:
            refuse(name, value, f"one of {', '.join(choices)}")
        return value

    return check


def several(of: Check, *, shortest: int = 0, longest: int, what: str) -> Check:
    """Accept a list, or one item that stands for a list of one."""

    def check(name: str, value: object) -> tuple[Any, ...]:
        listed = value if isinstance(value, list) else [value]
        items = check_tuple(name, listed, shortest=shortest, longest=longest, of=what)
        return tuple(of(f"{name}[{place}]", item) for place, item in enumerate(items))

    return check


def size(name: str, value: object) -> int:
    """Accept bytes, as a number or as text such as 24GiB."""
    if isinstance(value, str):
        try:
            value = parse_size(value)
        except InvalidArgument:
            refuse(name, value, 'a size such as "24GiB" or "512MiB"')
    check_integer(name, value, low=0, high=_MAX_BYTES)
    assert isinstance(value, int)
    return value
