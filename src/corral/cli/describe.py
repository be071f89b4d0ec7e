"""What a model file says about itself, in a few numbers and words."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corral.gguf import Metadata, ModelFile, TensorInfo

_NAMES = ("general.name", "general.basename")


@dataclass(frozen=True, slots=True)
class TypeCount:
    """The tensors of one data type."""

    dtype: str
    tensors: int
    elements: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Description:
    """A model file in short."""

    file: str
    name: str
    architecture: str
    file_bytes: int
    parameters: int
    weights_bytes: int
    types: tuple[TypeCount, ...]
    """Most bytes first."""

    @property
    def bits_per_weight(self) -> float:
        """Average bits of one parameter."""
        return 8 * self.weights_bytes / self.parameters if self.parameters else 0.0

    @property
    def summary(self) -> str:
        """Architecture, size and main type: `llama 135M Q4_1`."""
        return f"{self.architecture} {_rounded(self.parameters)} {self._main_type}".strip()

    @property
    def _main_type(self) -> str:
        return max(self.types, key=lambda t: t.elements).dtype if self.types else ""


def describe(model: "ModelFile") -> Description:
    """Describe an open model file.

    Raises:
        InvalidModelFile: it does not tell its architecture.
    """
    types = _types(model.tensors.values())
    return Description(
        file=model.path.name,
        name=_name(model.metadata),
        architecture=model.metadata.architecture,
        file_bytes=model.size_bytes,
        parameters=sum(t.elements for t in types),
        weights_bytes=sum(t.size_bytes for t in types),
        types=types,
    )


def _name(metadata: "Metadata") -> str:
    known: Mapping[str, str] = {key: metadata.str(key) for key in _NAMES if key in metadata}
    return next(iter(known.values()), "")


def _types(tensors: Iterable["TensorInfo"]) -> tuple[TypeCount, ...]:
    counts: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        name = tensor.dtype.name
        counts[name] += 1
        elements[name] += tensor.num_elements
        sizes[name] += tensor.size_bytes
    return tuple(
        TypeCount(name, counts[name], elements[name], size) for name, size in sizes.most_common()
    )


def _rounded(count: int) -> str:
    """Return a count of parameters as model names give it: 135M, 1.5B, 70B."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= size:
            value = count / size
            return f"{value:.1f}{unit}" if value < 9.95 and size >= 10**9 else f"{value:.0f}{unit}"
    return str(count)
