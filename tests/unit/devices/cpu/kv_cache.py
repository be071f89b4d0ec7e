"""The state of a layer in NumPy: blocks of 32 tokens, keys across tokens, values along them."""

from dataclasses import dataclass, field

import numpy as np

from corral.quant.types import DType

TOKENS = 32
_TYPES = {DType.F32: np.float32, DType.F16: np.float16, DType.BF16: np.uint16}


def rounded(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Return what a state of the type keeps of F32 values: (…, dim)."""
    if dtype is DType.F32:
        return values
    if dtype is DType.F16:
        return values.astype(np.float16).astype(np.float32)
    if dtype is DType.BF16:
        return (to_bf16(values).astype(np.uint32) << 16).view(np.float32)
    codes, scales = to_q8_0(values)
    groups = codes.reshape(*codes.shape[:-1], -1, 32)
    return (groups * scales.astype(np.float32)[..., None]).reshape(values.shape)


def to_bf16(values: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def to_q8_0(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return int8 codes (…, dim) and F16 scales (…, dim / 32)."""
    groups = values.reshape(*values.shape[:-1], -1, 32)
    scales = np.abs(groups).max(axis=-1) / np.float32(127)
    with np.errstate(divide="ignore"):
        inverse = np.where(scales > 0, np.float32(1) / scales, np.float32(0))
    codes = np.rint(groups * inverse[..., None]).astype(np.int8)
    return codes.reshape(values.shape), scales.astype(np.float16)


@dataclass
class Cache:
    """The state of one layer, full of NaN (or of codes and NaN scales) until written."""

    dtype: DType
    blocks: int
    kv_heads: int
    dim: int
    state: np.ndarray = field(init=False)
    """(blocks, K|V, kv heads, bytes of a part)"""

    def __post_init__(self) -> None:
        shape = (self.blocks, 2, self.kv_heads, self.dtype.row_bytes(self.dim) * TOKENS)
        self.state = np.full(shape, 0xFF, np.uint8)

    def write(self, block: int, first: int, k: np.ndarray, v: np.ndarray) -> None:
        """Store keys and values of a block's tokens from `first` on: (tokens, kv heads, dim)."""
        slots = slice(first, first + len(k))
        for part, values in enumerate((k, v)):
            for head in range(self.kv_heads):
                self._write(self.state[block, part, head], part, slots, values[:, head])

    def read_keys(self, block: int) -> np.ndarray:
        """Return the keys of a block as F32: (32 tokens, kv heads, dim)."""
        return np.stack([self._keys(part) for part in self.state[block, 0]], axis=1)

    def _keys(self, data: np.ndarray) -> np.ndarray:
        dim = self.dim
        if self.dtype is DType.Q8_0:
            middle = TOKENS * dim
            codes = self._cells(data[:middle].view(np.int8), 0, dim).astype(np.float32)
            scales = self._cells(data[middle:].view(np.float16), 0, dim // 32)
            return (codes * scales.astype(np.float32).repeat(32, axis=0)).T
        stored = self._cells(data.view(_TYPES[self.dtype]), 0, dim).T
        if self.dtype is DType.BF16:
            return (stored.astype(np.uint32) << 16).view(np.float32)
        return stored.astype(np.float32)

    def _write(self, data: np.ndarray, part: int, slots: slice, values: np.ndarray) -> None:
        dim = self.dim
        if self.dtype is not DType.Q8_0:
            stored = to_bf16(values) if self.dtype is DType.BF16 else values
            self._cells(data.view(_TYPES[self.dtype]), part, dim)[:, slots] = stored.T
            return
        codes, scales = to_q8_0(values)
        middle = TOKENS * dim
        self._cells(data[:middle].view(np.int8), part, dim)[:, slots] = codes.T
        self._cells(data[middle:].view(np.float16), part, dim // 32)[:, slots] = scales.T

    @staticmethod
    def _cells(flat: np.ndarray, part: int, dim: int) -> np.ndarray:
        """Return a part as (dim, tokens)."""
        return flat.reshape(dim, TOKENS) if part == 0 else flat.reshape(TOKENS, dim).T
