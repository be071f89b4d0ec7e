"""Fetches a wheel with the user's own installer and reads one file out of it. Knows no model.

Who fetches, the first that is here; the configuration of each (index, mirrors, certificates,
proxies) holds, and no index is named in this file:

    pip           of this interpreter
    uv            where an environment was made without pip
    bundled pip   the copy that Python carries to make environments (ensurepip)
"""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from corral.errors import DownloadError
from corral.log import logger

_log = logger(__name__)
_POLL_S = 0.1
_STOP_S = 5.0

# Arguments: the process to die with, then the command to become.
# A preexec_fn would do the same between fork and exec, where it is not safe: other threads may hold
# locks that the child can never get. So a short program of its own sets the signal and becomes the
# installer; the setting outlives exec. The parent may be gone before: then nothing is begun.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
parent, command = int(sys.argv[1]), sys.argv[2:]
try:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
except (OSError, AttributeError):
    pass
if os.getppid() == parent:
    os.execv(command[0], command)
"""

# Arguments: pip's temporary directory, where pip is ("" if it is installed), then pip's own.
# Its temporary files belong beside the result: /tmp may be small, and their growth is watched.
_RUN_PIP = """
import runpy, sys, tempfile
tempfile.tempdir, folder = sys.argv[1:3]
del sys.argv[1:3]
if folder:
    sys.path.insert(0, folder)
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True, slots=True)
class Installer:
    """A program that can fetch a wheel."""

    name: str
    prefix: tuple[str, ...]
    """The command, up to the directory where the wheel, or what is in it, shall be."""


def find_installer(scratch: Path) -> Installer:
    """Return the installer to use; `scratch` is a directory for its temporary files.

    Raises:
        DownloadError: there is none.
    """
    if sys.executable and importlib.util.find_spec("pip"):
        return _pip("pip", scratch, "")
    if uv := shutil.which("uv"):
        return Installer("uv", (uv, *_UV_ARGUMENTS, f"--python={sys.executable}", "--target"))
    if sys.executable and (wheel := _bundled_pip()):
        folder = scratch / "pip"
        shutil.unpack_archive(wheel, folder, "zip")
        return _pip("Python's bundled pip", scratch, str(folder))
    raise DownloadError("neither pip nor uv is here to download with: python -m ensurepip")


_UV_ARGUMENTS = ("pip", "install", "--no-deps", "--only-binary=:all:", "--no-progress")
_PIP_ARGUMENTS = ("--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check")


def _pip(name: str, scratch: Path, folder: str) -> Installer:
    # -P keeps a pip.py of the current directory from being run.
    start = (sys.executable, "-P", "-c", _RUN_PIP, str(scratch), folder)
    return Installer(name, (*start, "download", *_PIP_ARGUMENTS, "--progress-bar=off", "--dest"))


def _bundled_pip() -> Path | None:
    folders = [Path(sysconfig.get_path("stdlib")) / "ensurepip" / "_bundled"]
    # Distributions that share one copy between their Pythons say where it is.
    if shared := sysconfig.get_config_var("WHEEL_PKG_DIR"):
        folders.append(Path(shared))
    wheels = [wheel for folder in folders for wheel in sorted(folder.glob("pip-*.whl"))]
    return wheels[-1] if wheels else None


def fetch(requirement: str, directory: Path, *, on_bytes: Callable[[int], None]) -> Path:
    """Fetch a wheel into `directory`; return its path, or the directory it was unpacked to.

    `on_bytes` is told how much has come, as far as that can be seen. The installer is stopped when
    this call is interrupted.

    Raises:
        DownloadError: with what the installer said.
    """
    scratch, into = directory / "scratch", directory / "wheel"
    scratch.mkdir()
    into.mkdir()
    installer = find_installer(scratch)
    output = directory / "installer.log"
    _log.debug("%s fetches %s into %s", installer.name, requirement, into)
    with output.open("wb") as log:
        process = subprocess.Popen(
            _dying_with_us([*installer.prefix, str(into), requirement]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        code = _wait(process, lambda: on_bytes(_largest_file(scratch, into)))
    if code:
        complaint = _complaint(output.read_text(errors="replace")) or _ending(code)
        raise DownloadError(f"{installer.name} could not fetch {requirement}: {complaint}")
    return next(into.glob("*.whl"), into)


def _dying_with_us(command: list[str]) -> list[str]:
    """Return a command that becomes this one, but does not outlive this process if it is killed."""
    if not sys.executable:
        return command
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]


def _ending(code: int) -> str:
    """Return how an installer ended that said nothing."""
    if code < 0:
        return f"it was ended by signal {-code} ({signal.strsignal(-code) or 'unknown'})"
    return f"exit code {code}"


def _wait(process: subprocess.Popen[bytes], on_poll: Callable[[], None]) -> int:
    try:
        while True:
            on_poll()
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_POLL_S)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _largest_file(*folders: Path) -> int:
    largest = 0
    for folder in folders:
        for path in folder.rglob("*"):
            with suppress(OSError):  # moved away between listing and looking
                largest = max(largest, path.stat().st_size)
    return largest


def _complaint(output: str) -> str:
    """Return the line of an installer's output that says most about a failure."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(ERROR|error|×|╰─▶)", line)]
    # pip's last error line only repeats that there is no distribution; its first says why.
    complaint = re.sub(r"^(ERROR|error): *", "", (errors or lines[-1:] or [""])[0])
    if complaint == "Exception:":  # pip's way to begin a traceback, whose last line says what
        complaint = lines[-1]
    if "connection broken" in output:  # said in a warning only
        return f"the package index cannot be reached, check network and proxy ({complaint})"
    return complaint


@contextmanager
def open_member(fetched: Path, member: str) -> Iterator[IO[bytes]]:
    """Open a file of a wheel, or of the directory a wheel was unpacked to, for reading.

    Raises:
        DownloadError: there is no such file, or the wheel is damaged.
    """
    try:
        if fetched.is_dir():
            with (fetched / member).open("rb") as source:
                yield source
        else:
            with zipfile.ZipFile(fetched) as archive, archive.open(member) as source:
                yield source
    except (KeyError, FileNotFoundError) as error:
        raise DownloadError(f"{fetched.name} holds no {member}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise DownloadError(f"{fetched.name} is damaged: {error}") from error
