"""Names of the models in the cache directory. Knows no network."""

import difflib
from collections.abc import Iterable
from pathlib import Path

from corral.errors import ModelNotFound
from corral.gguf.shards import ShardName

_SUFFIX = ".gguf"


def names(models: Path) -> dict[str, Path]:
    """Return the models of a directory by name; a set of shards counts once, by its first file."""
    found = {}
    for path in sorted(models.glob(f"*{_SUFFIX}")):
        shard = ShardName.parse(path.name)
        if path.is_file() and (shard is None or shard.number == 1):
            found[shard.stem if shard else path.stem] = path
    return found


def find(name: str, models: Path) -> Path:
    """Return the model called so; letter case is free and the beginning of a name will do.

    Raises:
        ModelNotFound: no name or more than one begins so; the message lists what is near.
    """
    known = names(models)
    wanted = name.removesuffix(_SUFFIX).lower()
    begins = [known_name for known_name in known if known_name.lower().startswith(wanted)]
    exact = [known_name for known_name in begins if known_name.lower() == wanted]
    if len(exact) == 1 or len(begins) == 1:
        return known[(exact if len(exact) == 1 else begins)[0]]
    if begins:
        raise ModelNotFound(f"{name!r} could be {_listed(begins)}; write more of the name")
    raise ModelNotFound(
        f"no model {name!r}: there is no such file and {_what_is_cached(known)}"
        f"{did_you_mean(wanted, [*known, 'demo'])}"
    )


def did_you_mean(wanted: str, candidates: Iterable[str]) -> str:
    """Return the end of a message that proposes names close to `wanted`, or nothing."""
    lowered = {candidate.lower(): candidate for candidate in candidates}
    near = difflib.get_close_matches(wanted.lower(), lowered, n=3)
    return f"; did you mean {' or '.join(lowered[name] for name in near)}?" if near else ""


def _what_is_cached(known: Iterable[str]) -> str:
    listed = _listed(known)
    if listed:
        return f"the cache holds {listed}"
    return "the cache is empty (demo is fetched when asked for, hf:owner/repo too)"


def _listed(items: Iterable[str], limit: int = 5) -> str:
    everything = list(items)
    more = len(everything) - limit
    shown = ", ".join(everything[:limit])
    return f"{shown} and {more} more" if more > 0 else shown
