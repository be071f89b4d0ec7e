"""Refuses values out of range, in one wording: field, got, expected.

Knows no message: `messages.py` says which field has which range.
"""

from typing import NoReturn

from corral.errors import InvalidArgument

_SHOWN_CHARACTERS = 60
_SHOWN_BITS = 128


def refuse(field: str, got: object, expected: str) -> NoReturn:
    """Raise InvalidArgument saying what the field holds and what it may hold."""
    raise InvalidArgument(f"{field} is {shown(got)}; expected {expected}", field=field)


def shown(value: object) -> str:
    """Describe a value briefly, whatever its size: it goes into a message, not into a log."""
    if isinstance(value, str | bytes) and len(value) > _SHOWN_CHARACTERS:
        return f"{value[:_SHOWN_CHARACTERS]!r} and {len(value) - _SHOWN_CHARACTERS} more"
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:
        return f"an integer of {value.bit_length()} bits"  # Python refuses to print very long ones
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    if isinstance(value, tuple | list | dict | set):
        return f"a {type(value).__name__} of {len(value)}"
    return f"of type {type(value).__name__}"


def check_integer(field: str, value: object, *, low: int, high: int) -> None:
    """Accept an integer of low…high; a bool or a float is none, even if it compares equal.

    Raises:
        InvalidArgument: the value is no integer or out of range.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        refuse(field, value, f"an integer from {low} to {high}")


def check_number(
    field: str, value: object, *, low: float, high: float, is_low_excluded: bool = False
) -> None:
    """Accept a finite int or float of low…high, or of (low, high] where low itself is excluded.

    Raises:
        InvalidArgument: the value is no number, not finite or out of range.
    """
    bounds = f"above {low:g} and up to {high:g}" if is_low_excluded else f"from {low:g} to {high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(field, value, f"a number {bounds}")
    # An int is compared as it is: a very long one has no float, yet it has an order.
    if not low <= value <= high or (is_low_excluded and value == low):
        refuse(field, value, f"a number {bounds}")


def check_text(field: str, value: object, *, shortest: int = 0, longest: int) -> None:
    """Accept text of shortest…longest characters.

    Raises:
        InvalidArgument: the value is no string or has another length.
    """
    if not isinstance(value, str) or not shortest <= len(value) <= longest:
        refuse(field, value, f"text of {shortest} to {longest} characters")


def check_tuple(
    field: str, value: object, *, shortest: int = 0, longest: int, of: str
) -> tuple[object, ...]:
    """Return a list or tuple of shortest…longest items as a tuple.

    Raises:
        InvalidArgument: the value is no list or tuple, or has another length.
    """
    if not isinstance(value, list | tuple) or not shortest <= len(value) <= longest:
        refuse(field, value, f"{shortest} to {longest} {of}")
    return tuple(value)
