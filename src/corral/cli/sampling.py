"""How tokens are chosen when the user does not say: as the model's makers advise, else as corral.

    option given  >  the demo model's advice, the file's general.sampling.*  >  SamplingParams()

Each field is decided by itself, as llama.cpp does.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from corral.cli.output import note
from corral.errors import InvalidArgument
from corral.hub.demo import DEMO
from corral.log import logger

if TYPE_CHECKING:
    from corral import SamplingParams
    from corral.gguf.metadata import Metadata

_log = logger(__name__)
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


class Described(Protocol):
    """A model as far as advice goes: a loaded one, or the header of a file."""

    @property
    def name(self) -> str:
        """The name of the file."""
        ...

    @property
    def metadata(self) -> "Metadata":
        """What its header says."""
        ...


def choose(model: Described, given: Mapping[str, float]) -> "SamplingParams":
    """Return the sampling for a model: what is given, then what is advised, then the defaults.

    Raises:
        InvalidArgument: a given value is out of range.
    """
    from corral.contract.sampling import SamplingParams

    advised = advice(model)
    _log.debug("sampling of %s: %s advised, %s given", model.name, advised, dict(given))
    return SamplingParams(**{**advised, **given})  # type: ignore[arg-type]


def advice(model: Described) -> dict[str, float]:
    """Return what the makers of a model advise, by field; advice that cannot be is left out."""
    if model.name == DEMO.file_name:
        return dict(DEMO.sampling)
    from corral.contract.sampling import SamplingParams

    found: dict[str, float] = {}
    for key, field in KEYS.items():
        if key not in model.metadata:
            continue
        content = model.metadata.value(key).content
        try:
            value = _number(content)
            SamplingParams(**{field: value})  # type: ignore[arg-type]
        except InvalidArgument:
            note(f"{key} of {model.name} is {str(content)[:40]!r}, which cannot be: ignored")
        else:
            found[field] = value
    return found


def _number(content: object) -> float:
    if isinstance(content, bool) or not isinstance(content, int | float):
        raise InvalidArgument(f"{content!r} is no number")
    # The file keeps 32 bits: 0.95 was meant where 0.949999988 is read.
    return content if isinstance(content, int) else float(f"{content:.6g}")
