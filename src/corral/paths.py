"""Where files are kept: one private tree, made when it is first needed.

    <root>/models/         downloaded model files
    <root>/kernels/        compiled code; loaded and run, so only an unshared directory will do
    <root>/sessions/       saved KV states
    <root>/workers/        which worker processes there are, for the router that comes after a crash
    <root>/contexts.json   what a device context costs, as measured
    <root>/headers.json    what headers of model files told a router

Knows no file formats. The root comes from `config.Settings.cache`.
"""

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from corral.errors import ResourceError

_PRIVATE = 0o700
_NOT_WRITABLE = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT}
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class CacheTree:
    """The directories under one cache root."""

    root: Path

    def models(self) -> Path:
        """Return the directory of downloaded models, making it if it is missing.

        Raises:
            ResourceError: it cannot be made.
        """
        return self._directory("models")

    def sessions(self) -> Path:
        """Return the directory of saved KV states, making it if it is missing.

        Raises:
            ResourceError: it cannot be made.
        """
        return self._directory("sessions")

    def kernels(self) -> Path:
        """Return the directory of compiled code, if nobody else can write to it.

        Where it is missing and may not be made (a read-only or full disk), it stays missing: code
        can be made without being kept.

        Raises:
            ResourceError: it belongs to someone else, is writable by others, or is no directory.
        """
        try:
            directory = self._directory("kernels")
        except ResourceError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in _NOT_WRITABLE:
                return self.root / "kernels"
            raise
        # Whoever may write to the root may put another directory in the place of this one.
        for checked in (self.root.resolve(), directory):
            _require_private(checked)
        return directory

    def workers(self) -> Path:
        """Return the directory that says which worker processes there are, making it if missing.

        Raises:
            ResourceError: it cannot be made.
        """
        return self._directory("workers")

    def contexts_file(self) -> Path:
        """Return the path of the measured context costs; the file itself may not exist yet.

        Raises:
            ResourceError: its directory cannot be made.
        """
        _make(self.root)
        return self.root / "contexts.json"

    def headers_file(self) -> Path:
        """Return the path of the index of headers; the file itself may not exist yet.

        Raises:
            ResourceError: its directory cannot be made.
        """
        _make(self.root)
        return self.root / "headers.json"

    def _directory(self, name: str) -> Path:
        _make(self.root)
        directory = self.root / name
        _make(directory)
        return directory


def private_directory(directory: Path, holds: str) -> Path:
    """Return a directory to which nobody else can write, making it if it is missing.

    Args:
        holds: what is kept there, for the message.

    Raises:
        ResourceError: it cannot be made, belongs to someone else, is writable by others, or is no
            directory.
    """
    try:
        directory.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        raise ResourceError(
            f"cannot make {directory} for {holds}: {error.strerror}; name a directory you can "
            "write to"
        ) from error
    if status.st_uid != os.geteuid() or status.st_mode & _WRITABLE_BY_OTHERS:
        raise ResourceError(
            f"{directory} is to hold {holds}, and belongs to user {status.st_uid} with mode "
            f"{stat.S_IMODE(status.st_mode):04o}; expected your own, that others cannot write to"
        )
    return directory


def _make(directory: Path) -> None:
    try:
        directory.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(
            f"cannot make the cache directory {directory}: {error.strerror}; "
            "set CORRAL_CACHE to a directory you can write to"
        ) from error


def _require_private(directory: Path) -> None:
    try:
        status = directory.lstat()
    except OSError as error:
        raise ResourceError(f"cannot examine {directory}: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise ResourceError(f"{directory} is no directory but a link or a file; remove it")
    if status.st_uid != os.geteuid():
        raise ResourceError(
            f"{directory} belongs to user {status.st_uid}, not to you (user {os.geteuid()}), and "
            "compiled code in it would be run; set CORRAL_CACHE to a directory of your own"
        )
    if status.st_mode & _WRITABLE_BY_OTHERS:
        raise ResourceError(
            f"{directory} can be written by others (mode {stat.S_IMODE(status.st_mode):04o}), and "
            f"compiled code in it would be run; empty it, then: chmod 700 {directory}"
        )
