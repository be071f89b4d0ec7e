"""What a context takes from a device, measured once for each card and driver, then remembered.

    {"version": 1, "contexts": [{"name": "NVIDIA …", "driver": "580.159.04", "bytes": 549453824}]}

A file that is damaged or of another version counts as absent: what it held is measured again. How
one measures is not known here.
"""

import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

if sys.platform != "win32":
    import fcntl

_log = logging.getLogger(__name__)

DEFAULT_CONTEXT_BYTES = 640 << 20
"""Planned with where nothing was measured: more than any card seen (100 to 555 MiB) takes."""
MAX_CONTEXT_BYTES = 4 << 30
"""Beyond this it is no context, but damage."""

_VERSION = 1
_MAX_FILE_BYTES = 1 << 20
_LOCK_S = 1.0
_LOCK_STEP_S = 0.01

Costs = dict[tuple[str, str], int]
"""Bytes by (GPU name, driver version)."""


@dataclass(frozen=True, slots=True)
class ContextCost:
    """What a plan sets aside for a context."""

    size_bytes: int
    is_measured: bool
    """Whether it was measured for this card and driver; else it is a careful guess."""


class Measured(Protocol):
    """What is needed of a probe's reading."""

    @property
    def name(self) -> str:
        """Name of the GPU."""
        ...

    @property
    def driver_version(self) -> str:
        """Version of its driver."""
        ...

    @property
    def context_bytes(self) -> int | None:
        """What the reading's own context took."""
        ...

    @property
    def context_is_measured(self) -> bool:
        """Whether that was measured by this very reading."""
        ...


class Measurer(Protocol):
    """Who can measure: `devices.probe.Probe`."""

    def read(self, uuid: str) -> Measured | None:
        """Read a device through a context of its own; None is unknown."""
        ...


class ContextCosts:
    """The remembered costs, in one file that processes share."""

    def __init__(self, path: Path) -> None:
        """Name the file, which may not exist yet; see `paths.CacheTree.contexts_file`."""
        self._path = path

    def lookup(self, name: str, driver_version: str) -> int | None:
        """Return what a context takes on a card with this driver; None if never measured."""
        return self._load().get((name, driver_version))

    def planned(self, name: str, driver_version: str | None) -> ContextCost:
        """Return what to plan with: as measured, else `DEFAULT_CONTEXT_BYTES`, and which it is."""
        cost = None if driver_version is None else self.lookup(name, driver_version)
        if cost is None:
            return ContextCost(DEFAULT_CONTEXT_BYTES, is_measured=False)
        return ContextCost(cost, is_measured=True)

    def store(self, name: str, driver_version: str, size_bytes: int) -> None:
        """Remember a cost; a full or read-only disk is no error, it will be measured again."""
        if not 0 < size_bytes <= MAX_CONTEXT_BYTES:
            _log.info("a context of %d bytes on %s is not believed", size_bytes, name)
            return
        try:
            with _locked(self._path.with_suffix(".lock")):
                costs = self._load()
                if costs.get((name, driver_version)) != size_bytes:
                    self._replace({**costs, (name, driver_version): size_bytes})
        except OSError as error:
            _log.info("the cost of a context cannot be kept in %s: %s", self._path, error)

    def measure(self, probe: Measurer, uuid: str) -> int | None:
        """Measure what a context takes on a device now, remember and return it.

        None if the device could not be read, or not without disturbance by others.
        """
        reading = probe.read(uuid)
        if reading is None or not reading.context_is_measured or reading.context_bytes is None:
            return None
        self.store(reading.name, reading.driver_version, reading.context_bytes)
        return reading.context_bytes

    def _load(self) -> Costs:
        try:
            with self._path.open("rb") as file:
                return _parse(file.read(_MAX_FILE_BYTES + 1))
        except OSError:
            return {}

    def _replace(self, costs: Costs) -> None:
        """Put a new file in the old one's place, whole or not at all."""
        handle, part = tempfile.mkstemp(dir=self._path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_format(costs))
                file.flush()
                os.fsync(file.fileno())
            Path(part).replace(self._path)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise


def _parse(content: bytes) -> Costs:
    """Return what a file holds; nothing if any of it is not as it should be."""
    try:
        data: Any = json.loads(content) if len(content) <= _MAX_FILE_BYTES else None
        if data["version"] != _VERSION:
            return {}
        return dict(_entry(row) for row in data["contexts"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}


def _entry(row: Any) -> tuple[tuple[str, str], int]:
    name, driver, size = row["name"], row["driver"], row["bytes"]
    if not (isinstance(name, str) and isinstance(driver, str) and type(size) is int):
        raise TypeError("an entry is not of its types")
    if not 0 < size <= MAX_CONTEXT_BYTES:
        raise ValueError("an entry is not of a context's size")
    return (name, driver), size


def _format(costs: Costs) -> bytes:
    rows = [
        {"name": name, "driver": driver, "bytes": size}
        for (name, driver), size in sorted(costs.items())
    ]
    return json.dumps({"version": _VERSION, "contexts": rows}, indent=1).encode() + b"\n"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other processes from writing meanwhile, so that no entry is lost.

    Where the lock cannot be had in a second, one writes without it: then an entry that another
    writes in the same moment may be lost, and the file is whole all the same.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + _LOCK_S
        while not _try_lock(handle) and time.monotonic() < deadline:
            time.sleep(_LOCK_STEP_S)
        yield
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    """Say whether there is nothing more to wait for."""
    if sys.platform != "win32":
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            return True
    return True
