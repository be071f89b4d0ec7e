"""What headers told, kept on disk, so that a router of a thousand models starts at once.

    {"version": 1, "headers": {"3f…": {"fingerprint": …}, "a0…": {"code": …}}}

The key of a header is a digest of all that it depends on: the files by path, size and time, what
they were planned for, the processors that count, and corral's own code that plans. A file of the
index that is damaged or of another version counts as absent.
"""

import functools
import json
import os
import tempfile
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from corral.devices import registry
from corral.log import logger
from corral.router.plan_job import CPU, PlanJob
from corral.router.planned_text import Header, from_json, to_json

_VERSION = 1
_MAX_FILE_BYTES = 256 << 20
_MOST_HEADERS = 20_000
_DIGEST_BYTES = 16
_PLANNING = ("gguf", "kv", "memory", "models", "quant", "tensor", "devices/cpu", "devices/cuda")
_PLANNING_FILES = ("router/footprints.py", "router/planned_text.py", "router/entry.py")
_log = logger(__name__)


class HeaderIndex:
    """The index of one file; for one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Read the index, which may not exist yet."""
        self._path = path
        self._old = _read(path)
        self._headers: dict[str, Header] = {}
        """Those that were asked for or found since."""
        self._has_news = False

    def get(self, key: str) -> Header | None:
        """Return what a header told; None if nobody asked yet."""
        if key in self._headers:
            return self._headers[key]
        try:
            header = from_json(self._old[key])
        except (KeyError, ValueError):
            return None
        self._headers[key] = header
        return header

    def put(self, key: str, header: Header) -> None:
        """Remember what a header told."""
        self._headers[key] = header
        self._has_news = True

    def save(self) -> None:
        """Write what is new; a full or read-only disk is no error, headers will be read again.

        Headers that nobody asked for are kept as long as there are not too many.
        """
        if not self._has_news:
            return
        headers: dict[str, object] = {key: to_json(header) for key, header in self._headers.items()}
        for key, data in reversed(self._old.items()):
            if len(headers) >= _MOST_HEADERS:
                break
            headers.setdefault(key, data)
        text = json.dumps({"version": _VERSION, "headers": headers}, separators=(",", ":"))
        try:
            _replace(self._path, text.encode())
        except OSError as error:
            _log.info("the index of headers cannot be kept in %s: %s", self._path, error)
        self._has_news = False


def header_key(
    paths: Sequence[str], sizes: Sequence[int], modified_ns: Sequence[int], job: PlanJob
) -> str:
    """Return the key of a header: another one as soon as anything changes that it depends on."""
    workers = registry.traits(CPU, threads=job.threads).workers if CPU in job.kinds else 0
    parts = [_code_digest(), workers, paths, sizes, modified_ns, job.to_json()]
    return blake2b(json.dumps(parts).encode(), digest_size=_DIGEST_BYTES).hexdigest()


@functools.cache
def _code_digest() -> str:
    """Return a digest of the code that plans."""
    root = Path(__file__).parent.parent
    files = [path for folder in _PLANNING for path in (root / folder).glob("**/*.py")]
    files = [path for path in files if "kernels" not in path.parts]
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for path in sorted({*files, *(root / name for name in _PLANNING_FILES)}):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        data = json.loads(content) if len(content) <= _MAX_FILE_BYTES else {}
        if data["version"] == _VERSION:
            return {str(key): value for key, value in data["headers"].items()}
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        _log.info("the index of headers in %s is not used: %r", path, error)
    return {}


def _replace(path: Path, content: bytes) -> None:
    """Put a new file in the old one's place, whole or not at all."""
    handle, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)  # not forced to the disk: what is damaged counts as absent
        Path(part).replace(path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
