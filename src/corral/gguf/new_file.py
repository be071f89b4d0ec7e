"""A file that appears under its name when it is whole and on the disk, or not at all.

    no name at all ──finish()──▶ a hidden name, for a moment ──▶ its own name, in place of any other

While it is written it has no name, where the file system can do that: whatever ends the process,
the system then takes the bytes back. Elsewhere it has the hidden name all the time, and a process
that is killed leaves it behind. Only a file is ever replaced: a device or a pipe of that name would
be gone for everybody, and a link is followed to where its bytes are to lie. Knows nothing of what
is written.
"""

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_CANNOT_BE_NAMELESS = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT}
_MODE = 0o666  # less what the user's mask takes


class NewFile:
    """One file in the making. Every method may raise OSError; `discard` does not."""

    def __init__(self, path: Path) -> None:
        """Begin a file in the folder of `path`, which must be there."""
        path = _target(path)
        self._name = path.name
        self._hidden = f".{path.name}.{os.urandom(4).hex()}.partial"
        self._folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        self._has_name = False
        try:
            self._file = open(self._begin(path.parent), "wb")  # noqa: PTH123, SIM115 - a descriptor
        except BaseException:
            os.close(self._folder)
            raise

    def write(self, data: "ReadableBuffer") -> None:
        """Append bytes."""
        self._file.write(data)

    def finish(self) -> None:
        """Put all on the disk, and the file in its place."""
        self._file.flush()
        os.fsync(self._file.fileno())
        if not self._has_name:
            self._has_name = True  # before it has: an interrupt may come between
            os.link(
                f"/proc/self/fd/{self._file.fileno()}",
                self._hidden,
                dst_dir_fd=self._folder,
                follow_symlinks=True,
            )
        os.replace(self._hidden, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._has_name = False
        os.fsync(self._folder)
        self.discard()

    def discard(self) -> None:
        """Close, and remove what is not finished."""
        with contextlib.suppress(OSError):  # a full disk fails here again
            self._file.close()
        if self._folder < 0:
            return
        if self._has_name:
            with contextlib.suppress(OSError):
                os.unlink(self._hidden, dir_fd=self._folder)
        os.close(self._folder)
        self._folder = -1

    def _begin(self, folder: Path) -> int:
        """Return a descriptor of an empty file, without a name if that can be."""
        if hasattr(os, "O_TMPFILE") and Path("/proc/self/fd").is_dir():
            try:
                return os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, _MODE)
            except OSError as error:
                if error.errno not in _CANNOT_BE_NAMELESS:
                    raise
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(self._hidden, flags, _MODE, dir_fd=self._folder)
        self._has_name = True
        return descriptor


def _target(path: Path) -> Path:
    """Return what a path stands for, which may be a file or nothing yet; raises OSError."""
    target = Path(os.path.realpath(path))
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return target
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if not stat.S_ISREG(mode):
        raise FileExistsError(errno.EEXIST, "it is a device, a pipe or a socket, not a file")
    return target
