"""How the CPU keeps keys and values: where each value of a block stands, in every data type.

The state of a layer is (blocks, K|V, kv heads) parts. A part holds 32 tokens of one head: keys as
(dim, 32 tokens), values as (32 tokens, dim), so that both are read along their rows. A part of
Q8_0 is 32·dim int8 codes, then an F16 scale for each 32 dimensions of a token: (dim/32, 32 tokens)
for keys, (32 tokens, dim/32) for values.
"""

from dataclasses import dataclass

from corral.devices.cpu.simd import Type, bf16, f16, f32, i8
from corral.kv.spec import BLOCK_TOKENS
from corral.quant.types import DType

GROUP = 32
"""Dimensions that share a scale of Q8_0."""

_ELEMENTS: dict[DType, Type] = {
    DType.F32: f32,
    DType.F16: f16,
    DType.BF16: bf16,
    DType.Q8_0: i8,
}


@dataclass(frozen=True, slots=True)
class Part:
    """The keys or the values that one block holds for one head."""

    dtype: DType
    head_dim: int

    @property
    def element(self) -> Type:
        """Type of one stored value, or of its code."""
        return _ELEMENTS[self.dtype]

    @property
    def is_scaled(self) -> bool:
        """Whether codes have scales."""
        return self.dtype is DType.Q8_0

    @property
    def scales_offset(self) -> int:
        """Bytes before the scales: those of all codes."""
        return BLOCK_TOKENS * self.head_dim * self.element.bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of the part."""
        return self.dtype.row_bytes(self.head_dim) * BLOCK_TOKENS
