"""How the makers of a model advise to choose tokens, as its file says it."""

from collections.abc import Callable, Mapping
from typing import Final

from corral.contract.sampling import SamplingParams
from corral.errors import InvalidArgument

PREFIX: Final = "general.sampling."
KEYS: Final = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.xtc_probability": "xtc_probability",
    "general.sampling.xtc_threshold": "xtc_threshold",
    "general.sampling.penalty_repeat": "repeat_penalty",
    "general.sampling.penalty_last_n": "repeat_last_n",
}
"""What a file may advise, by llama.cpp's names, and the field it stands for."""


def advice_of(
    values: Mapping[str, object], ignored: Callable[[str, object], None] | None = None
) -> dict[str, float]:
    """Return what is advised, by field of `SamplingParams`.

    Args:
        values: the metadata that begin with `PREFIX`.
        ignored: is told of each key whose value cannot be, and left out.
    """
    found: dict[str, float] = {}
    for key, field in KEYS.items():
        if key not in values:
            continue
        try:
            value = _number(values[key])
            SamplingParams(**{field: value})  # type: ignore[arg-type]
        except InvalidArgument:
            if ignored is not None:
                ignored(key, values[key])
        else:
            found[field] = value
    return found


def _number(content: object) -> float:
    if isinstance(content, bool) or not isinstance(content, int | float):
        raise InvalidArgument(f"{content!r} is no number")
    # The file keeps 32 bits: 0.95 was meant where 0.949999988 is read.
    return content if isinstance(content, int) else float(f"{content:.6g}")
