"""What a router knows of each model: how it is wanted, where its files lie, what it would hold.

Plain frozen data. A preset is what people wrote, a footprint is what planning the file's header
found, an entry is both with the files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

HOST = "host"
"""The key of main memory among the memories of a machine; the others are UUIDs of cards."""
AUTO = "auto"
"""In place of devices: the router chooses."""
_NOTHING: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """How a model is to be loaded and kept; the defaults are those of a model nobody configured."""

    name: str
    source: str = ""
    """Where the file is: a path, or a name as for `--model`."""
    aliases: tuple[str, ...] = ()
    devices: tuple[str, ...] = (AUTO,)
    """`auto`, `cpu`, or cards by name or UUID; several share the layers."""
    split: tuple[float, ...] | None = None
    """For each device the weights it gets, in proportion; None lets free memory decide."""
    context: int | None = None
    """Tokens of one sequence; None is the model's own, at most 4096."""
    parallel: int = 8
    kv_type: str = "f16"
    kv_blocks: int | None = None
    context_shift: bool = False
    keep: int = 0
    """With `context_shift`: tokens of a prompt that are never dropped."""
    embeddings: bool = False
    threads: int | None = None
    chunk_beside: int | None = None
    queue: int = 128
    drain_s: float = 30.0
    sampling: Mapping[str, object] = field(default_factory=lambda: _NOTHING)
    """Fields of `SamplingParams` that replace what the model's makers advise."""
    template: str | None = None
    """A chat template in place of the file's own."""
    adapters: tuple[tuple[str, float], ...] = ()
    """Files of LoRA adapters, and what each counts for requests that say nothing of them."""
    pinned: bool = False
    """Never unloaded to make room, nor for being idle."""
    preload: bool = False
    ttl_s: float | None = None
    """Seconds without a request after which it is unloaded; None is never."""
    priority: int = 0
    """Of models that could make room the lowest goes; of those that wait the highest is next."""


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """What each layer takes of a card, so that any run of layers can be weighed by addition."""

    weights: tuple[int, ...]
    """Of weights that only this layer needs."""
    state: tuple[int, ...]
    shared: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """(bytes, layers) of weights that several layers need, which each device holds once."""

    def run_bytes(self, first: int, end: int) -> int:
        """Return the bytes of weights and state of layers first … end - 1."""
        own = sum(self.weights[first:end]) + sum(self.state[first:end])
        needed = (n for n, layers in self.shared if any(first <= at < end for at in layers))
        return own + sum(needed)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a model takes on one kind of device if it is there as a whole, in bytes by lifetime."""

    kind: str
    """`cpu` or `cuda`."""
    own: Mapping[str, int]
    """On the device; what a card's driver takes for a context is not counted here."""
    host: Mapping[str, int]
    """In main memory, beside a card; empty for the CPU, whose own memory that is."""
    layers: LayerBytes
    granularity: int = 1
    """What the driver rounds an allocation up to."""

    @property
    def own_bytes(self) -> int:
        """Bytes on the device."""
        return sum(self.own.values())

    @property
    def host_bytes(self) -> int:
        """Bytes in main memory beside it."""
        return sum(self.host.values())


@dataclass(frozen=True, slots=True)
class Planned:
    """What the header of a model's file told."""

    fingerprint: str
    """The same for the same weights, wherever the files lie and whatever they are called."""
    architecture: str
    context: int
    """Tokens of one sequence with this preset."""
    trained_context: int
    num_layers: int
    footprints: tuple[Footprint, ...]
    """One for each kind of device."""
    advice: Mapping[str, float] = field(default_factory=dict)
    """Fields of `SamplingParams` as the model's makers advise them."""

    def footprint(self, kind: str) -> Footprint:
        """Return what it takes on a kind of device; KeyError if it was not planned for it."""
        for footprint in self.footprints:
            if footprint.kind == kind:
                return footprint
        raise KeyError(kind)


@dataclass(frozen=True, slots=True)
class Unusable:
    """Why a model cannot be loaded, as found when its header was read."""

    code: str
    """The `code` of a class in `corral.errors`."""
    message: str


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model of the catalog."""

    preset: Preset
    paths: tuple[str, ...] = ()
    """Its files, the first one first; empty if none was found, then `header` says why."""
    size_bytes: int = 0
    """Of all files."""
    modified_s: float = 0.0
    """When the newest of them was written, in seconds since 1970."""
    header: Planned | Unusable | None = None
    """None while its header was not read yet."""

    @property
    def name(self) -> str:
        """What requests call it."""
        return self.preset.name

    @property
    def names(self) -> tuple[str, ...]:
        """Its name and its aliases."""
        return (self.preset.name, *self.preset.aliases)
