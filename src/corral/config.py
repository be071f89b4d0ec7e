"""The settings that come from the environment: read here, once, and nowhere else.

    CORRAL_CACHE     cache directory; default $XDG_CACHE_HOME/corral, else ~/.cache/corral
    CORRAL_LOG       debug, info, warning (default) or error
    CORRAL_THREADS   threads of the CPU device; default: the device decides
    CORRAL_CPU       instruction set path of the CPU device, for tests; default: the best
    CORRAL_API_KEY   key that clients of the server must show, beside those of --api-key
    XDG_CACHE_HOME   the usual place of caches
    CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER   which cards CUDA programs see, and in what order

An empty variable counts as unset, but an empty CUDA_VISIBLE_DEVICES hides all. What a value
means for a device is not known here.
"""

import functools
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from corral.errors import InvalidArgument

LOG_LEVELS = ("debug", "info", "warning", "error")
MAX_THREADS = 1024


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment asks for."""

    cache: Path
    log_level: str = "warning"
    threads: int | None = None
    cpu: str | None = None
    cuda_visible: str | None = None
    cuda_order: str | None = None
    api_key: str | None = field(default=None, repr=False)


@functools.cache
def settings() -> Settings:
    """Return the settings of this process; the environment is read at the first call only.

    Raises:
        InvalidArgument: a variable holds what it may not.
    """
    return read_settings(os.environ)


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read the settings from an environment.

    Raises:
        InvalidArgument: naming the variable, what it holds and what it may hold.
    """
    return Settings(
        cache=_cache(environment),
        log_level=_log_level(environment),
        threads=_threads(environment),
        cpu=_cpu(environment),
        cuda_visible=environment.get("CUDA_VISIBLE_DEVICES"),
        cuda_order=environment.get("CUDA_DEVICE_ORDER"),
        api_key=environment.get("CORRAL_API_KEY") or None,
    )


def inherited(names: Iterable[str]) -> dict[str, str]:
    """Return those variables that are set, as they are now, for a process that gets no others."""
    return {name: os.environ[name] for name in names if name in os.environ}


def _cache(environment: Mapping[str, str]) -> Path:
    own = environment.get("CORRAL_CACHE")
    if own:
        return _expand(own)
    usual = Path(environment.get("XDG_CACHE_HOME") or "")
    # The XDG specification wants relative paths ignored.
    base = usual if usual.is_absolute() else _expand("~/.cache")
    return base / "corral"


def _expand(path: str) -> Path:
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:
        raise InvalidArgument(
            f"{path[:60]!r} needs a home directory and this user has none; set CORRAL_CACHE"
        ) from error


def _log_level(environment: Mapping[str, str]) -> str:
    level = (environment.get("CORRAL_LOG") or "warning").lower()
    if level not in LOG_LEVELS:
        raise _refusal("CORRAL_LOG", level, f"one of {', '.join(LOG_LEVELS)}")
    return level


def _threads(environment: Mapping[str, str]) -> int | None:
    text = environment.get("CORRAL_THREADS")
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,4}", text) or not 1 <= int(text) <= MAX_THREADS:
        raise _refusal("CORRAL_THREADS", text, f"an integer from 1 to {MAX_THREADS}")
    return int(text)


def _cpu(environment: Mapping[str, str]) -> str | None:
    name = environment.get("CORRAL_CPU")
    if not name:
        return None
    if not re.fullmatch(r"[a-z0-9_.-]{1,32}", name):
        raise _refusal("CORRAL_CPU", name, "the name of an instruction set, such as avx2")
    return name


def _refusal(variable: str, got: str, expected: str) -> InvalidArgument:
    return InvalidArgument(
        f"environment variable {variable} is {got[:60]!r}; expected {expected}, or unset it"
    )
