"""Which models lie in folders: every GGUF file, and every set of shards once; none is opened."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from corral.errors import InvalidArgument, InvalidModelFile, ModelNotFound
from corral.gguf.shards import ShardName
from corral.log import logger
from corral.router.entry import ModelEntry

_SUFFIX = ".gguf"
_PROJECTOR = "mmproj"
"""How files begin that belong to a model and are none."""
_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class FoundModel:
    """The files of a model, as they are at one moment."""

    name: str
    """The file's name without its ending, or that of the set."""
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    modified_ns: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(self.sizes)

    @property
    def modified_s(self) -> float:
        """When the newest of them was written, in seconds since 1970."""
        return max(self.modified_ns, default=0) / 1e9


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    size: int
    modified_ns: int


def scan(folders: Iterable[str]) -> tuple[FoundModel, ...]:
    """Return the models of folders and of the folders in them, by name; each name once.

    Where two models have one name, the later one is called by its folder too. A folder that cannot
    be read is left out, and the log says so.
    """
    found: dict[str, FoundModel] = {}
    seen: set[str] = set()
    for folder in folders:
        for model in _models_below(folder, seen):
            name = _free_name(model, folder, found)
            found[name] = FoundModel(name, model.paths, model.sizes, model.modified_ns)
    return tuple(found[name] for name in sorted(found))


def look_at(path: Path) -> FoundModel:
    """Return the model of one file, with all its shards if it is one of a set.

    Raises:
        ModelNotFound: if the file is not there.
        InvalidArgument: if it is no file.
    """
    shard = ShardName.parse(path.name)
    if shard is None:
        return _model(path.stem, [_required(path)])
    try:
        siblings = _files_in(path.parent)
    except OSError:
        siblings = []
    of_set = [file for file in siblings if _set_of(file) == (shard.stem, shard.count)]
    return _model(shard.stem, of_set or [_required(path)])


def require_unchanged(entry: ModelEntry) -> None:
    """Refuse a model whose files are not those any more that its footprint was made of.

    An entry that does not say how large they were is taken as it is.

    Raises:
        ModelNotFound: if one of them is gone.
        InvalidModelFile: if one was written since.
    """
    if not entry.size_bytes:
        return
    now = _model(entry.name, [_required(Path(path)) for path in entry.paths])
    if (now.size_bytes, now.modified_s) != (entry.size_bytes, entry.modified_s):
        raise InvalidModelFile(
            f"the file of {entry.name} was written since its header was read, so what it needs is "
            "not known: reload the list of models (SIGHUP, or POST /models/reload)"
        )


def _required(path: Path) -> _File:
    try:
        status = path.stat()
    except OSError as error:
        raise ModelNotFound(f"{path}: {error.strerror or 'no such file'}") from error
    if not path.is_file():
        raise InvalidArgument(f"{path} is no file; give the path of a GGUF file")
    return _File(str(path), status.st_size, status.st_mtime_ns)


def _models_below(folder: str, seen: set[str]) -> Iterable[FoundModel]:
    """Yield the models of a folder and those in it; folders seen before are not entered again."""
    for place, folders, _files in os.walk(folder, onerror=_unreadable, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        try:
            files = _files_in(Path(place))
        except OSError as error:
            _unreadable(error)
            continue
        yield from _grouped(files)


def _unreadable(error: OSError) -> None:
    _log.warning("a folder is left out: %s", error)


def _files_in(folder: Path) -> list[_File]:
    """Return the GGUF files of a folder, by name; what is gone meanwhile is left out."""
    files = []
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if not name.endswith(_SUFFIX) or name.startswith((".", _PROJECTOR)):
                continue
            try:
                if entry.is_file():
                    status = entry.stat()
                    files.append(_File(entry.path, status.st_size, status.st_mtime_ns))
            except OSError as error:
                _unreadable(error)
    return sorted(files, key=lambda file: file.path)


def _set_of(file: _File) -> tuple[str, int] | None:
    shard = ShardName.parse(os.path.basename(file.path))  # noqa: PTH119  (a thousand of them)
    return None if shard is None else (shard.stem, shard.count)


def _grouped(files: Sequence[_File]) -> Iterable[FoundModel]:
    sets: dict[tuple[str, int], list[_File]] = {}
    for file in files:
        of_set = _set_of(file)
        if of_set is None:
            yield _model(Path(file.path).stem, [file])
        else:
            sets.setdefault(of_set, []).append(file)
    for (stem, _count), members in sets.items():
        yield _model(stem, members)


def _model(name: str, files: Sequence[_File]) -> FoundModel:
    return FoundModel(
        name,
        tuple(file.path for file in files),
        tuple(file.size for file in files),
        tuple(file.modified_ns for file in files),
    )


def _free_name(model: FoundModel, folder: str, taken: Iterable[str]) -> str:
    """Return a name that no model found before has."""
    names = set(taken)
    if model.name not in names:
        return model.name
    inside = Path(os.path.relpath(model.paths[0], folder)).parent
    longer = model.name if inside == Path() else f"{inside}/{model.name}"
    longer = longer if longer not in names else f"{Path(folder).name}/{longer}"
    number, name = 2, longer
    while name in names:
        name, number = f"{longer}#{number}", number + 1
    return name
