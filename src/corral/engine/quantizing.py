"""A model file to a smaller one: each tensor read, rounded and written in pieces.

    open ─▶ choose types ─▶ check what can be known before ─▶ for each piece, in order:
                                         read ─▶ float32 ─▶ finite? ─▶ rounded ─▶ written
                                         └──────── by any thread ──────────┘

What is in memory is a few pieces, whatever the size of the model. The file is there when it is
whole. Which types is `models/mixture.py`'s to say, what bytes `quant/quantize.py`'s.
"""

import math
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from corral.errors import InvalidArgument, InvalidModelFile, ResourceError, UnsupportedModel
from corral.gguf import ModelFile, TensorInfo, ValueType, Writer
from corral.gguf.reader import ALIGNMENT_KEY, DEFAULT_ALIGNMENT
from corral.gguf.shards import SPLIT_COUNT, SPLIT_NUMBER, SPLIT_TENSORS
from corral.memory.ledger import format_bytes
from corral.models.mixture import Mixture, tensor_types
from corral.quant.blocks import Bytes, Floats
from corral.quant.dequantize import dequantize
from corral.quant.packed import LAYOUTS
from corral.quant.quantize import quantize
from corral.quant.types import DType

_PIECE_ELEMENTS: Final = 1 << 20
_PIECES_A_THREAD: Final = 2
"""That are begun before the first of them is written, so that none waits for the disk."""
_VERSION: Final = 2
"""Of the quantized types, as files tell it: ggml has had no other since 2023."""
_VERSION_KEY: Final = "general.quantization_version"
_FILE_TYPE_KEY: Final = "general.file_type"
_REPLACED: Final = (
    *(SPLIT_NUMBER, SPLIT_COUNT, SPLIT_TENSORS),
    *(ALIGNMENT_KEY, _VERSION_KEY, _FILE_TYPE_KEY),
)

Encode = Callable[[Floats, DType], Bytes]
"""Rounds (rows, columns) to a type: `quantize`, or what does the same faster."""
Alter = Callable[[str, int, Floats], Floats]
"""Gives other values for rows of a tensor: its name, the first row, (rows, columns)."""


@dataclass(frozen=True, slots=True)
class Change:
    """One tensor, before and after."""

    tensor: TensorInfo
    dtype: DType
    is_altered: bool = False
    """Whether its values change, too."""

    @property
    def name(self) -> str:
        """What the tensor is called."""
        return self.tensor.name

    @property
    def size_bytes(self) -> int:
        """Bytes that it will take."""
        return _rows(self.tensor) * self.dtype.row_bytes(self.tensor.shape[-1])

    @property
    def is_copy(self) -> bool:
        """Whether the bytes stay as they are."""
        return self.dtype is self.tensor.dtype and not self.is_altered


@dataclass(frozen=True, slots=True)
class Conversion:
    """What is to be made of a model file, known from its header alone."""

    to: Mixture | None
    """None: tensors keep their types, and the file what it says of them."""
    changes: tuple[Change, ...]
    """In the order of the new file."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors in the new file."""
        return sum(change.size_bytes for change in self.changes)

    @property
    def bits_per_weight(self) -> float:
        """Average bits of one parameter in the new file."""
        elements = sum(change.tensor.num_elements for change in self.changes)
        return 8 * self.size_bytes / elements if elements else 0.0


def plan_conversion(
    file: ModelFile, to: Mixture, *, is_pure: bool = False, may_requantize: bool = False
) -> Conversion:
    """Choose the type of every tensor, and refuse what cannot be done.

    Raises:
        InvalidArgument: a tensor is quantized already, and that it may be again was not said.
        UnsupportedModel: the file is no model, or a tensor has a type that cannot be decoded.
        InvalidModelFile: the metadata contradicts itself.
    """
    kind = file.metadata.str("general.type", "model")
    if kind == "adapter":
        raise UnsupportedModel(f"{file.path.name} is an adapter; only models can be quantized")
    types = tensor_types(file.metadata, file.tensors.values(), to, is_pure=is_pure)
    changes = tuple(Change(file.tensors[name], dtype) for name, dtype in types.items())
    for change in changes:
        if not change.is_copy:
            _require_convertible(file, change, may_requantize=may_requantize)
    return Conversion(to, changes)


def convert(
    file: ModelFile,
    path: str | os.PathLike[str],
    conversion: Conversion,
    *,
    threads: int = 1,
    encode: Encode = quantize,
    alter: Alter | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> None:
    """Write the new file; `progress` hears ("quantize", bytes read, bytes in all).

    `alter` changes the values of tensors whose change says that they are altered.

    Raises:
        InvalidArgument: if the path is one of the files that are read.
        InvalidModelFile: if a weight is NaN or infinite, too large for its type, or cannot be read.
        ResourceError: if the new file does not fit the disk or cannot be written.
    """
    target = Path(path)
    _require_other_file(file, target)
    _require_room(target, conversion)
    alignment = file.metadata.int(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
    with Writer(target, alignment=alignment) as writer:
        _add_metadata(writer, file, conversion.to)
        for change in conversion.changes:
            writer.declare(change.name, change.dtype, change.tensor.shape)
        total = sum(change.tensor.size_bytes for change in conversion.changes)
        done = 0
        make = partial(_make, file, encode=encode, alter=alter)
        for piece, data in _encoded(conversion, threads, make):
            writer.write(piece.change.name, data.data)
            done += piece.size_bytes
            if progress is not None:
                progress("quantize", done, total)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some rows of a tensor."""

    change: Change
    first_row: int
    rows: int

    @property
    def row_bytes(self) -> int:
        tensor = self.change.tensor
        return tensor.dtype.row_bytes(tensor.shape[-1])

    @property
    def size_bytes(self) -> int:
        """Bytes to be read."""
        return self.rows * self.row_bytes


def _encoded(
    conversion: Conversion, threads: int, make: Callable[[_Piece], Bytes]
) -> Iterator[tuple[_Piece, Bytes]]:
    """Yield the pieces of all tensors in order, made by several threads a little ahead."""
    pending: deque[tuple[_Piece, Future[Bytes]]] = deque()
    workers = ThreadPoolExecutor(threads, "corral-quantize")
    try:
        for piece in _pieces(conversion):
            if len(pending) >= _PIECES_A_THREAD * threads:
                first, made = pending.popleft()
                yield first, made.result()
            pending.append((piece, workers.submit(make, piece)))
        for first, made in pending:
            yield first, made.result()
    finally:
        workers.shutdown(cancel_futures=True)


def _pieces(conversion: Conversion) -> Iterator[_Piece]:
    for change in conversion.changes:
        rows, columns = _rows(change.tensor), change.tensor.shape[-1]
        each = max(1, _PIECE_ELEMENTS // max(1, columns))
        for first in range(0, rows, each):
            yield _Piece(change, first, min(each, rows - first))


def _make(file: ModelFile, piece: _Piece, *, encode: Encode, alter: Alter | None) -> Bytes:
    """Read a piece and return its bytes in the new type."""
    change, tensor = piece.change, piece.change.tensor
    data = np.empty(piece.size_bytes, np.uint8)
    file.read(tensor.name, data.data, piece.first_row * piece.row_bytes)
    if tensor.dtype not in LAYOUTS:  # numbers of routing tables and the like: only copied
        return data
    values = dequantize(data, tensor.dtype, (piece.rows, tensor.shape[-1]))
    if not np.isfinite(values).all():
        raise InvalidModelFile(
            f"{file.paths[tensor.file].name}: tensor {tensor.name!r} holds NaN or infinite "
            "values; it is damaged, or was not stored well: fetch or convert the model again"
        )
    if change.is_copy:
        return data
    if change.is_altered and alter is not None:
        values = alter(tensor.name, piece.first_row, values)
    try:
        return encode(values, change.dtype)
    except InvalidArgument as error:
        raise InvalidModelFile(
            f"{file.paths[tensor.file].name}: tensor {tensor.name!r} cannot become "
            f"{change.dtype.name}: {error}"
        ) from error


def _rows(tensor: TensorInfo) -> int:
    return math.prod(tensor.shape[:-1])


def _add_metadata(writer: Writer, file: ModelFile, to: Mixture | None) -> None:
    """Add what the old file says, but for what is no longer so."""
    kept = (_VERSION_KEY, _FILE_TYPE_KEY) if to is None else ()
    for key in file.metadata:
        if key not in _REPLACED or key in kept:
            writer.add(key, file.metadata.value(key))
    if to is None:
        return
    writer.add(_VERSION_KEY, _VERSION, ValueType.UINT32)
    writer.add(_FILE_TYPE_KEY, to.file_type, ValueType.UINT32)


def _require_convertible(file: ModelFile, change: Change, *, may_requantize: bool) -> None:
    dtype = change.tensor.dtype
    if dtype not in LAYOUTS:
        raise UnsupportedModel(
            f"{file.path.name}: tensor {change.name!r} has type {dtype.name}, which cannot be "
            f"decoded; types that can be: {', '.join(each.name for each in LAYOUTS)}"
        )
    if dtype.is_quantized and not may_requantize:
        raise InvalidArgument(
            f"{file.path.name}: tensor {change.name!r} is {dtype.name} already, and to make "
            f"{change.dtype.name} of it loses more than the type itself does; quantize the model "
            "as it was published (F32, F16 or BF16), or allow it with --allow-requantize"
        )


def _require_other_file(file: ModelFile, target: Path) -> None:
    for source in file.paths:
        if target.exists() and source.exists() and target.samefile(source):
            raise InvalidArgument(f"{target} is the model that is read: name another file to write")


def _require_room(target: Path, conversion: Conversion) -> None:
    try:
        free = shutil.disk_usage(target.parent).free
    except OSError as error:
        raise ResourceError(f"{target}: cannot be written: {error.strerror}") from None
    if conversion.size_bytes > free:
        raise ResourceError(
            f"{target}: needs {format_bytes(conversion.size_bytes)}, "
            f"{format_bytes(free)} are free in {target.parent.absolute()}"
        )
