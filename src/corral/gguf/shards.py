"""Opens a model, one file or a set of shards, and reads the bytes of its tensors.

Shards are named `NAME-00001-of-00003.gguf`; the first holds the metadata, each states its place.
Weights are read into memory of the caller, never mapped. Knows nothing of what tensors mean.
"""

import os
import re
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Final, Self

from corral.errors import Closed, InvalidArgument, InvalidModelFile
from corral.gguf.cursor import open_regular, read_into
from corral.gguf.limits import MAX_SHARDS
from corral.gguf.metadata import Metadata
from corral.gguf.reader import Header, TensorInfo, parse_header

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

SPLIT_NUMBER: Final = "split.no"
SPLIT_COUNT: Final = "split.count"
SPLIT_TENSORS: Final = "split.tensors.count"
_SHARD_NAME: Final = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class ShardName:
    """What the file name of a shard says."""

    stem: str
    number: int
    """Counted from 1."""
    count: int

    @classmethod
    def parse(cls, name: str) -> "ShardName | None":
        """Return the parts of a file name, or None if it is no shard's."""
        match = _SHARD_NAME.fullmatch(name)
        return match and cls(match["stem"], int(match["number"]), int(match["count"]))

    def __str__(self) -> str:
        """Return the file name."""
        return f"{self.stem}-{self.number:05}-of-{self.count:05}.gguf"


class ModelFile:
    """The open files of a model; several threads may read at once.

    Files stay open until `close`, so that replacing a file by another does not mix two models.
    """

    def __init__(self, path: Path, *, skip_arrays: bool = False) -> None:
        """Open the model at `path`; see `open_model`."""
        self._lock = threading.Lock()
        self._readers = 0
        self._closed = False
        self._fds: list[int] = []
        try:
            self.headers = self._open_all(path, skip_arrays)
            self.tensors: Mapping[str, TensorInfo] = _join(self.headers)
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> Path:
        """The model's only or first file."""
        return self.headers[0].path

    @property
    def metadata(self) -> Metadata:
        """The metadata of the model's only or first file."""
        return self.headers[0].metadata

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files, in order."""
        return tuple(header.path for header in self.headers)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(header.file_size for header in self.headers)

    def read(self, name: str, into: "WriteableBuffer", start: int = 0) -> None:
        """Fill a writable buffer with bytes of tensor `name`, from its byte `start` on.

        Any object with a contiguous writable buffer will do (a NumPy array too).

        Raises:
            Closed: after `close`.
            InvalidArgument: if there is no such tensor, or the range exceeds it.
            InvalidModelFile: if the file became shorter or cannot be read.
        """
        tensor = self.tensors.get(name)
        if tensor is None:
            raise InvalidArgument(f"{self.path.name}: no tensor {name!r}")
        view = _bytes_view(into)
        if start < 0 or start + len(view) > tensor.size_bytes:
            raise InvalidArgument(
                f"{self.path.name}: bytes {start} to {start + len(view)} of {name!r} were asked, "
                f"it has {tensor.size_bytes}"
            )
        with self._reading() as fds:
            offset = tensor.offset + start
            read_into(fds[tensor.file], view, offset, name=self.paths[tensor.file].name)

    def header_bytes(self, number: int) -> bytes:
        """Return all that comes before the tensors in one of the files, as it was written.

        Raises:
            Closed: after `close`.
            InvalidModelFile: if the file became shorter or cannot be read.
        """
        header = self.headers[number]
        data = bytearray(header.data_offset)
        with self._reading() as fds:
            read_into(fds[number], memoryview(data), 0, name=header.path.name)
        return bytes(data)

    def close(self) -> None:
        """Close the files; reads under way finish first, later ones raise `Closed`."""
        with self._lock:
            self._closed = True
            if not self._readers:
                self._close_files()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def __del__(self) -> None:
        """Warn if it was never closed."""
        if getattr(self, "_fds", None):
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)
            self.close()

    def __repr__(self) -> str:
        """Name the file."""
        name = self.path.name if hasattr(self, "headers") else "?"
        return f"<ModelFile {name}{' closed' if self._closed else ''}>"

    @contextmanager
    def _reading(self) -> Iterator[list[int]]:
        # A descriptor closed under a reader may be reused for another file: count the readers.
        with self._lock:
            if self._closed:
                raise Closed(f"{self.path.name}: read after close()")
            self._readers += 1
        try:
            yield self._fds
        finally:
            with self._lock:
                self._readers -= 1
                if self._closed and not self._readers:
                    self._close_files()

    def _close_files(self) -> None:
        while self._fds:
            os.close(self._fds.pop())

    def _open_all(self, path: Path, skip_arrays: bool) -> tuple[Header, ...]:
        shard = ShardName.parse(path.name)
        if shard is None or shard.count == 1:
            header = self._open(path, skip_arrays)
            count = _split_count(header)
            if count > 1:
                raise InvalidModelFile(
                    f"{path.name}: is one of {count} shards, but its name does not end in "
                    f"-00001-of-{count:05}.gguf; rename it as it was published"
                )
            return (header,)
        if not (1 <= shard.number <= shard.count <= MAX_SHARDS):
            raise InvalidModelFile(
                f"{path.name}: the name tells shard {shard.number} of {shard.count}, "
                f"expected at most {MAX_SHARDS}"
            )
        names = [str(replace(shard, number=n + 1)) for n in range(shard.count)]
        first = self._open(path.with_name(names[0]), skip_arrays)
        if _split_count(first) == 1:  # an ordinary file that happens to be called so
            return (first,)
        return (first, *(self._open(path.with_name(name), skip_arrays) for name in names[1:]))

    def _open(self, path: Path, skip_arrays: bool) -> Header:
        fd, size = open_regular(path)
        self._fds.append(fd)
        return parse_header(fd, size, path, skip_arrays=skip_arrays)


def open_model(path: str | os.PathLike[str], *, skip_arrays: bool = False) -> ModelFile:
    """Open a GGUF model for reading, with all its shards if it is a set (any of them may be named).

    Raises:
        ModelNotFound: if the file or one of its shards is missing.
        InvalidModelFile: if a file is not GGUF, or the shards do not belong together.
    """
    return ModelFile(Path(path), skip_arrays=skip_arrays)


def _bytes_view(buffer: "WriteableBuffer") -> memoryview:
    view = memoryview(buffer)
    if view.readonly or not view.c_contiguous:
        raise InvalidArgument("a writable, contiguous buffer is needed to read tensors into")
    return view.cast("B") if view.nbytes else memoryview(b"")


def _split_count(header: Header) -> int:
    return max(header.metadata.int(SPLIT_COUNT, 1), 1)


def _join(headers: tuple[Header, ...]) -> Mapping[str, TensorInfo]:
    """Return the tensors of all files by name, after checking that the files are one set."""
    tensors: dict[str, TensorInfo] = {}
    for index, header in enumerate(headers):
        if len(headers) > 1:
            _check_shard(headers, index)
        for name, tensor in header.tensors.items():
            if name in tensors:
                raise InvalidModelFile(
                    f"{header.path.name}: tensor {name!r} is also in "
                    f"{headers[tensors[name].file].path.name}; the shards are not of one model"
                )
            tensors[name] = replace(tensor, file=index)
    expected = headers[0].metadata.int(SPLIT_TENSORS, len(tensors))
    if len(headers) > 1 and len(tensors) != expected:
        raise InvalidModelFile(
            f"{headers[0].path.name}: the shards hold {len(tensors)} tensors, "
            f"{SPLIT_TENSORS} says {expected}; a shard is of another model or version"
        )
    return MappingProxyType(tensors)


def _check_shard(headers: tuple[Header, ...], index: int) -> None:
    name, metadata = headers[index].path.name, headers[index].metadata
    first = headers[0].metadata
    for key, expected in (
        (SPLIT_NUMBER, index),
        (SPLIT_COUNT, len(headers)),
        (SPLIT_TENSORS, first.int(SPLIT_TENSORS)),
    ):
        found = metadata.int(key)
        if found != expected:
            raise InvalidModelFile(
                f"{name}: {key} is {found}, expected {expected}; "
                "the file was renamed or belongs to another set"
            )
    kind = "general.architecture"
    if kind in metadata and metadata.str(kind) != first.str(kind):
        raise InvalidModelFile(f"{name}: {kind} differs from the first shard's; not one model")
