"""One process at a time, through a lock the system drops when its holder dies."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from corral.errors import DownloadError


@contextmanager
def exclusive(path: Path, *, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path`; `on_wait` is called once if another process holds it now.

    The file stays behind: removing it would let a third process lock a name that is gone.

    Raises:
        DownloadError: the file system has no locks, or the file cannot be made.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _refusal(path, error) from error
    try:
        _lock(fd, path, on_wait)
        yield
    finally:
        os.close(fd)


def _lock(fd: int, path: Path, on_wait: Callable[[], None]) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        on_wait()
        fcntl.flock(fd, fcntl.LOCK_EX)
    except OSError as error:
        raise _refusal(path, error) from error


def _refusal(path: Path, error: OSError) -> DownloadError:
    return DownloadError(
        f"cannot lock {path}: {error.strerror}; set CORRAL_CACHE to a directory on a local disk"
    )
