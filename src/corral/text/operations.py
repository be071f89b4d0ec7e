"""Operators, methods and filters of templates, each bounded before it runs.

They behave as Python's and Jinja's do. They know no template engine.
"""

import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from corral.text.budget import (
    MAX_WIDTH,
    Budget,
    Containers,
    Refused,
    check_bits,
    check_int,
    check_items,
    check_length,
    check_width,
)

Value = Any
"""What a template computes with: anything of Python's."""

_COMPARISONS: Final[dict[str, Callable[[Value, Value], bool]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
}
_LONG_TEXT = 4096
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_PERCENT = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(\*|\d*)(?:\.(\*|\d*))?")
_MAX_INDENT = 32


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


METHODS: Final[Mapping[type, frozenset[str]]] = {
    str: _names(
        "capitalize casefold center count endswith find format format_map index isalnum isalpha "
        "isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle "
        "isupper join ljust lower lstrip partition removeprefix removesuffix replace rfind rindex "
        "rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title upper "
        "zfill"
    ),
    dict: _names("copy get items keys values"),
    list: _names("copy count index"),
    tuple: _names("count index"),
    float: _names("is_integer"),
}
"""Methods of Python's own types that a template may call."""


class Operations:
    """The operations of one environment, which share its budget."""

    def __init__(self, budget: Budget, *, blank: type) -> None:
        """Charge everything to `budget`; values of type `blank` know how to write themselves."""
        self.budget = budget
        self._blank = blank

    def text(self, value: Value) -> str:
        """Return a value as it is written in a text."""
        if isinstance(value, Containers):
            if not isinstance(value, list | tuple | dict):
                value = list(value)
            self.budget.measure(value, plain=True)
            return self.budget.charged(str(value))
        self.budget.charge(64)
        if isinstance(value, str | int | float | None | self._blank):
            return str(value)
        return f"<{type(value).__name__}>"

    def joined(self, pieces: Iterable[str]) -> str:
        """Return texts put together."""
        pieces = pieces if isinstance(pieces, list) else list(pieces)
        check_length(sum(map(len, pieces)))
        return self.budget.charged("".join(pieces))

    def concatenated(self, values: Iterable[Value]) -> str:
        """Return values put together as text: the operator ~."""
        return self.joined([self.text(value) for value in values])

    def listed(self, value: Value) -> list[Value]:
        """Return the items of something, in a list."""
        if isinstance(value, str):
            check_items(len(value))
        items = []
        for item in value:
            self.budget.tick()
            items.append(item)
            check_items(len(items))
        return self.budget.charged(items)

    def compare(self, left: Value, name: str, right: Value) -> bool:
        """Compare two values; `name` is Jinja's for the operator."""
        nested = isinstance(left, Containers), isinstance(right, Containers)
        if name in ("in", "notin"):
            if nested[1] and (nested[0] or (isinstance(left, str) and len(left) > _LONG_TEXT)):
                self.budget.measure(left)
                self.budget.measure(right)
            return (left in right) == (name == "in")
        if all(nested) and (name not in ("eq", "ne") or len(left) == len(right)):
            self.budget.measure(left)
            self.budget.measure(right)
        return bool(_COMPARISONS[name](left, right))

    def binary(self, name: str, left: Value, right: Value, plain: Callable[..., Value]) -> Value:
        """Apply an arithmetic operator, of which `plain` is Python's."""
        if name == "%" and isinstance(left, str):
            self._check_percent(left, right)
        elif name == "*":
            _check_product(left, right)
        elif name == "+" and isinstance(left, list | tuple) and isinstance(right, list | tuple):
            check_items(len(left) + len(right))
        elif name == "+" and isinstance(left, str) and isinstance(right, str):
            check_length(len(left) + len(right))
        elif name == "**" and isinstance(left, int) and isinstance(right, int):
            check_bits(left.bit_length() * abs(right))
        return self.budget.charged(plain(left, right))

    def check_method(self, owner: Value, name: str, args: tuple[Value, ...]) -> tuple[Value, ...]:
        """Check a call of a method of Python's own types and return its arguments."""
        kind = next((kind for kind in METHODS if isinstance(owner, kind)), None)
        if kind is None or name not in METHODS[kind]:
            raise Refused(f"{type(owner).__name__}.{name}() is not for templates")
        for argument in args:
            if isinstance(argument, Containers):
                self.budget.measure(argument)
        if isinstance(owner, list | tuple) and args:
            self.budget.measure(owner)
        if name in ("center", "ljust", "rjust", "zfill"):
            check_width(args[0] if args else None)
        elif name == "replace":
            check_replacement(owner, *args[:2])
        elif name == "join" and args:
            pieces = self.listed(args[0])
            check_length(sum(len(piece) + len(owner) for piece in pieces if isinstance(piece, str)))
            return (pieces,)
        elif name in ("split", "rsplit"):
            separator = args[0] if args else None
            if separator is None or separator == "":
                check_items(len(owner) // 2)
            else:
                check_items(owner.count(separator))
        elif name == "splitlines":
            self._check_lines(owner)
        return args

    def tojson(
        self,
        value: Value,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Write a value as JSON, by default on one line and without escaping letters."""
        size = self.budget.measure(value)
        if indent is not None:
            columns = len(indent) if isinstance(indent, str) else int(indent)
            if columns > _MAX_INDENT:
                raise Refused(f"it indents JSON by more than {_MAX_INDENT} columns")
            check_length(size * max(1, columns) * _depth(value) // 16)
        if separators is not None and max(map(len, separators)) > _MAX_INDENT:
            raise Refused("it has long separators in JSON")
        return self.budget.charged(
            json.dumps(
                value,
                ensure_ascii=bool(ensure_ascii),
                indent=indent,
                separators=separators,
                sort_keys=bool(sort_keys),
            )
        )

    def join(self, value: Value, separator: Value = "") -> str:
        """Put the items of a list together as text."""
        pieces = [self.text(item) for item in self.listed(value)]
        text = self.text(separator)
        check_length(sum(map(len, pieces)) + len(text) * len(pieces))
        return self.budget.charged(text.join(pieces))

    def total(self, items: list[Value], start: Value = 0) -> Value:
        """Add numbers."""
        for item in (*items, start):
            if not isinstance(item, int | float):
                raise Refused(f"sum adds numbers, not {type(item).__name__}")
        return self.budget.charged(sum(items, start))

    def replace(self, value: Value, old: str, new: str, count: int | None = None) -> str:
        """Replace a part of a text."""
        text, old, new = self.text(value), self.text(old), self.text(new)
        check_replacement(text, old, new)
        return self.budget.charged(text.replace(old, new, -1 if count is None else count))

    def indent(
        self, value: Value, width: int | str = 4, first: bool = False, blank: bool = False
    ) -> str:
        """Put spaces in front of the lines of a text, but the first and empty ones."""
        text = self.text(value)
        lead = width if isinstance(width, str) else " " * min(max(width, 0), MAX_WIDTH)
        check_length(len(text) + (text.count("\n") + 1) * len(lead))
        self._check_lines(text)
        lines = (text + "\n").splitlines()  # so that an empty last line counts
        rest = [lead + line if line or blank else line for line in lines[1:]]
        out = "\n".join([*lines[:1], *rest])
        return self.budget.charged(lead + out if first else out)

    def format(self, value: Value, *args: Value, **kwargs: Value) -> str:
        """Format a text by the operator %."""
        if args and kwargs:
            raise Refused("format takes values by place or by name, not both")
        return str(self.binary("%", self.text(value), kwargs or args, operator.mod))

    def center(self, value: Value, width: int = 80) -> str:
        """Put spaces around a text."""
        check_width(width)
        return self.budget.charged(self.text(value).center(width))

    def rounded(self, value: Value, precision: int = 0, method: str = "common") -> Value:
        """Round a number to some decimal places: common, ceil or floor."""
        if abs(precision) > 30 or (isinstance(value, int) and value.bit_length() > 64):
            raise Refused("it rounds to more than 30 places")
        if method == "common":
            return round(value, precision)
        if method not in ("ceil", "floor"):
            raise Refused(f"{method!r} is no method of rounding")
        factor = 10**precision
        return getattr(math, method)(value * factor) / factor

    def _check_lines(self, text: str) -> None:
        check_items(sum(map(text.count, _LINE_ENDS)))

    def _check_percent(self, template: str, values: Value) -> None:
        parts: Iterable[Value] = values if isinstance(values, tuple) else (values,)
        if isinstance(values, dict):
            parts = values.values()
        longest = max((self.budget.measure(part, plain=True) for part in parts), default=0)
        total = len(template)
        for width, precision in _PERCENT.findall(template):
            for columns in (width, precision):
                if columns == "*" or len(columns) > 5:
                    raise Refused(f"it pads a value to more than {MAX_WIDTH} characters")
                total += int(columns or 0)
            total += longest
            check_length(total)


def check_replacement(text: str, old: Value = "", new: Value = "") -> None:
    """Raise Refused where replacing `old` by `new` makes a text too long."""
    if isinstance(old, str) and isinstance(new, str) and len(new) > len(old):
        check_length(len(text) + text.count(old) * (len(new) - len(old)))


def _check_product(left: Value, right: Value) -> None:
    if isinstance(right, str | list | tuple):
        left, right = right, left
    if isinstance(left, str) and isinstance(right, int):
        check_length(len(left) * right)
    elif isinstance(left, list | tuple) and isinstance(right, int):
        check_items(len(left) * right)
    elif isinstance(left, int) and isinstance(right, int):
        check_int(left)
        check_int(right)


def _depth(value: Value) -> int:
    """Return how deep lists and mappings are nested."""
    depth, level = 0, [value]
    while level:
        depth += 1
        below: list[Value] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list | tuple):
                below.extend(item)
            check_items(len(below))
        level = below
    return depth
