"""How tokens are chosen when the user does not say: as the model's makers advise, else as corral.

    option given  >  the demo model's advice, the file's general.sampling.*  >  SamplingParams()

Each field is decided by itself, as llama.cpp does.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from corral.cli.output import note
from corral.hub.demo import DEMO
from corral.log import logger

if TYPE_CHECKING:
    from corral import SamplingParams
    from corral.gguf.metadata import Metadata

_log = logger(__name__)


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
    from corral.contract.advice import PREFIX, advice_of

    def ignored(key: str, content: object) -> None:
        note(f"{key} of {model.name} is {str(content)[:40]!r}, which cannot be: ignored")

    return advice_of(model.metadata.plain(PREFIX), ignored)
