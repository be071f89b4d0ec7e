"""What is in an adapter's file, from its header alone, and whether it fits a model. Free of NumPy.

For a matrix W of the base model an adapter has two thin ones, and stands for W + scale · B·A:

    A  NAME.lora_a  (rank, columns of W)
    B  NAME.lora_b  (rows of W, rank)         scale = alpha / rank · what a user wants

The format is llama.cpp's, and what its loader refuses is refused here.
"""

import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from corral.errors import InvalidAdapter, InvalidModelFile, UnsupportedModel
from corral.gguf import Metadata, ModelFile, TensorInfo, open_model

TYPE_KEY: Final = "general.type"
KIND_KEY: Final = "adapter.type"
ALPHA_KEY: Final = "adapter.lora.alpha"
INVOCATION_KEY: Final = "adapter.alora.invocation_tokens"
MAX_RANK: Final = 1024
"""More is no thin matrix any more, and nobody trains it."""
_SUFFIXES: Final = (".lora_a", ".lora_b")
_EMBEDDING: Final = "token_embd.weight"
_ADAPTER: Final = "adapter"
_TYPE_ENTRY: Final = TYPE_KEY.encode() + struct.pack("<IQ", 8, len(_ADAPTER)) + _ADAPTER.encode()
"""Key, type of a string, length and text, as in a file."""
_BEGINNING_BYTES: Final = 16 << 10


@dataclass(frozen=True, slots=True)
class Pair:
    """What an adapter has for one matrix."""

    weight: str
    """Name of the matrix it changes."""
    a: TensorInfo
    b: TensorInfo

    @property
    def rank(self) -> int:
        """Rows of A and columns of B."""
        return self.a.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix it changes."""
        return self.b.shape[0], self.a.shape[1]


@dataclass(frozen=True, slots=True)
class Adapter:
    """The header of an adapter's file, which does not contradict itself."""

    path: Path
    architecture: str
    alpha: float
    """0 is none: then the rank does not count."""
    pairs: Mapping[str, Pair]
    """By the name of the matrix, in the order of the file."""

    @property
    def name(self) -> str:
        """The name of its file."""
        return self.path.name

    @property
    def max_rank(self) -> int:
        """The largest rank of its pairs, which may differ."""
        return max(pair.rank for pair in self.pairs.values())

    @property
    def num_parameters(self) -> int:
        """Elements of all its matrices."""
        return sum(p.a.num_elements + p.b.num_elements for p in self.pairs.values())

    def scale(self, pair: Pair) -> float:
        """Return the factor of B·A before a user's own."""
        return self.alpha / pair.rank if self.alpha else 1.0


def looks_like_adapter(path: Path) -> bool:
    """Whether a file says near its beginning that it is an adapter.

    Nothing is parsed, so whatever the file holds costs one short read: the entry `general.type` is
    looked for as GGUF writes it, and converters write it among the first. A file that cannot be
    read is none.
    """
    try:
        with path.open("rb") as file:
            return _TYPE_ENTRY in file.read(_BEGINNING_BYTES)
    except OSError:
        return False


@contextmanager
def open_adapter(path: Path) -> Iterator[tuple[Adapter, ModelFile]]:
    """Open an adapter's file and read its header; closed at the end.

    Raises:
        ModelNotFound: if there is no such file.
        InvalidModelFile: if the file is not GGUF, or truncated.
        InvalidAdapter: if it is no adapter, or contradicts itself.
        UnsupportedModel: if it is one of a kind that corral does not run.
    """
    with open_model(path) as file:
        yield read_adapter(file.path, file.metadata, file.tensors), file


def read_adapter(path: Path, metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> Adapter:
    """Read an adapter from the header of its file; raises as `open_adapter` does."""
    name = path.name
    _require_kind(name, metadata)
    alpha = metadata.float(ALPHA_KEY, 0.0)
    halves: dict[str, dict[str, TensorInfo]] = {}
    for tensor in tensors.values():
        weight, suffix = _weight_of(name, tensor)
        halves.setdefault(weight, {})[suffix] = tensor
    if not halves:
        raise InvalidAdapter(f"{name}: the adapter has no tensors, expected at least one pair")
    pairs = {weight: _pair(name, weight, found) for weight, found in halves.items()}
    adapter = Adapter(path, metadata.architecture, alpha, MappingProxyType(pairs))
    for pair in pairs.values():
        if not math.isfinite(adapter.scale(pair)) or abs(adapter.scale(pair)) > 1e6:
            raise InvalidAdapter(
                f"{name}: {ALPHA_KEY} is {alpha:g} and the rank of {pair.weight} {pair.rank}: "
                "expected a scale of a million at most"
            )
    return adapter


def _require_kind(name: str, metadata: Metadata) -> None:
    try:
        kind, form = metadata.str(TYPE_KEY), metadata.str(KIND_KEY, "")
    except InvalidModelFile as error:
        raise InvalidAdapter(f"{error}: the file is no adapter") from None
    if kind != _ADAPTER:
        raise InvalidAdapter(
            f"{name}: {TYPE_KEY} is {kind[:40]!r}, expected 'adapter': give the adapter's file, "
            "not that of a model"
        )
    if form != "lora":
        raise InvalidAdapter(f"{name}: {KIND_KEY} is {form[:40]!r}, expected 'lora'")
    if INVOCATION_KEY in metadata:
        raise UnsupportedModel(
            f"{name}: it is an activated LoRA ({INVOCATION_KEY}), which changes the model from "
            "certain tokens on; corral runs adapters that always count"
        )


def _weight_of(name: str, tensor: TensorInfo) -> tuple[str, str]:
    for suffix in _SUFFIXES:
        weight = tensor.name.removesuffix(suffix)
        if weight and weight != tensor.name:
            if len(tensor.shape) != 2:
                raise UnsupportedModel(
                    f"{name}: tensor {tensor.name} has {len(tensor.shape)} dimensions; corral "
                    "runs adapters of matrices, and none of experts"
                )
            return weight, suffix
    raise InvalidAdapter(
        f"{name}: tensor {tensor.name!r} is neither a {_SUFFIXES[0]} nor a {_SUFFIXES[1]}; "
        "changes of norms and biases are no LoRA"
    )


def _pair(name: str, weight: str, halves: Mapping[str, TensorInfo]) -> Pair:
    missing = [suffix for suffix in _SUFFIXES if suffix not in halves]
    if missing:
        raise InvalidAdapter(f"{name}: {weight} has no {missing[0]}, expected both halves")
    a, b = (halves[suffix] for suffix in _SUFFIXES)
    if a.shape[0] != b.shape[1]:
        raise InvalidAdapter(
            f"{name}: the halves of {weight} have ranks {a.shape[0]} and {b.shape[1]} "
            f"({_sizes(a.shape)} and {_sizes(b.shape)}), expected one"
        )
    if not 1 <= a.shape[0] <= MAX_RANK:
        raise InvalidAdapter(f"{name}: {weight} has rank {a.shape[0]}, expected 1 to {MAX_RANK}")
    if 0 in a.shape or 0 in b.shape:
        raise InvalidAdapter(f"{name}: a half of {weight} is empty")
    return Pair(weight, a, b)


def require_fitting(
    adapter: Adapter, architecture: str, tensors: Mapping[str, TensorInfo], *, base: str
) -> None:
    """Refuse an adapter that was not made for a model.

    Args:
        adapter: what is to be checked.
        architecture: of the model.
        tensors: of the model.
        base: name of the model, for messages.

    Raises:
        InvalidAdapter: if the architecture differs, or a matrix is missing or has another shape.
        UnsupportedModel: if it changes what corral cannot change.
    """
    if adapter.architecture != architecture:
        raise InvalidAdapter(
            f"{adapter.name}: the adapter is for {adapter.architecture}, {base} is {architecture}: "
            "use it with the model that it was trained on"
        )
    for pair in adapter.pairs.values():
        _require_matrix(adapter.name, pair, tensors.get(pair.weight), base)


def _require_matrix(name: str, pair: Pair, weight: TensorInfo | None, base: str) -> None:
    if weight is None:
        raise InvalidAdapter(
            f"{name}: it changes {pair.weight}, which {base} does not have: use it with the model "
            "that it was trained on"
        )
    if pair.weight == _EMBEDDING:
        raise UnsupportedModel(
            f"{name}: it changes {_EMBEDDING}; corral runs adapters of the layers' matrices and "
            "of the output"
        )
    if weight.shape != pair.shape:
        raise InvalidAdapter(
            f"{name}: it changes {pair.weight} of {_sizes(pair.shape)}, in {base} that has "
            f"{_sizes(weight.shape)}: use it with the model that it was trained on"
        )


def _sizes(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
