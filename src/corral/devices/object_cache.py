"""Object files on disk, to be loaded as code: whoever can write one owns the process.

So the directory must be ours alone, each file ours alone, and each proves by its checksum that it
is whole. Anything else counts as absent. It knows nothing of kernels.
"""

import hashlib
import os
import stat
import tempfile
from pathlib import Path

from corral.errors import ResourceError
from corral.log import logger

_log = logger(__name__)
_MAGIC = b"corral object 1\n"
_DIGEST_BYTES = 32
_OPEN_TO_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class ObjectCache:
    """A private directory of object files by key; where it cannot be written, nothing is kept.

    Several caches may share a directory: each has its own suffix.
    """

    def __init__(self, directory: Path, suffix: str = ".o") -> None:
        """Make the directory if it is missing; where that is refused, warn and do without.

        Raises:
            ResourceError: it belongs to someone else or others may write to it.
        """
        self._directory = directory
        self._suffix = suffix
        self._was_told = self._is_absent = False
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            self._is_absent = True
            self._tell(error)
            return
        if not _is_private(directory.stat()):
            raise ResourceError(
                f"{directory} holds code to be run, but it belongs to another user or others may "
                "write to it: make it yours alone (chmod 700) or choose another cache directory"
            )

    def _path(self, key: str) -> Path:
        return self._directory / f"{key}{self._suffix}"

    def _tell(self, error: OSError) -> None:
        """Warn, once, that nothing will be kept."""
        if not self._was_told:
            self._was_told = True
            _log.warning(
                "compiled kernels cannot be kept in %s (%s): they are compiled again next time; "
                "CORRAL_CACHE can name a directory that is writable",
                self._directory,
                error.strerror or error,
            )

    def load(self, key: str) -> bytes | None:
        """Return an object file, or None if there is none that can be trusted."""
        if self._is_absent:
            return None
        try:
            with self._path(key).open("rb") as file:
                status = os.fstat(file.fileno())
                if not (stat.S_ISREG(status.st_mode) and _is_private(status)):
                    return None
                content = file.read()
        except OSError:
            return None
        start = len(_MAGIC) + _DIGEST_BYTES
        code = content[start:]
        whole = content[:start] == _MAGIC + hashlib.sha256(code).digest()
        _log.debug("kernel %s: %d bytes, %s", key, len(code), "kept" if whole else "damaged")
        return code if whole else None

    def store(self, key: str, code: bytes) -> None:
        """Keep an object file, all of it or nothing; a full or read-only disk is no error."""
        if self._is_absent:
            return
        try:
            self._write(key, code)
        except OSError as error:
            self._tell(error)

    def _write(self, key: str, code: bytes) -> None:
        handle, name = tempfile.mkstemp(dir=self._directory, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(code).digest() + code)
            Path(name).replace(self._path(key))
            _log.debug("kernel %s: %d bytes, compiled and now kept", key, len(code))
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise


def _is_private(status: os.stat_result) -> bool:
    if not hasattr(os, "getuid"):
        return True  # the rights of a user's directory are not in its mode here
    return status.st_uid == os.getuid() and not status.st_mode & _OPEN_TO_OTHERS
