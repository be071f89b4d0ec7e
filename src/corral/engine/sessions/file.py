"""The file of one piece: which tokens, and the keys and values of every layer.

    head       magic, version, key, parent, number, tokens, layers, bytes of the blocks
    tokens     32 bits each
    blocks     layer by layer, in the order of the tokens
    digest     SHA-256 of all before; most processors have instructions for it

It appears under its name only when it is whole and on the disk. Numbers are little-endian. Nothing
in it is believed before it was checked, the blocks not before the digest at the end was.
"""

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from corral.errors import InvalidArgument, InvalidSession
from corral.kv.chains import PIECE_BLOCKS, Piece
from corral.kv.prefix import TOKEN_BYTES
from corral.kv.spec import BLOCK_TOKENS

KEY_BYTES = 20
VERSION = 1
"""Of the form of the file; others are refused."""
_MAGIC = b"CORRALKV"
_HEAD = struct.Struct("<8sI20sB32sIIIQ")
_DIGEST_BYTES = 32
_MOST_TOKENS = PIECE_BLOCKS * BLOCK_TOKENS
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Form:
    """What all files of one kind of cache have in common."""

    key: bytes
    """Of all that decides whether keys and values can be used."""
    layers: tuple[int, ...]
    """Bytes of a block in each layer."""

    def file_bytes(self, piece: Piece) -> int:
        """Return how long the file of a piece is."""
        blocks = len(piece.links) * sum(self.layers)
        return _HEAD.size + piece.num_tokens * TOKEN_BYTES + blocks + _DIGEST_BYTES


def write(path: Path, form: Form, piece: Piece, layers: Iterable[Bytes], *, at_ns: int) -> None:
    """Write a piece whole, or nothing.

    Args:
        layers: the bytes of the piece's blocks, a layer at a time.
        at_ns: when it was last used, in nanoseconds since 1970.

    Raises:
        OSError: whatever the system has against it.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    digest = sha256()
    try:
        with open(temporary, "wb", opener=_private) as file:

            def put(part: bytes | memoryview) -> None:
                digest.update(part)
                file.write(part)

            put(_head(form, piece))
            put(piece.tokens)
            for layer in layers:
                put(layer.data)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        os.utime(temporary, ns=(at_ns, at_ns))
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_head(path: Path, form: Form) -> Piece:
    """Return the piece of a file, without its blocks.

    Raises:
        InvalidSession: it is no such file, of another version or kind, or not whole.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return _read_head(file, form)


def read(path: Path, form: Form) -> Iterator[Bytes]:
    """Yield the bytes of a piece's blocks, a layer at a time: (blocks, bytes of a block).

    They may be used once the iterator has ended: only then it is known that they are right.

    Raises:
        InvalidSession, OSError: as `read_head`; or the file was changed.
    """
    with path.open("rb") as file:
        piece = _read_head(file, form)
        digest = sha256()
        digest.update(_head(form, piece))
        digest.update(piece.tokens)
        for block_bytes in form.layers:
            layer = _exactly(file, len(piece.links) * block_bytes)
            digest.update(layer)
            yield np.frombuffer(layer, np.uint8).reshape(-1, block_bytes)
        if _exactly(file, _DIGEST_BYTES) != digest.digest():
            raise InvalidSession("its digest is that of other content: it was damaged")


def _head(form: Form, piece: Piece) -> bytes:
    blocks = len(piece.links) * sum(form.layers)
    return _HEAD.pack(
        *(_MAGIC, VERSION, form.key, bool(piece.parent), piece.parent),
        *(piece.number, piece.num_tokens, len(form.layers), blocks),
    )


def _read_head(file: IO[bytes], form: Form) -> Piece:
    head = _exactly(file, _HEAD.size)
    magic, version, key, has_parent, parent, number, num_tokens, *_ = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise InvalidSession("it does not begin as a session does")
    if version != VERSION:
        raise InvalidSession(f"it has version {version}, expected {VERSION}")
    if key != form.key:
        raise InvalidSession("it belongs to another model, or to other settings of it")
    if not 0 < num_tokens <= _MOST_TOKENS:
        raise InvalidSession(f"it has {num_tokens} tokens, expected 1 to {_MOST_TOKENS}")
    tokens = _exactly(file, num_tokens * TOKEN_BYTES)
    try:
        piece = Piece.of(number, parent if has_parent else b"", tokens)
    except InvalidArgument as error:
        raise InvalidSession(f"its tokens cannot be: {error}") from error
    if head != _head(form, piece):
        raise InvalidSession("its layers are others than the model has")
    found, expected = os.fstat(file.fileno()).st_size, form.file_bytes(piece)
    if found != expected:
        raise InvalidSession(f"it is {found} bytes long, expected {expected}")
    return piece


def _exactly(file: IO[bytes], count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise InvalidSession(f"it ends after {len(data)} of {count} bytes")
    return data


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
