"""What people may pass to the Python API: each value is taken as it was meant, or refused by name.

Pure functions without a model: sizes they need are passed in. A refusal is an InvalidArgument that
says what was wrong, what it was and what it may be, before anything was loaded or computed.
"""

import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any, SupportsIndex

from corral.contract.checks import refuse
from corral.contract.sampling import SamplingParams
from corral.errors import InvalidArgument

_MESSAGES = "a list of messages, such as [{'role': 'user', 'content': 'Hello'}]"


def integer(field: str, value: object, *, low: int, high: int | None = None) -> int:
    """Return an integer, which may be NumPy's; a bool or a float is none.

    Raises:
        InvalidArgument: the value is no integer or out of range.
    """
    number = _index(value)
    if number is None or number < low or (high is not None and number > high):
        bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
        refuse(field, value if number is None else number, f"an integer {bounds}")
    return number


def integer_or_none(field: str, value: object, *, low: int, high: int | None = None) -> int | None:
    """Return an integer as `integer` does, or None, which stands for a default."""
    return None if value is None else integer(field, value, low=low, high=high)


def flag(field: str, value: object) -> bool:
    """Return True or False; what only counts as true, such as "no", is refused.

    Raises:
        InvalidArgument: the value is no bool.
    """
    if not isinstance(value, bool):
        refuse(field, value, "True or False")
    return value


def text(field: str, value: object, *, expected: str = "a text (str)") -> str:
    """Return a text; bytes are none, since nobody knows their encoding.

    Raises:
        InvalidArgument: the value is no str.
    """
    if not isinstance(value, str):
        refuse(field, value, expected)
    return value


def model_name(value: object) -> str | Path:
    """Return the name of a model, or the path of its file.

    Raises:
        InvalidArgument: the value is neither a str nor a Path.
    """
    if not isinstance(value, str | Path):
        refuse("the name of the model", value, "a str or a pathlib.Path")
    return value


def progress(value: object) -> None:
    """Accept something that can be called, or None.

    Raises:
        InvalidArgument: the value cannot be called.
    """
    if value is not None and not callable(value):
        refuse("progress", value, "a function of (stage, done, total), or None")


def tokens(
    field: str,
    given: object,
    *,
    vocabulary_size: int,
    shortest: int = 0,
    expected: str = "a list of tokens, which are integers",
) -> list[int]:
    """Return tokens as a list; they may come in any iterable, and be NumPy's integers.

    Raises:
        InvalidArgument: it is no iterable of integers of the vocabulary, or too short.
    """
    listed = _listed(field, given, expected)
    for place, token in enumerate(listed):
        number = token if type(token) is int else _index(token)
        if number is None or not 0 <= number < vocabulary_size:
            shown = token if number is None else number
            refuse(f"{field}[{place}]", shown, f"a token from 0 to {vocabulary_size - 1}")
        listed[place] = number
    if len(listed) < shortest:
        raise InvalidArgument(f"{field} has no tokens; expected at least {shortest}")
    return listed


def stop_strings(given: object) -> tuple[str, ...]:
    """Return stop strings; a single str is one of them.

    Raises:
        InvalidArgument: it is neither a str nor an iterable of them, or one is empty.
    """
    listed = [given] if isinstance(given, str) else _listed("stop", given, "a text or some texts")
    for place, stop in enumerate(listed):
        if not isinstance(stop, str) or not stop:
            refuse(f"stop[{place}]", stop, "a text of at least one character")
    return tuple(listed)


def sampling(value: object) -> SamplingParams:
    """Return sampling parameters; None stands for the defaults.

    Raises:
        InvalidArgument: the value is something else.
    """
    if value is None:
        return SamplingParams()
    if not isinstance(value, SamplingParams):
        refuse("sampling", value, "SamplingParams, such as SamplingParams(temperature=0.2)")
    return value


def messages(given: object) -> list[Mapping[str, object]]:
    """Return the messages of a chat, at least one, each with a role and a content.

    A content is a text or a list of parts; a message with `tool_calls` may do without. Whether a
    role is known is the template's to say.

    Raises:
        InvalidArgument: naming the message and what is wrong with it.
    """
    listed = _listed("messages", given, _MESSAGES)
    if not listed:
        refuse("messages", listed, "at least one message")
    for place, message in enumerate(listed):
        _check_message(f"messages[{place}]", message)
    return listed


def _check_message(field: str, message: object) -> None:
    if not isinstance(message, Mapping):
        refuse(field, message, "a mapping with 'role' and 'content'")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        refuse(f"{field} role", role, "a text such as 'user', 'assistant' or 'system'")
    if isinstance(content, str) or (content is None and message.get("tool_calls")):
        return
    if not isinstance(content, list | tuple):
        refuse(f"{field} content", content, "a text or a list of parts")
    for place, part in enumerate(content):
        if not isinstance(part, str | Mapping):
            refuse(f"{field} content[{place}]", part, "a text, or a mapping with 'type' and 'text'")


def _listed(field: str, given: Any, expected: str) -> list[Any]:
    """Return the items of an iterable, unless its items are not what anybody can have meant."""
    is_other = isinstance(given, str | bytes | bytearray | memoryview | Mapping)
    try:
        items = None if is_other else iter(given)
    except TypeError:  # also an array without dimensions
        items = None
    if items is None:
        refuse(field, given, expected)
    return list(items)


def _index(value: object) -> int | None:
    """Return a value as an int if it is an integer, and nothing that only converts to one."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        return operator.index(value)
    except TypeError:  # an array of more than one item, or of other items
        return None
