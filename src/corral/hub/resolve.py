"""From the name of a model to the path of its file.

hf:owner/repo[/file]     a repository of the Hugging Face hub, in that library's own cache
demo                     the demo model, fetched once
./x.gguf, x.gguf, ~/x    a file
anything else            a model of the cache directory, by name or its beginning
"""

import os
from pathlib import Path

from corral.config import settings
from corral.errors import InvalidArgument, ModelNotFound
from corral.hub import cached, demo, huggingface
from corral.hub.progress import Progress
from corral.paths import CacheTree

DEMO_NAME = "demo"
_HUB_PREFIX = "hf:"
_SUFFIX = ".gguf"


def resolve(name: str | os.PathLike[str], *, progress: Progress | None = None) -> Path:
    """Return the path of a model's only or first file, fetching the model where that is needed.

    Raises:
        ModelNotFound: no file, cached model or repository is called so.
        InvalidArgument: the name cannot mean any one model.
        DownloadError: the model could not be fetched.
    """
    if not isinstance(name, str):
        return _file(Path(name))
    if not name or "\0" in name:
        raise InvalidArgument(
            "the name of the model is empty or holds a NUL; give a path or a name"
        )
    if name == DEMO_NAME:
        return demo.fetch(demo.DEMO, _models(), progress=progress)
    if name.startswith(_HUB_PREFIX):
        return huggingface.fetch(name.removeprefix(_HUB_PREFIX), progress=progress)
    path = _expanded(name)
    if path.exists() or os.sep in name:
        return _file(path)
    return cached.find(name, _models())


def may_fetch(name: str | os.PathLike[str]) -> bool:
    """Say whether `resolve` might have to ask others for a model of this name."""
    return isinstance(name, str) and (name == DEMO_NAME or name.startswith(_HUB_PREFIX))


def pull(name: str, *, progress: Progress | None = None) -> Path:
    """Fetch a model, or what changed of it, and return the path of its only or first file.

    Raises:
        InvalidArgument: the name is not one that can be fetched.
        ModelNotFound: there is no such repository or file.
        DownloadError: the model could not be fetched.
    """
    if name == DEMO_NAME:
        return resolve(name, progress=progress)
    if name.startswith(_HUB_PREFIX):
        reference = name.removeprefix(_HUB_PREFIX)
        return huggingface.fetch(reference, progress=progress, is_fresh_wanted=True)
    raise InvalidArgument(f"cannot fetch {name!r}; expected demo or hf:owner/repo[/file]")


def _models() -> Path:
    return CacheTree(settings().cache).models()


def _expanded(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise ModelNotFound(f"{name!r}: there is no such home directory") from error


def _file(path: Path) -> Path:
    if path.is_dir():
        raise InvalidArgument(
            f"{path} is a directory{_choices(path)}; give the path of a GGUF file"
        )
    if not path.exists():
        raise ModelNotFound(f"{path}: no such file{_similar(path)}")
    return path


def _choices(directory: Path) -> str:
    inside = [path.name for path in _models_in(directory)]
    return f" with {', '.join(inside[:5])}" if inside else " without GGUF files"


def _similar(path: Path) -> str:
    if not path.parent.is_dir():
        return f", and no directory {path.parent}"
    return cached.did_you_mean(path.name, (near.name for near in _models_in(path.parent)))


def _models_in(directory: Path) -> list[Path]:
    try:
        return sorted(directory.glob(f"*{_SUFFIX}"))
    except OSError:
        return []
