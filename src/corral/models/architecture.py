"""What a model family is, and how its file is found by the name in the metadata.

A family is one module in this folder with a constant `ARCHITECTURE`; nothing registers anywhere.
"""

import difflib
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

import corral.models as families
from corral.errors import InvalidModelFile, UnsupportedModel
from corral.gguf import Metadata
from corral.kv.spec import KVSpec, LayerSpec
from corral.models.hyper import Hyper
from corral.models.weights import Weights
from corral.tensor.build import GraphBuilder
from corral.tensor.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Architecture:
    """One family: how to read its sizes, what its layers keep, and its graph."""

    read: Callable[[Metadata], Hyper]
    layers: Callable[[Hyper], tuple[LayerSpec, ...]]
    build: Callable[[GraphBuilder, Weights, Hyper, KVSpec], Tensor]
    """Writes the graph and returns the logits."""


_SHARED = {
    *("architecture", "hyper", "weights", "footprint", "split", "assign", "fit", "blocks"),
    "mixture",
}


def architectures() -> tuple[str, ...]:
    """Return the names of the families corral runs."""
    names = (module.name for module in pkgutil.iter_modules(families.__path__))
    return tuple(sorted(name for name in names if name not in _SHARED))


def architecture(name: str) -> Architecture:
    """Return the family that files call `name`.

    Raises:
        UnsupportedModel: if corral does not run it.
    """
    if name not in architectures():
        near = difflib.get_close_matches(name, architectures(), n=1, cutoff=0.85)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UnsupportedModel(
            f"architecture {name!r} is not supported; corral runs "
            f"{', '.join(architectures())}{hint}"
        )
    found = importlib.import_module(f"{families.__name__}.{name}").ARCHITECTURE
    assert isinstance(found, Architecture)
    return found


def family_of(metadata: Metadata) -> Architecture:
    """Return the family of a model's file.

    Raises:
        InvalidModelFile: if the file is an adapter, which names the architecture of its model.
        UnsupportedModel: if corral does not run the family.
    """
    if metadata.str("general.type", "model") == "adapter":
        raise InvalidModelFile(
            f"{metadata.name} is a LoRA adapter: give a model, and this with --lora"
        )
    return architecture(metadata.architecture)
