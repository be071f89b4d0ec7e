"""Typed reads of a model's metadata: the right kind of value, or an error that names the key.

Knows no key of any architecture; `general.architecture` alone, because every other name starts
with it.
"""

import builtins
import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from corral.errors import InvalidModelFile
from corral.gguf.values import Array, Scalar, Value, ValueType, make_value

_ARCHITECTURE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_BYTES: Final = (ValueType.UINT8, ValueType.INT8)


class Metadata:
    """The metadata of one file, read by key and type.

    Each read takes a default for an absent key; without one the key is required. Reads raise
    `InvalidModelFile` for an absent key, another type, or a value out of range.
    """

    __slots__ = ("_name", "_values")

    def __init__(self, values: Mapping[str, Value], *, name: builtins.str = "metadata") -> None:
        """Wrap the values of the file called `name` in messages."""
        self._values = MappingProxyType(dict(values))
        self._name = name

    @classmethod
    def of(cls, values: Mapping[str, Scalar | Sequence[Scalar] | Value]) -> "Metadata":
        """Build metadata from Python values, typed as converters type them."""
        return cls({key: make_value(value) for key, value in values.items()})

    @property
    def name(self) -> builtins.str:
        """What messages call the file."""
        return self._name

    def replacing(self, key: builtins.str, value: Scalar) -> "Metadata":
        """Return the same with another value of a key, or with a key more."""
        return Metadata({**self._values, key: make_value(value)}, name=self._name)

    def __contains__(self, key: object) -> builtins.bool:
        """Return whether the file has this key."""
        return key in self._values

    def __iter__(self) -> Iterator[builtins.str]:
        """Iterate over the keys in the order of the file."""
        return iter(self._values)

    def __len__(self) -> builtins.int:
        """Return the number of keys."""
        return len(self._values)

    def value(self, key: builtins.str) -> Value:
        """Return a value with its type in the file.

        Raises:
            InvalidModelFile: if the key is absent; the message names keys that look alike.
        """
        try:
            return self._values[key]
        except KeyError:
            near = difflib.get_close_matches(key, self._values, n=3)
            hint = f"; it has {', '.join(near)}" if near else ""
            raise InvalidModelFile(f"{self._name}: metadata has no {key}{hint}") from None

    def plain(self, prefix: builtins.str = "") -> dict[builtins.str, object]:
        """Return the values whose key starts so, as plain Python values; arrays become lists."""
        contents = {key: v.content for key, v in self._values.items() if key.startswith(prefix)}
        return {
            key: content.values() if isinstance(content, Array) else content
            for key, content in contents.items()
        }

    @property
    def architecture(self) -> builtins.str:
        """The name every architecture key starts with; safe to look up and to print."""
        name = self.str("general.architecture")
        if not _ARCHITECTURE.fullmatch(name):
            raise self._wrong("general.architecture", "a short name of letters, digits, _ . -")
        return name

    def int(
        self,
        key: builtins.str,
        default: builtins.int | None = None,
        *,
        minimum: builtins.int = 0,
        maximum: builtins.int | None = None,
    ) -> builtins.int:
        """Return an integer (16 bits or wider in the file) within the bounds."""
        if default is not None and key not in self._values:
            return default
        number = self._integer(key, self.value(key))
        if number < minimum or (maximum is not None and number > maximum):
            bound = f"at least {minimum}" if number < minimum else f"at most {maximum}"
            raise self._wrong(key, bound)
        return number

    def float(self, key: builtins.str, default: builtins.float | None = None) -> builtins.float:
        """Return a finite floating-point number (an integer in the file will do)."""
        if default is not None and key not in self._values:
            return default
        value = self.value(key)
        if not (value.type.is_float or value.type.is_integer):
            raise self._wrong(key, "a number")
        number = builtins.float(value.content)  # type: ignore[arg-type]
        if not math.isfinite(number):
            raise self._wrong(key, "a finite number")
        return number

    def str(self, key: builtins.str, default: builtins.str | None = None) -> builtins.str:
        """Return a string."""
        if default is not None and key not in self._values:
            return default
        content = self.value(key).content
        if not isinstance(content, builtins.str):
            raise self._wrong(key, "a string")
        return content

    def bool(self, key: builtins.str, default: builtins.bool | None = None) -> builtins.bool:
        """Return a truth value."""
        if default is not None and key not in self._values:
            return default
        content = self.value(key).content
        if not isinstance(content, builtins.bool):
            raise self._wrong(key, "a bool")
        return content

    def length(self, key: builtins.str, default: builtins.int | None = None) -> builtins.int:
        """Return how many elements an array has, also where its values were skipped."""
        if default is not None and key not in self._values:
            return default
        return len(self._array(key, "an array"))

    def ints(
        self,
        key: builtins.str,
        default: Sequence[builtins.int] | None = None,
        *,
        count: builtins.int | None = None,
        minimum: builtins.int = 0,
    ) -> tuple[builtins.int, ...]:
        """Return integers: an array, or with `count` also one integer repeated so often.

        With `count`, an array of another length is refused.
        """
        if default is not None and key not in self._values:
            return tuple(default)
        value = self.value(key)
        if count is not None and not isinstance(value.content, Array):
            return (self.int(key, minimum=minimum),) * count
        array = self._array(key, "an array of integers", count)
        if not array.element_type.is_integer:
            raise self._wrong(key, "an array of integers")
        numbers = tuple(n for n in array.values() if isinstance(n, builtins.int))
        if numbers and min(numbers) < minimum:
            raise self._wrong(key, f"integers of at least {minimum}, found {min(numbers)}")
        return numbers

    def floats(
        self, key: builtins.str, default: Sequence[builtins.float] | None = None
    ) -> tuple[builtins.float, ...]:
        """Return an array of floating-point numbers, which may hold NaN."""
        if default is not None and key not in self._values:
            return tuple(default)
        array = self._array(key, "an array of floats")
        if not array.element_type.is_float:
            raise self._wrong(key, "an array of floats")
        return tuple(x for x in array.values() if isinstance(x, builtins.float))

    def bools(
        self,
        key: builtins.str,
        default: Sequence[builtins.bool] | None = None,
        *,
        count: builtins.int | None = None,
    ) -> tuple[builtins.bool, ...]:
        """Return truth values: an array, or with `count` also one value repeated so often."""
        if default is not None and key not in self._values:
            return tuple(default)
        if count is not None and not isinstance(self.value(key).content, Array):
            return (self.bool(key),) * count
        array = self._array(key, "an array of bools", count)
        if array.element_type is not ValueType.BOOL:
            raise self._wrong(key, "an array of bools")
        return tuple(x for x in array.values() if isinstance(x, builtins.bool))

    def strings(
        self, key: builtins.str, default: Sequence[builtins.str] | None = None
    ) -> list[builtins.str]:
        """Return an array of strings; decoded at each call, so keep the list.

        Bytes that are not UTF-8 come as lone surrogates (`surrogateescape`).
        """
        if default is not None and key not in self._values:
            return list(default)
        array = self._array(key, "an array of strings")
        if array.element_type is not ValueType.STRING:
            raise self._wrong(key, "an array of strings")
        return array.values()  # type: ignore[return-value]

    def _array(
        self, key: builtins.str, expected: builtins.str, count: builtins.int | None = None
    ) -> Array:
        content = self.value(key).content
        if not isinstance(content, Array):
            raise self._wrong(key, expected)
        if count is not None and len(content) != count:
            raise self._wrong(key, f"{expected}, {count} long")
        return content

    def _integer(self, key: builtins.str, value: Value) -> builtins.int:
        # Bytes are refused: no converter writes counts so, and a wrong type hides a wrong file.
        if not value.type.is_integer or value.type in _BYTES:
            raise self._wrong(key, "an integer")
        return builtins.int(value.content)  # type: ignore[arg-type]

    def _wrong(self, key: builtins.str, expected: builtins.str) -> InvalidModelFile:
        found = self._values[key].describe()
        return InvalidModelFile(f"{self._name}: {key} is {found}, expected {expected}")
