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
    """Positions the layer looks back; None is all."""


@dataclass(frozen=True, slots=True)
class KVSpec:
    """What all layers keep, and how many blocks there are."""

    layers: tuple[LayerSpec, ...]
    dtype: DType
    num_blocks: int

    def state_shape(self, layer: int) -> tuple[int, int, int, int, int]:
        """Return (blocks, K|V, kv heads, tokens, dim) of one layer."""
        spec = self.layers[layer]
        return (self.num_blocks, 2, spec.kv_heads, BLOCK_TOKENS, spec.head_dim)


def blocks_for(num_tokens: int) -> int:
    """Return how many blocks hold `num_tokens` tokens."""
    return -(-num_tokens // BLOCK_TOKENS)
