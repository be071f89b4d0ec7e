"""A directory of saved pieces, shared by all workers: who is there, who goes when it gets full.

    <directory>/lock                   held while somebody makes room
    <directory>/<key>/<piece>.kv       a file a piece; <key> stands for a model and its settings

The bytes of all keys together stay below a quota; those used longest ago go first. Every file may
vanish at any time, since others make room, too.
"""

import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from corral.engine.sessions import file
from corral.engine.sessions.file import Bytes, Form
from corral.errors import InvalidSession
from corral.kv.chains import Piece
from corral.log import logger
from corral.paths import private_directory

_SUFFIX = ".kv"
_STALE_S = 3600.0
"""A temporary file of this age was left by a process that is gone."""
_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Kept:
    """A file as it was found."""

    path: Path
    size_bytes: int
    used_ns: int


class SessionStore:
    """The files of one kind of cache, and the quota of all."""

    def __init__(self, directory: Path, form: Form, *, quota_bytes: int) -> None:
        """Open a directory, which is made if it is missing.

        Raises:
            ResourceError: it cannot be made, or others could write to it.
        """
        self.form = form
        self._root = private_directory(directory, "saved conversations")
        self._own = private_directory(directory / form.key.hex(), "saved conversations")
        self._quota_bytes = quota_bytes
        self.num_refused = 0
        """Files that were removed because they could not be used."""

    def pieces(self) -> dict[Piece, Kept]:
        """Return what is there; files that cannot be used are removed."""
        found = {}
        for kept in _files(self._own):
            try:
                piece = file.read_head(kept.path, self.form)
                if kept.path.name != self._path(piece).name:
                    raise InvalidSession("it has the name of another")
            except InvalidSession as error:
                self.refuse(kept.path, error)
            except OSError as error:
                _log.warning("%s cannot be read: %s", kept.path.name, error.strerror)
            else:
                found[piece] = kept
        return found

    def read(self, kept: Kept) -> Iterator[Bytes]:
        """Yield the blocks of a piece, a layer at a time; raises as `file.read` does."""
        return file.read(kept.path, self.form)

    def refuse(self, path: Path, error: InvalidSession) -> None:
        """Remove a file that cannot be used, and say why."""
        self.num_refused += 1
        _log.warning("saved conversation %s is removed: %s", path.name, error)
        with suppress(OSError):
            path.unlink()

    def touch(self, piece: Piece, at_ns: int) -> bool:
        """Note when a piece was last used; return whether it is there."""
        path = self._path(piece)
        try:
            os.utime(path, ns=(at_ns, at_ns))
            return path.stat().st_size == self.form.file_bytes(piece)
        except OSError:
            return False

    def write(self, piece: Piece, layers: Iterable[Bytes], at_ns: int) -> int:
        """Write a piece and return its bytes; 0 if all that would have to go is newer.

        Raises:
            OSError: the disk is full, or it may not be written to.
        """
        size = self.form.file_bytes(piece)
        if not self.make_room(size, older_than_ns=at_ns):
            return 0
        file.write(self._path(piece), self.form, piece, layers, at_ns=at_ns)
        return size

    def remove(self, kept: Iterable[Kept]) -> None:
        """Remove files that others have taken the place of."""
        for one in kept:
            with suppress(OSError):
                one.path.unlink()

    def make_room(self, size_bytes: int, *, older_than_ns: int | None = None) -> bool:
        """Remove what was used longest ago until so many bytes fit; return whether they do.

        Files that were used at `older_than_ns` or later stay.
        """
        with self._locked():
            files = [kept for key in _directories(self._root) for kept in _files(key)]
            held = sum(kept.size_bytes for kept in files)
            leaving = []
            for kept in sorted(files, key=lambda kept: kept.used_ns):
                if held + size_bytes <= self._quota_bytes:
                    break
                if older_than_ns is not None and kept.used_ns >= older_than_ns:
                    return False
                leaving.append(kept)
                held -= kept.size_bytes
            if held + size_bytes > self._quota_bytes:
                return False
            self.remove(leaving)
            return True

    def settle(self) -> None:
        """Have what was written stay, whatever happens to the machine; and clear away leftovers."""
        with suppress(OSError):
            descriptor = os.open(self._own, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        for left in self._own.glob(".*"):
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > _STALE_S:
                    left.unlink()

    def _path(self, piece: Piece) -> Path:
        return self._own / f"{piece.name}{_SUFFIX}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Be the only one that makes room."""
        descriptor = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _directories(root: Path) -> list[Path]:
    with os.scandir(root) as entries:
        return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]


def _files(directory: Path) -> list[Kept]:
    """Return the whole files of a directory, which may lose some meanwhile."""
    found = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(_SUFFIX) and entry.is_file(follow_symlinks=False):
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    found.append(Kept(Path(entry.path), status.st_size, status.st_mtime_ns))
    return found
