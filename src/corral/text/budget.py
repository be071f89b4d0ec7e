"""What one rendering of a template may use: time, bytes, and the size of any one value.

Everything a template can do is cheap on its own or asks here first, so a hostile template ends
within its deadline and without filling memory. It knows no template engine.
"""

import sys
import time
from collections.abc import ItemsView, KeysView, ValuesView
from typing import Final, TypeVar

MAX_TEXT: Final = 16 << 20
"""Characters of one text, also of the whole output: more than any context holds."""
MAX_ITEMS: Final = 1 << 20
"""Items of one list, characters of a text that is taken apart."""
MAX_BYTES: Final = 256 << 20
"""Bytes made by one rendering, whether still alive or not."""
MAX_INT_BITS: Final = 4096
MAX_WIDTH: Final = 9_999
"""Columns a value may be padded to."""

_NODE: Final = 16  # what a value inside a container counts for beside its text
_SMALL: Final = 256  # bytes charged for a value whose size is not asked

Sequences: Final = (list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)
Containers: Final = (*Sequences, dict)

_T = TypeVar("_T")


class Refused(Exception):
    """A template asked for something it does not get."""


class Rejected(Exception):
    """A template calls `raise_exception` about what it was given."""


class Budget:
    """Time and memory that are left; used by one rendering at a time."""

    def __init__(self) -> None:
        """Start with nothing left; `start` fills it."""
        self._deadline = 0.0
        self._bytes = 0

    def start(self, seconds: float) -> None:
        """Begin a rendering that may take this long."""
        self._deadline = time.monotonic() + seconds
        self._bytes = MAX_BYTES

    def tick(self) -> None:
        """Account for one step.

        Raises:
            Refused: the time is up.
        """
        if time.monotonic() > self._deadline:
            raise Refused("it takes too long")

    def charge(self, size_bytes: int) -> None:
        """Account for one step and for memory that it takes.

        Raises:
            Refused: time or memory is used up.
        """
        self._bytes -= size_bytes
        if self._bytes < 0:
            raise Refused(f"it needs more than {MAX_BYTES >> 20} MiB")
        self.tick()

    def charged(self, value: _T) -> _T:
        """Account for a new value and return it.

        Raises:
            Refused: the value is too large, or time or memory is used up.
        """
        if isinstance(value, str):
            check_length(len(value))
        elif isinstance(value, Containers):
            check_items(len(value))
        elif isinstance(value, int):
            check_int(value)
        else:
            self.charge(_SMALL)
            return value
        self.charge(sys.getsizeof(value))
        return value

    def measure(self, value: object, *, plain: bool = False) -> int:
        """Return the size of a value as text, counting what it shares as often as it is reached.

        A list that holds another twice, that one a third twice, and so on, is small in memory, but
        to write, compare or hash it takes for ever.

        Args:
            plain: refuse what is no text, number, list or mapping.

        Raises:
            Refused: it is larger than a text may be.
        """
        total, stack = 0, [value]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                total += len(item)
            elif isinstance(item, Containers):
                total += 2 * _NODE * len(item)
                check_length(total)
                self.tick()
                stack.extend(item)
                if isinstance(item, dict):
                    stack.extend(item.values())
            elif plain and not isinstance(item, int | float | None):
                raise Refused(f"a {type(item).__name__} inside a list cannot be written as text")
            total += _NODE
            check_length(total)
        self.tick()
        return total


def check_length(length: int) -> None:
    """Raise Refused where a text would be too long."""
    if length > MAX_TEXT:
        raise Refused(f"it makes a text of more than {MAX_TEXT} characters")


def check_items(count: int) -> None:
    """Raise Refused where a list would be too long."""
    if count > MAX_ITEMS:
        raise Refused(f"it makes a list of more than {MAX_ITEMS} items")


def check_width(width: object) -> None:
    """Raise Refused where a value would be padded too far."""
    if isinstance(width, int) and width > MAX_WIDTH:
        raise Refused(f"it pads a value to more than {MAX_WIDTH} characters")


def check_int(value: int) -> None:
    """Raise Refused where a number is too large."""
    check_bits(value.bit_length())


def check_bits(count: int) -> None:
    """Raise Refused where a number would have too many bits."""
    if count > MAX_INT_BITS:
        raise Refused(f"it computes a number of more than {MAX_INT_BITS} bits")
