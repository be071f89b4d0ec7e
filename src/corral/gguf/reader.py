"""Reads the header of one GGUF file: version, metadata and the table of tensors.

Trusts no length: every number is a Python integer and is compared with the file before it is used.
Order of tensors and gaps between their data are free; overlaps, unaligned offsets and extents past
the end of the file are refused. Knows nothing of shards nor of what metadata means.

    magic "GGUF" · version u32 · tensors u64 · keys u64
    keys ×     key string · type u32 · value
    tensors ×  name string · rank u32 · sizes u64 × rank, fastest first · type u32 · offset u64
    padding to the alignment · data
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Final

from corral.gguf import limits
from corral.gguf.cursor import Cursor, open_regular
from corral.gguf.metadata import Metadata
from corral.gguf.values import FORMS, Array, Scalar, Value, ValueType
from corral.quant.types import BY_GGML_ID, DType

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
ALIGNMENT_KEY: Final = "general.alignment"
_TOO_MANY: Final = "more than fit or than are allowed; it is truncated or damaged: fetch it again"
_REMOVED_TYPES: Final = frozenset({4, 5, 31, 32, 33, 36, 37, 38})


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor of a model file lies and what it holds."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    """Row-major, slowest dimension first: the reverse of the order in the file."""
    offset: int
    """First byte in its file, counted from the file's beginning."""
    size_bytes: int
    file: int = 0
    """Index of its file in a set of shards."""

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """All of a GGUF file but the data of its tensors."""

    path: Path
    version: int
    alignment: int
    metadata: Metadata
    tensors: Mapping[str, TensorInfo]
    """By name, in the order of the file."""
    data_offset: int
    """Where the data of the tensors begin."""
    file_size: int


def read_header(path: str | os.PathLike[str], *, skip_arrays: bool = False) -> Header:
    """Read the header of a GGUF file.

    With `skip_arrays`, long arrays (vocabularies) keep only type and length, for listing models.

    Raises:
        ModelNotFound: if there is no such file.
        InvalidModelFile: if the file is not GGUF, truncated or contradicts itself.
    """
    fd, size = open_regular(Path(path))
    try:
        return parse_header(fd, size, Path(path), skip_arrays=skip_arrays)
    finally:
        os.close(fd)


def parse_header(fd: int, size: int, path: Path, *, skip_arrays: bool = False) -> Header:
    """Read the header of an open file of `size` bytes; see `read_header`."""
    cursor = Cursor(fd, size, path.name)
    version = _read_version(cursor)
    num_tensors = cursor.u64("the number of tensors")
    num_keys = cursor.u64("the number of keys")
    # The shortest tensor entry takes 33 bytes, the shortest key 14: refuse before any loop.
    room = size - cursor.offset
    if num_tensors > min(limits.MAX_TENSORS, room // 33):
        raise cursor.error(f"claims {num_tensors} tensors, {_TOO_MANY}")
    if num_keys > min(limits.MAX_KEYS, room // 14):
        raise cursor.error(f"claims {num_keys} keys, {_TOO_MANY}")
    values: dict[str, Value] = {}
    for _ in range(num_keys):
        key = _read_name(cursor, "a key", limits.MAX_KEY_BYTES)
        if key in values:
            raise cursor.error(f"key {key[:80]!r} occurs twice")
        values[key] = _read_value(cursor, f"key {key[:80]!r}", skip_arrays)
    alignment = _alignment(cursor, values)
    entries = [_read_tensor(cursor) for _ in range(num_tensors)]
    data_offset = -(-cursor.offset // alignment) * alignment
    return Header(
        path=path,
        version=version,
        alignment=alignment,
        metadata=Metadata(values, name=path.name),
        tensors=_place(cursor, entries, data_offset, alignment),
        data_offset=data_offset,
        file_size=size,
    )


def _read_version(cursor: Cursor) -> int:
    magic = cursor.take(4, "the magic")
    if magic != MAGIC:
        raise cursor.error(f"begins with {magic!r}, expected {MAGIC!r}: not a GGUF file")
    version = cursor.u32("the version")
    if version in VERSIONS:
        return version
    if int.from_bytes(version.to_bytes(4, "little"), "big") in range(1, 256):
        raise cursor.error("is big-endian, expected little-endian; convert it again")
    raise cursor.error(f"has GGUF version {version}, expected 2 or 3; convert the model again")


def _read_name(cursor: Cursor, what: str, limit: int) -> str:
    data = cursor.string(f"the name of {what}", limit)
    if not data or b"\0" in data:
        raise cursor.error(f"the name of {what} is empty or holds a NUL byte")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise cursor.error(f"the name of {what} is not UTF-8: {data[:40]!r}") from None


def _read_type(cursor: Cursor, what: str) -> ValueType:
    number = cursor.u32(f"the type of {what}")
    try:
        return ValueType(number)
    except ValueError:
        raise cursor.error(f"{what} has unknown type {number}, expected 0 to 12") from None


def _read_value(cursor: Cursor, what: str, skip_arrays: bool) -> Value:
    kind = _read_type(cursor, what)
    if kind is ValueType.ARRAY:
        return Value(kind, _read_array(cursor, what, skip_arrays))
    return Value(kind, _read_scalar(cursor, what, kind))


def _read_scalar(cursor: Cursor, what: str, kind: ValueType) -> Scalar:
    if kind is ValueType.STRING:
        return cursor.string(what).decode("utf-8", "replace")
    number = cursor.number(FORMS[kind], what)
    if kind is not ValueType.BOOL:
        return number
    if number not in (0, 1):
        raise cursor.error(f"{what} is a bool of byte {number}, expected 0 or 1")
    return bool(number)


def _read_array(cursor: Cursor, what: str, skip_arrays: bool) -> Array:
    kind = _read_type(cursor, f"elements of {what}")
    length = cursor.u64(f"the length of {what}")
    if kind is ValueType.ARRAY:
        raise cursor.error(f"{what} is an array of arrays, expected an array of plain values")
    if length > limits.MAX_ARRAY_ELEMENTS:
        raise cursor.error(
            f"{what} has {length} elements, expected at most {limits.MAX_ARRAY_ELEMENTS}"
        )
    keep = not skip_arrays or length <= limits.SKIPPED_ARRAY_ELEMENTS
    if kind is ValueType.STRING:
        return Array(kind, length, cursor.strings(length, what, keep=keep))
    size = FORMS[kind].size * length
    if not keep:
        cursor.skip(size, what)
        return Array(kind, length, None)
    raw = cursor.take(size, what)
    if kind is ValueType.BOOL and raw.strip(b"\0\1"):
        raise cursor.error(f"{what} holds bools other than 0 and 1")
    return Array(kind, length, raw)


def _alignment(cursor: Cursor, values: Mapping[str, Value]) -> int:
    value = values.get(ALIGNMENT_KEY, Value(ValueType.UINT32, DEFAULT_ALIGNMENT))
    number = value.content
    if value.type is not ValueType.UINT32 or not isinstance(number, int):
        raise cursor.error(f"{ALIGNMENT_KEY} is {value.describe()}, expected UINT32")
    if not 1 <= number <= limits.MAX_ALIGNMENT or number & (number - 1):
        raise cursor.error(
            f"{ALIGNMENT_KEY} is {number}, expected a power of two up to {limits.MAX_ALIGNMENT}"
        )
    return number


def _read_tensor(cursor: Cursor) -> TensorInfo:
    """Read one entry of the tensor table; its offset still counts from the data's beginning."""
    name = _read_name(cursor, "a tensor", limits.MAX_TENSOR_NAME_BYTES)
    rank = cursor.u32(f"the rank of {name!r}")
    if not 1 <= rank <= limits.MAX_DIMENSIONS:
        raise cursor.error(f"tensor {name!r} has {rank} dimensions, expected 1 to 4")
    sizes = [cursor.u64(f"the shape of {name!r}") for _ in range(rank)]
    if math.prod(max(s, 1) for s in sizes) > limits.MAX_ELEMENTS:
        raise cursor.error(f"tensor {name!r} has sizes {sizes}, whose product exceeds 2^63 - 1")
    dtype = _dtype(cursor, name)
    columns = sizes[0]
    if columns % dtype.block_elements:
        raise cursor.error(
            f"tensor {name!r} has rows of {columns} elements, expected a multiple of "
            f"{dtype.block_elements} for {dtype.name}"
        )
    return TensorInfo(
        name=name,
        dtype=dtype,
        shape=tuple(reversed(sizes)),
        offset=cursor.u64(f"the offset of {name!r}"),
        size_bytes=dtype.row_bytes(columns) * math.prod(sizes[1:]),
    )


def _dtype(cursor: Cursor, name: str) -> DType:
    number = cursor.u32(f"the type of {name!r}")
    if number in BY_GGML_ID:
        return BY_GGML_ID[number]
    if number in _REMOVED_TYPES:
        raise cursor.error(
            f"tensor {name!r} has type {number}, which was removed from the format; "
            "quantize the model again"
        )
    raise cursor.error(f"tensor {name!r} has unknown type {number}")


def _place(
    cursor: Cursor, entries: list[TensorInfo], data_offset: int, alignment: int
) -> Mapping[str, TensorInfo]:
    """Check where tensors lie; return them by name, offsets counted from the file's beginning."""
    tensors: dict[str, TensorInfo] = {}
    for entry in entries:
        if entry.name in tensors:
            raise cursor.error(f"tensor {entry.name!r} occurs twice")
        if entry.offset % alignment:
            raise cursor.error(
                f"tensor {entry.name!r} is at offset {entry.offset}, no multiple of {alignment}"
            )
        offset = data_offset + entry.offset
        end = offset + entry.size_bytes
        if end > cursor.size and entry.size_bytes:
            raise cursor.error(
                f"tensor {entry.name!r} ends at byte {end}, the file has {cursor.size}; "
                "it is truncated: fetch it again"
            )
        tensors[entry.name] = TensorInfo(
            entry.name, entry.dtype, entry.shape, offset, entry.size_bytes
        )
    _refuse_overlaps(cursor, tensors)
    return MappingProxyType(tensors)


def _refuse_overlaps(cursor: Cursor, tensors: Mapping[str, TensorInfo]) -> None:
    filled = sorted((t for t in tensors.values() if t.size_bytes), key=lambda t: t.offset)
    for first, second in pairwise(filled):
        if first.offset + first.size_bytes > second.offset:
            raise cursor.error(f"tensors {first.name!r} and {second.name!r} overlap")
