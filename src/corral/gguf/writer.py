"""Writes GGUF v3 files: the header, then tensor after tensor, never the whole model in memory.

    with Writer(path) as writer:
        writer.add("general.architecture", "llama")
        writer.declare("output_norm.weight", DType.F32, (2048,))
        writer.write("output_norm.weight", data)  # in the order of declaration, in pieces if large

The file appears under its name when it is whole, or not at all. Knows nothing of what keys mean.
"""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from struct import pack
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from corral.errors import Closed, InvalidArgument, ResourceError
from corral.gguf.limits import MAX_ALIGNMENT, MAX_DIMENSIONS, MAX_KEY_BYTES, MAX_TENSOR_NAME_BYTES
from corral.gguf.new_file import NewFile
from corral.gguf.reader import ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC
from corral.gguf.values import Scalar, Value, ValueType, encode_value, make_value
from corral.quant.types import DType

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

VERSION: Final = 3


class Writer:
    """One GGUF file in the making."""

    def __init__(self, path: str | os.PathLike[str], *, alignment: int = DEFAULT_ALIGNMENT) -> None:
        """Start a file whose tensors begin at multiples of `alignment`.

        Raises:
            InvalidArgument: if the alignment is no power of two up to 1 MiB.
        """
        if not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise InvalidArgument(f"alignment {alignment} is no power of two up to {MAX_ALIGNMENT}")
        self._path = Path(path)
        self._alignment = alignment
        self._values: dict[str, Value] = {}
        self._sizes: dict[str, int] = {}
        self._entries: list[bytes] = []
        self._end = 0  # of the declared data, from its beginning
        self._order: list[str] = []
        self._current = 0  # index in _order of the tensor being written
        self._written = 0  # bytes of it
        self._at = 0  # in the file
        self._file: NewFile | None = None
        self._closed = False
        if alignment != DEFAULT_ALIGNMENT:
            self.add(ALIGNMENT_KEY, alignment, ValueType.UINT32)

    def add(
        self,
        key: str,
        value: Scalar | Sequence[Scalar] | Value,
        value_type: ValueType | None = None,
    ) -> None:
        """Add metadata; `value_type` (of the elements for a sequence) defaults to the usual one.

        Raises:
            InvalidArgument: if the key or the value cannot be written, or data already was.
        """
        self._check_open(header=True)
        if not key or "\0" in key or len(key.encode()) > MAX_KEY_BYTES or key in self._values:
            raise InvalidArgument(f"key {key[:80]!r} is empty, too long or already there")
        if key == ALIGNMENT_KEY and value != self._alignment:
            raise InvalidArgument(f"{ALIGNMENT_KEY} is {self._alignment}: pass another to Writer()")
        self._values[key] = make_value(value, value_type)

    def declare(self, name: str, dtype: DType, shape: Sequence[int]) -> None:
        """Add a tensor to the table; `shape` is row-major, slowest dimension first.

        Raises:
            InvalidArgument: if name, type or shape cannot be written, or data already was.
        """
        self._check_open(header=True)
        data = name.encode()
        if not data or b"\0" in data or len(data) > MAX_TENSOR_NAME_BYTES or name in self._sizes:
            raise InvalidArgument(f"tensor name {name!r} is empty, too long or already there")
        if not 1 <= len(shape) <= MAX_DIMENSIONS or min(shape) < 0:
            raise InvalidArgument(
                f"tensor {name!r} has shape {tuple(shape)}, 1 to 4 sizes expected"
            )
        if dtype.value.ggml_id is None or shape[-1] % dtype.block_elements:
            raise InvalidArgument(f"tensor {name!r}: {dtype.name} cannot hold rows of {shape[-1]}")
        sizes = pack(f"<{len(shape)}Q", *reversed(shape))
        head = pack("<Q", len(data)) + data + pack("<I", len(shape)) + sizes
        self._entries.append(head + pack("<IQ", dtype.value.ggml_id, self._end))
        self._sizes[name] = dtype.row_bytes(shape[-1]) * math.prod(shape[:-1])
        self._order.append(name)
        self._end = self._padded(self._end + self._sizes[name])

    def write(self, name: str, data: "ReadableBuffer") -> None:
        """Write bytes of a tensor, all of them or the next piece; tensors in declared order.

        Raises:
            InvalidArgument: if it is another tensor's turn or the bytes are more than declared.
        """
        self._check_open()
        self._begin()
        self._skip_empty()
        turn = self._order[self._current] if self._current < len(self._order) else None
        view = memoryview(data)
        if not view.nbytes:
            return
        if name != turn:
            raise InvalidArgument(f"data of {name!r} came, expected {turn!r}")
        if self._written + view.nbytes > self._sizes[name]:
            raise InvalidArgument(f"more than the {self._sizes[name]} bytes of {name!r} came")
        self._put(view.cast("B"))
        self._written += view.nbytes
        self._finish_tensor()

    def close(self) -> None:
        """Finish the file and give it its name; closing twice is fine.

        Raises:
            InvalidArgument: if bytes of a declared tensor are missing; no file appears then.
            ResourceError: if the disk is full or will not have it; none appears either.
        """
        if self._closed:
            return
        self._begin()
        self._skip_empty()
        if self._current < len(self._order):
            missing = self._order[self._current]
            self.discard()
            raise InvalidArgument(f"{self._path.name}: data of tensor {missing!r} are missing")
        assert self._file is not None
        try:
            self._file.finish()
        except OSError as error:
            self.discard()
            raise self._failure(error) from None
        self._closed = True

    def discard(self) -> None:
        """Give up: close and remove what was written."""
        self._closed = True
        if self._file is not None:
            self._file.discard()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish the file, or discard it after an error."""
        if kind is None:
            self.close()
        else:
            self.discard()

    def _check_open(self, *, header: bool = False) -> None:
        if self._closed:
            raise Closed(f"{self._path.name}: written to after close()")
        if header and self._file is not None:
            raise InvalidArgument(f"{self._path.name}: the header is written already")

    def _begin(self) -> None:
        """Write the header, once."""
        if self._file is not None:
            return
        try:
            self._file = NewFile(self._path)
        except OSError as error:
            raise self._failure(error) from None
        self._put(MAGIC + pack("<IQQ", VERSION, len(self._order), len(self._values)))
        for key, value in self._values.items():
            name = key.encode()
            self._put(pack("<Q", len(name)) + name + encode_value(value))
        self._put(b"".join(self._entries))
        self._pad()

    def _put(self, data: "bytes | memoryview") -> None:
        assert self._file is not None
        try:
            self._file.write(data)
        except OSError as error:
            self.discard()
            raise self._failure(error) from None
        self._at += len(data)

    def _failure(self, error: OSError) -> ResourceError:
        return ResourceError(f"{self._path}: cannot be written: {error.strerror}")

    def _skip_empty(self) -> None:
        while self._current < len(self._order) and not self._sizes[self._order[self._current]]:
            self._current += 1

    def _finish_tensor(self) -> None:
        if self._written == self._sizes[self._order[self._current]]:
            self._current += 1
            self._written = 0
            self._pad()

    def _pad(self) -> None:
        self._put(bytes(self._padded(self._at) - self._at))

    def _padded(self, size: int) -> int:
        return -(-size // self._alignment) * self._alignment


def write_model(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Scalar | Sequence[Scalar] | Value],
    tensors: "Mapping[str, tuple[DType, Sequence[int], ReadableBuffer]]",
) -> None:
    """Write a whole small file: metadata, and (type, shape, bytes) of each tensor by name."""
    with Writer(path) as writer:
        for key, value in metadata.items():
            writer.add(key, value)
        for name, (dtype, shape, _) in tensors.items():
            writer.declare(name, dtype, shape)
        for name, (_, _, data) in tensors.items():
            writer.write(name, data)
