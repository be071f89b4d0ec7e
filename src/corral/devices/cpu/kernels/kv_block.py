"""How the CPU keeps keys and values: where each value of a block stands, in every data type.

The state of a layer is (blocks, K|V, kv heads) parts. A part holds 32 tokens of one head: keys as
(dim, 32 tokens), values as (32 tokens, dim), so that both are read along their rows. A part of
Q8_0 is 32·dim int8 codes, then an F16 scale for each 32 dimensions of a token: (dim/32, 32 tokens)
for keys, (32 tokens, dim/32) for values.
"""

from collections.abc import Callable
from dataclasses import dataclass

from corral.devices.cpu.kernels.columns import LANES
from corral.devices.cpu.simd import Kernel, Type, Value, bf16, convert, f16, f32, i8, i32, splat
from corral.kv.spec import BLOCK_TOKENS
from corral.quant.types import DType

GROUP = 32
"""Dimensions that share a scale of Q8_0."""

_LINE_BYTES = 64
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


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of 16-column vectors to read as F32: a part in place, or a part already converted."""

    kernel: Kernel
    element: Type
    address: Value
    columns: int
    scale_at: Callable[[Value, Value], Value] | None = None
    """Gives the scales of a vector's lanes, by row and first column."""
    next: Value | None = None
    """Address of the part that will be read after this one."""

    @property
    def row_bytes(self) -> int:
        """Bytes from a row to the next."""
        return self.columns * self.element.bytes

    def load(self, row: Value, column: Value) -> Value:
        """Return 16 columns of a row as F32."""
        at = self.address + row * self.row_bytes + column * self.element.bytes
        stored = self.kernel.load(self.element.x(LANES), at)
        if self.scale_at is None:
            return convert(stored, f32)
        return convert(convert(stored, i32), f32) * self.scale_at(row, column)

    def fetch_next(self, row: Value) -> None:
        """Ask for the same row of the next part, so that it is there when its turn comes."""
        if self.next is not None:
            for line in range(0, self.row_bytes, _LINE_BYTES):
                self.kernel.prefetch(self.next + row * self.row_bytes + line)


def keys(k: Kernel, part: Part, address: Value, next_part: Value) -> Matrix:
    """Return the keys of a part: a row a dimension, a column a token."""

    def scale(row: Value, column: Value) -> Value:
        element = row // GROUP * BLOCK_TOKENS + column
        stored = k.load(f16.x(LANES), address + part.scales_offset + element * 2)
        return convert(stored, f32)

    scales = scale if part.is_scaled else None
    return Matrix(k, part.element, address, BLOCK_TOKENS, scales, next_part)


def values(k: Kernel, part: Part, address: Value, next_part: Value) -> Matrix:
    """Return the values of a part: a row a token, a column a dimension."""

    def scale(row: Value, column: Value) -> Value:
        element = row * (part.head_dim // GROUP) + column // GROUP
        return splat(convert(k.load(f16, address + part.scales_offset + element * 2), f32), LANES)

    scales = scale if part.is_scaled else None
    return Matrix(k, part.element, address, part.head_dim, scales, next_part)
