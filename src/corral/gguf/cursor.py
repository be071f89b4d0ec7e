"""Reads a file forward through a small window, never past its end.

The file is read, not mapped: a mapping of a file that another process truncates kills this one.
Knows nothing of GGUF beyond numbers and length-prefixed strings.
"""

import os
import stat
from pathlib import Path
from struct import Struct
from typing import Final

from corral.errors import InvalidModelFile, ModelNotFound
from corral.gguf.limits import MAX_HEADER_BYTES, MAX_STRING_BYTES, MAX_STRINGS

WINDOW_BYTES: Final = 256 << 10
PIECE_BYTES: Final = 8 << 20
"""The most one system call is asked to read."""
U32: Final = Struct("<I")
U64: Final = Struct("<Q")


def open_regular(path: Path) -> tuple[int, int]:
    """Open a regular file for reading and return its descriptor and size in bytes.

    Devices, pipes and directories are refused without waiting for anybody to write to them.

    Raises:
        ModelNotFound: if there is no such file.
        InvalidModelFile: if it is not a regular file or may not be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError):
        raise ModelNotFound(f"{path.name}: no such file; check the path") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidModelFile(f"{path.name}: cannot be opened: {reason}") from None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise InvalidModelFile(f"{path.name}: not a regular file; give the path of a GGUF file")
    return fd, status.st_size


def read_into(fd: int, into: memoryview, offset: int, *, name: str) -> None:
    """Fill the byte view `into` from `offset` of a file, in bounded pieces; thread-safe.

    Raises:
        InvalidModelFile: if the file ends before, or cannot be read.
    """
    done = 0
    while done < len(into):
        try:
            count = os.preadv(fd, [into[done : done + PIECE_BYTES]], offset + done)
        except OSError as error:
            raise InvalidModelFile(f"{name}: cannot be read: {error.strerror}") from None
        if not count:
            raise InvalidModelFile(
                f"{name}: ends at byte {offset + done}, expected {offset + len(into)} or more; "
                "was it changed while in use?"
            )
        done += count


class Cursor:
    """A forward reader over the header of one file."""

    __slots__ = ("_at", "_base", "_buffer", "_fd", "_num_strings", "name", "size")

    def __init__(self, fd: int, size: int, name: str) -> None:
        """Start at byte 0 of `fd`, a file of `size` bytes called `name` in messages."""
        self._fd = fd
        self.size = size
        self.name = name
        self._base = 0
        self._buffer = b""
        self._at = 0
        self._num_strings = 0

    @property
    def offset(self) -> int:
        """Bytes consumed so far."""
        return self._base + self._at

    def error(self, problem: str) -> InvalidModelFile:
        """Return the error for a problem found where the cursor stands."""
        return InvalidModelFile(f"{self.name}: {problem} (before byte {self.offset})")

    def require(self, count: int, what: str) -> None:
        """Check that `count` more bytes exist, without reading them.

        Raises:
            InvalidModelFile: if the file or the header's limit ends before.
        """
        if count > self.size - self.offset:
            raise self.error(
                f"{what} needs {count} bytes, the file has {self.size - self.offset} left; "
                "it is truncated or damaged: fetch it again"
            )
        if count > MAX_HEADER_BYTES - self.offset:
            raise self.error(f"{what} makes the header longer than {MAX_HEADER_BYTES} bytes")

    def number(self, form: Struct, what: str) -> int | float:
        """Consume one number."""
        self._load(form.size, what)
        value: int | float = form.unpack_from(self._buffer, self._at)[0]
        self._at += form.size
        return value

    def u32(self, what: str) -> int:
        """Consume an unsigned 32-bit integer."""
        return int(self.number(U32, what))

    def u64(self, what: str) -> int:
        """Consume an unsigned 64-bit integer."""
        return int(self.number(U64, what))

    def take(self, count: int, what: str) -> bytes:
        """Consume `count` bytes."""
        self.require(count, what)
        if count <= WINDOW_BYTES:
            self._load(count, what)
            self._at += count
            return self._buffer[self._at - count : self._at]
        data = bytearray(count)
        read_into(self._fd, memoryview(data), self.offset, name=self.name)
        self.skip(count, what)
        return bytes(data)

    def skip(self, count: int, what: str) -> None:
        """Step over `count` bytes without reading them."""
        self.require(count, what)
        if self._at + count <= len(self._buffer):
            self._at += count
        else:
            self._base, self._buffer, self._at = self.offset + count, b"", 0

    def string(self, what: str, limit: int = MAX_STRING_BYTES) -> bytes:
        """Consume a string: its length as u64, then that many bytes."""
        length = self.u64(what)
        if length > limit:
            raise self.error(f"{what} is {length} bytes long, expected at most {limit}")
        return self.take(length, what)

    def strings(self, count: int, what: str, *, keep: bool) -> bytes | None:
        """Consume `count` strings; with `keep`, return their bytes, lengths included."""
        self.require(8 * count, what)
        self._num_strings += count
        if self._num_strings > MAX_STRINGS:
            raise self.error(
                f"{what} brings the strings of arrays to {self._num_strings}, "
                f"expected at most {MAX_STRINGS}"
            )
        kept = bytearray() if keep else None
        while count:
            start = self._at
            count -= self._walk(count)
            if kept is not None:
                kept += memoryview(self._buffer)[start : self._at]
            if count:
                self._load_string(what)
        return bytes(kept) if kept is not None else None

    def _walk(self, count: int) -> int:
        """Step over up to `count` strings that lie in the window whole; return how many."""
        # The hot loop: a vocabulary is a few hundred thousand strings.
        buffer, at, unpack = self._buffer, self._at, U64.unpack_from
        last = len(buffer) - 8
        for walked in range(count):
            if at > last or (after := at + unpack(buffer, at)[0]) > last:
                self._at = at
                return walked
            at = after + 8
        self._at = at
        return count

    def _load_string(self, what: str) -> None:
        """Bring the whole next string into the window."""
        self._load(8, what)
        length = U64.unpack_from(self._buffer, self._at)[0]
        if length > MAX_STRING_BYTES:
            raise self.error(f"a string of {what} is {length} bytes long, at most 16 MiB expected")
        self._load(8 + length, what)

    def _load(self, count: int, what: str) -> None:
        """Make the window hold the next `count` bytes."""
        missing = count - (len(self._buffer) - self._at)
        if missing <= 0:
            return
        self.require(count, what)
        rest = self._buffer[self._at :]
        room = self.size - self.offset - len(rest)
        data = bytearray(min(max(missing, WINDOW_BYTES), room))
        read_into(self._fd, memoryview(data), self.offset + len(rest), name=self.name)
        self._base, self._buffer, self._at = self.offset, rest + data, 0
