"""The shape and size of the keys and values that a model keeps."""

from dataclasses import dataclass

from corral.quant.types import DType

BLOCK_TOKENS = 32
"""Tokens of one block."""

KV_TYPES = {"f16": DType.F16, "bf16": DType.BF16, "f32": DType.F32, "q8_0": DType.Q8_0}
"""Data types a cache can have, by the name users give."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What one layer keeps a token."""

    kv_heads: int
    head_dim: int
    window: int | None = None
    """Positions the layer looks back, its own included; None is all."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Layers with one window share block ids: one pool and one table a sequence."""

    window: int | None
    num_blocks: int

    @property
    def tables_name(self) -> str:
        """Name of the graph input that holds the group's block tables."""
        return "tables" if self.window is None else f"tables.window{self.window}"


@dataclass(frozen=True, slots=True)
class KVSpec:
    """What all layers keep, and how many blocks each group of layers has."""

    layers: tuple[LayerSpec, ...]
    dtype: DType
    groups: tuple[GroupSpec, ...]

    def group(self, layer: int) -> GroupSpec:
        """Return the group of a layer."""
        window = self.layers[layer].window
        return next(group for group in self.groups if group.window == window)

    def block_bytes(self, layer: int) -> int:
        """Return the bytes that one block takes in one layer."""
        spec = self.layers[layer]
        return 2 * spec.kv_heads * BLOCK_TOKENS * self.dtype.row_bytes(spec.head_dim)

    def state_shape(self, layer: int) -> tuple[int, int, int, int, int]:
        """Return (blocks, K|V, kv heads, tokens, dim) of one layer."""
        spec = self.layers[layer]
        return (self.group(layer).num_blocks, 2, spec.kv_heads, BLOCK_TOKENS, spec.head_dim)


def state_name(layer: int) -> str:
    """Return what the state of a layer is called in graphs and layouts."""
    return f"kv.{layer}"


def blocks_for(num_tokens: int) -> int:
    """Return how many blocks hold `num_tokens` tokens."""
    return -(-num_tokens // BLOCK_TOKENS)


def window_blocks(window: int, chunk_tokens: int) -> int:
    """Return how many blocks a windowed sequence holds at most while a chunk is computed."""
    return (window + chunk_tokens - 3) // BLOCK_TOKENS + 2


def kv_spec(
    layers: tuple[LayerSpec, ...],
    dtype: DType,
    *,
    context: int,
    parallel: int,
    chunk_tokens: int,
    num_blocks: int | None = None,
) -> KVSpec:
    """Return the spec that lets `parallel` sequences reach `context` tokens each.

    With `num_blocks` layers that see everything have so many blocks, at least those of one full
    sequence; windowed ones, whose blocks are few, always have enough.
    """
    groups = []
    for window in dict.fromkeys(layer.window for layer in layers):
        blocks = blocks_for(context) * parallel if num_blocks is None else num_blocks
        if window is not None:
            blocks = min(blocks_for(context), window_blocks(window, chunk_tokens)) * parallel
        groups.append(GroupSpec(window, blocks))
    return KVSpec(layers, dtype, tuple(groups))
