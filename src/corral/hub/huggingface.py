"""Models of the Hugging Face hub, through huggingface_hub and in its cache.

    owner/repo             its only model, else the one in Q4_K_M
    owner/repo:Q8_0        the model whose file name holds this type
    owner/repo/file.gguf   this file; any shard stands for its set

What is cached is used without asking the hub. This is the only home of huggingface_hub, whose
errors are translated here.
"""

import inspect
import io
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corral.errors import CorralError, DownloadError, InvalidArgument, ModelNotFound
from corral.gguf.shards import ShardName
from corral.hub.cached import did_you_mean
from corral.hub.progress import Progress

PREFERRED_TYPE = "Q4_K_M"
_PATIENCE_S = 8.0
_UNREACHABLE = {"ConnectionError", "ConnectError", "NetworkError", "Timeout", "TimeoutException"}
"""Names of what the HTTP libraries raise where nobody answers."""
_REFERENCE = re.compile(
    r"(?P<repository>[\w.-]+/[\w.-]+)(?:/(?P<file>[^\0]+)|:(?P<type>[A-Za-z0-9_.-]+))?", re.ASCII
)
# Companions of a model, not models: image encoders, calibration data.
_COMPANION = re.compile(r"(^|/)mmproj|imatrix", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Reference:
    """What a name asks of the hub."""

    repository: str
    file: str | None = None
    type: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Reference":
        """Read owner/repo, owner/repo/file or owner/repo:TYPE.

        Raises:
            InvalidArgument: the text is none of these.
        """
        match = _REFERENCE.fullmatch(text)
        if not match:
            raise InvalidArgument(
                f"'hf:{text[:80]}' is no model of the hub; expected hf:owner/repo, "
                "hf:owner/repo/file.gguf or hf:owner/repo:Q4_K_M"
            )
        return cls(match["repository"], match["file"], match["type"])


def choose(files: Iterable[str], wanted: Reference) -> tuple[str, ...]:
    """Return the file that is wanted among those of a repository; all of them for shards.

    Raises:
        ModelNotFound: there is none, or a shard is missing.
        InvalidArgument: there are several and none is preferred.
    """
    models = _models(files)
    if wanted.file is not None:
        chosen = [name for name, parts in models.items() if wanted.file in (name, *parts)]
    elif wanted.type is not None or len(models) > 1:
        chosen = _of_type(models, wanted.type or PREFERRED_TYPE)
    else:
        chosen = list(models)
    if len(chosen) != 1:
        raise _no_choice(wanted, chosen, models)
    return _require_whole(models[chosen[0]], wanted.repository)


def fetch(text: str, *, progress: Progress | None = None, is_fresh_wanted: bool = False) -> Path:
    """Return the path of a model's first file, fetching what is not in the hub's cache.

    With `is_fresh_wanted` the hub is asked for a newer revision even if the model is cached.

    Raises:
        InvalidArgument: the text is no reference, or means several models.
        ModelNotFound: no such repository or file.
        DownloadError: the hub cannot be reached or refuses.
    """
    wanted = Reference.parse(text)
    if not is_fresh_wanted and (path := _cached(wanted, is_exact=True)):
        return path
    try:
        return _download(wanted, progress)
    except DownloadError:
        if not is_fresh_wanted and (path := _cached(wanted, is_exact=False)):
            return path
        raise


def _models(files: Iterable[str]) -> dict[str, list[str]]:
    """Return the models among file names: name without shard number and suffix → files."""
    models: dict[str, list[str]] = {}
    for file in sorted(files):
        if not file.lower().endswith(".gguf") or _COMPANION.search(file):
            continue
        folder, slash, name = file.rpartition("/")
        shard = ShardName.parse(name)
        stem = shard.stem if shard else name[: -len(".gguf")]
        models.setdefault(f"{folder}{slash}{stem}", []).append(file)
    return models


def _of_type(models: Iterable[str], wanted: str) -> list[str]:
    pattern = re.compile(rf"(^|[-._/]){re.escape(wanted)}($|[-._/])", re.IGNORECASE)
    return [name for name in models if pattern.search(name)]


def _no_choice(
    wanted: Reference, chosen: Sequence[str], models: dict[str, list[str]]
) -> CorralError:
    where = f"hf:{wanted.repository}"
    if not models:
        return ModelNotFound(f"{where} holds no GGUF file; look for a repository that has one")
    names = [parts[0] for parts in models.values()]
    listed = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    if wanted.file is not None:
        return ModelNotFound(
            f"{where} holds no {wanted.file}{did_you_mean(wanted.file, names)} It has: {listed}"
        )
    problem = f"has {len(chosen) or len(models)} models"
    if wanted.type is not None and not chosen:
        problem = f"has no {wanted.type}"
    return InvalidArgument(f"{where} {problem}; name one as {where}/FILE: {listed}")


def _require_whole(parts: Sequence[str], repository: str) -> tuple[str, ...]:
    shard = ShardName.parse(parts[0].rpartition("/")[2])
    if shard and len(parts) != shard.count:
        raise ModelNotFound(
            f"hf:{repository} holds {len(parts)} of the {shard.count} shards of {shard.stem}; "
            "the upload is not complete"
        )
    return tuple(parts)


def _cached(wanted: Reference, *, is_exact: bool) -> Path | None:
    """Return a model of the hub's cache; if `is_exact`, only one the hub would choose as well."""
    snapshot = _snapshot(wanted.repository)
    if snapshot is None:
        return None
    files = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*.gguf")]
    if is_exact and wanted.file is None and wanted.type is None:
        files = _of_type_files(files, PREFERRED_TYPE)
    try:
        return snapshot / choose(files, wanted)[0]
    except CorralError:
        return None


def _of_type_files(files: Iterable[str], wanted: str) -> list[str]:
    models = _models(files)
    return [file for name in _of_type(models, wanted) for file in models[name]]


def _snapshot(repository: str) -> Path | None:
    """Return the directory of the cached main revision, if there is one."""
    with _translated(repository):
        from huggingface_hub import constants
    home = Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"
    try:
        revision = (home / "refs" / "main").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    snapshot = home / "snapshots" / revision
    return snapshot if revision and snapshot.is_dir() else None


def _download(wanted: Reference, progress: Progress | None) -> Path:
    with _translated(wanted.repository):
        from huggingface_hub import HfApi, hf_hub_download

        # Asked so, and not by list_repo_files, the hub answers once: nothing is tried for half a
        # minute where there is no network.
        found = HfApi().model_info(wanted.repository, timeout=_PATIENCE_S)
        files = choose([file.rfilename for file in found.siblings or ()], wanted)
        options: dict[str, Any] = {}
        if "tqdm_class" in inspect.signature(hf_hub_download).parameters:  # since 1.1
            options["tqdm_class"] = _reporting_bar(progress)
        paths = [hf_hub_download(wanted.repository, file, **options) for file in files]
    return Path(paths[0])


def _reporting_bar(progress: Progress | None) -> type[Any]:
    """Return a progress bar class for huggingface_hub that draws nothing and reports instead."""
    from huggingface_hub import utils

    base: Any = utils.tqdm  # type: ignore[attr-defined]

    class Bar(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            # Where its bars are switched off it would not count either.
            super().__init__(*args, **(kwargs | {"disable": False, "file": io.StringIO()}))

        def update(self, n: float | None = 1) -> bool | None:
            shown: bool | None = super().update(n)
            if progress is not None:
                progress("download", int(self.n), int(self.total or 0))
            return shown

    return Bar


@contextmanager
def _translated(repository: str) -> Iterator[None]:
    """Raise huggingface_hub's errors, and those of the HTTP libraries under it, as corral's.

    Its own messages are kept back: the error says it all, and a library is silent.
    """
    theirs = logging.getLogger("huggingface_hub")
    before = theirs.level
    theirs.setLevel(logging.CRITICAL)
    try:
        yield
    except CorralError:
        raise
    except ImportError as error:
        raise DownloadError(
            f"hf: models need huggingface_hub, which cannot be imported: {error}"
        ) from error
    except Exception as error:
        # Which classes come depends on the version and its HTTP library; their names do not.
        kinds = {kind.__name__ for kind in type(error).__mro__}
        raise _translation(repository, kinds, error) from error
    finally:
        theirs.setLevel(before)


def _translation(repository: str, kinds: set[str], error: Exception) -> CorralError:
    where = f"hf:{repository}"
    if "GatedRepoError" in kinds:
        return DownloadError(
            f"{where} is gated: accept its terms on its page, then set HF_TOKEN or log in with "
            "`hf auth login`"
        )
    if "LocalEntryNotFoundError" in kinds or "OfflineModeIsEnabled" in kinds:
        return DownloadError(
            f"{where} is not in the local cache and the hub cannot be asked: connect to the "
            "network, or unset HF_HUB_OFFLINE"
        )
    if "RepositoryNotFoundError" in kinds or "HFValidationError" in kinds:
        return ModelNotFound(
            f"{where} does not exist or is private; check the name, or set HF_TOKEN"
        )
    if "EntryNotFoundError" in kinds:
        return ModelNotFound(f"{where}: the file is gone from the repository; name another")
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if kinds & _UNREACHABLE:
        return DownloadError(
            f"{where} could not be fetched: the hub cannot be reached ({reason[:300]}); "
            "check network and proxy, or give the path of a file"
        )
    return DownloadError(
        f"{where} could not be fetched: {reason[:300]}; try again, what has come is kept"
    )
