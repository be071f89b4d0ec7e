"""Metadata values: the thirteen types of GGUF and what their bytes mean.

Text: a scalar string is for people and settings, so bytes that are not UTF-8 become U+FFFD. The
strings of an array are mostly tokens, whose exact bytes matter: such bytes become lone surrogates
(`surrogateescape`) and `text.encode("utf-8", "surrogateescape")` gives them back.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct, error, pack, unpack
from typing import Final

from corral.errors import InternalError, InvalidArgument

Scalar = bool | int | float | str


class ValueType(enum.IntEnum):
    """Type of a metadata value; the number is the file's."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12

    @property
    def is_integer(self) -> bool:
        """Whether values are whole numbers (bool is not)."""
        return self in _INTEGERS

    @property
    def is_float(self) -> bool:
        """Whether values are floating-point numbers."""
        return self in (ValueType.FLOAT32, ValueType.FLOAT64)


FORMS: Final[dict[ValueType, Struct]] = {
    ValueType.UINT8: Struct("<B"),
    ValueType.INT8: Struct("<b"),
    ValueType.UINT16: Struct("<H"),
    ValueType.INT16: Struct("<h"),
    ValueType.UINT32: Struct("<I"),
    ValueType.INT32: Struct("<i"),
    ValueType.FLOAT32: Struct("<f"),
    ValueType.BOOL: Struct("<B"),
    ValueType.UINT64: Struct("<Q"),
    ValueType.INT64: Struct("<q"),
    ValueType.FLOAT64: Struct("<d"),
}
"""How a value of each fixed-size type is written."""

_INTEGERS: Final = frozenset(
    {
        ValueType.UINT8,
        ValueType.INT8,
        ValueType.UINT16,
        ValueType.INT16,
        ValueType.UINT32,
        ValueType.INT32,
        ValueType.UINT64,
        ValueType.INT64,
    }
)
_LENGTH: Final = Struct("<Q")


@dataclass(frozen=True, slots=True)
class Array:
    """A metadata array, kept as the bytes of the file until somebody asks for its values."""

    element_type: ValueType
    length: int
    raw: bytes | None = field(repr=False)
    """None where the header was read with `skip_arrays` and the array is long."""

    def __len__(self) -> int:
        """Return the number of elements."""
        return self.length

    def values(self) -> list[Scalar]:
        """Decode the elements; nothing is cached, so keep the list.

        Raises:
            InternalError: if the array was skipped when the header was read.
        """
        if self.raw is None:
            raise InternalError("a metadata array was skipped on reading, but its values are asked")
        if self.element_type is ValueType.STRING:
            return list(_decode_strings(self.raw, self.length))
        code = FORMS[self.element_type].format[-1]
        numbers = unpack(f"<{self.length}{code}", self.raw)
        return list(map(bool, numbers)) if self.element_type is ValueType.BOOL else list(numbers)


@dataclass(frozen=True, slots=True)
class Value:
    """One metadata value with the type it has in the file."""

    type: ValueType
    content: Scalar | Array

    def describe(self) -> str:
        """Return type and content, shortened for a message."""
        if isinstance(self.content, Array):
            return f"an array of {len(self.content)} {self.content.element_type.name}"
        text = repr(self.content)
        return f"{self.type.name} {text if len(text) <= 80 else text[:77] + '...'}"


def _decode_strings(raw: bytes, length: int) -> list[str]:
    strings, at, unpack_from = [], 0, _LENGTH.unpack_from
    for _ in range(length):
        start = at + 8
        at = start + unpack_from(raw, at)[0]
        strings.append(raw[start:at].decode("utf-8", "surrogateescape"))
    return strings


def infer_type(value: Scalar) -> ValueType:
    """Return the type converters use for a Python value: 32 bits where they suffice."""
    if isinstance(value, bool):
        return ValueType.BOOL
    if isinstance(value, str):
        return ValueType.STRING
    if isinstance(value, float):
        return ValueType.FLOAT32
    if 0 <= value < 1 << 32:
        return ValueType.UINT32
    if -(1 << 31) <= value < 0:
        return ValueType.INT32
    return ValueType.INT64 if value < 0 else ValueType.UINT64


def make_value(
    value: Scalar | Sequence[Scalar] | Value, value_type: ValueType | None = None
) -> Value:
    """Return a metadata value; `value_type` is that of the elements where `value` is a sequence.

    Raises:
        InvalidArgument: if the value does not fit the type.
    """
    if isinstance(value, Value):
        return value
    if isinstance(value, (bool, int, float, str)):
        kind = infer_type(value) if value_type is None else value_type
        encode_scalar(value, kind)
        return Value(kind, value)
    kind = _infer_element_type(value) if value_type is None else value_type
    raw = b"".join(encode_scalar(v, kind) for v in value)
    return Value(ValueType.ARRAY, Array(kind, len(value), raw))


def _infer_element_type(values: Sequence[Scalar]) -> ValueType:
    kinds = {infer_type(v) for v in values}
    if len(kinds) <= 1:
        return kinds.pop() if kinds else ValueType.INT32
    if ValueType.FLOAT32 in kinds and not kinds & {ValueType.STRING, ValueType.BOOL}:
        return ValueType.FLOAT32
    if kinds <= {ValueType.UINT32, ValueType.INT32} and max(values) < 1 << 31:  # type: ignore[operator]
        return ValueType.INT32
    return ValueType.INT64 if all(k.is_integer for k in kinds) else ValueType.STRING


def encode_scalar(value: Scalar, kind: ValueType) -> bytes:
    """Return the bytes of one value that is not an array.

    Raises:
        InvalidArgument: if the value does not fit the type.
    """
    if kind is ValueType.STRING and isinstance(value, str):
        data = value.encode("utf-8", "surrogateescape")
        return _LENGTH.pack(len(data)) + data
    if kind not in FORMS or isinstance(value, str):
        raise InvalidArgument(f"metadata value {value!r} is no {kind.name}")
    try:
        return FORMS[kind].pack(value)
    except error as problem:
        raise InvalidArgument(f"metadata value {value!r} is no {kind.name}: {problem}") from None


def encode_value(value: Value) -> bytes:
    """Return the bytes of a value as they follow its key in a file: type, then content."""
    head = pack("<I", value.type)
    if not isinstance(value.content, Array):
        return head + encode_scalar(value.content, value.type)
    if value.content.raw is None:
        raise InternalError("a metadata array was skipped on reading, so it cannot be written")
    shape = pack("<IQ", value.content.element_type, value.content.length)
    return head + shape + value.content.raw
