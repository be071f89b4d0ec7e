"""From bytes of any runnable type to float32: the oracle of every kernel.

Bit-exact with the reference: products and sums are rounded to float32 in the order of the rule in
`blocks.py`.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from corral.errors import InvalidArgument, UnsupportedModel
from corral.quant import i_quants, k_quants, legacy
from corral.quant.blocks import Blocks, Bytes, Floats
from corral.quant.packed import LAYOUTS
from corral.quant.types import DType

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_SPLITS: Final[dict[DType, Callable[[Bytes], Blocks]]] = {
    DType.Q4_0: legacy.split_q4_0,
    DType.Q4_1: legacy.split_q4_1,
    DType.Q5_0: legacy.split_q5_0,
    DType.Q5_1: legacy.split_q5_1,
    DType.Q8_0: legacy.split_q8_0,
    DType.Q2_K: k_quants.split_q2_k,
    DType.Q3_K: k_quants.split_q3_k,
    DType.Q4_K: k_quants.split_q4_k,
    DType.Q5_K: k_quants.split_q5_k,
    DType.Q6_K: k_quants.split_q6_k,
    DType.IQ4_NL: i_quants.split_iq4_nl,
    DType.IQ4_XS: i_quants.split_iq4_xs,
    DType.MXFP4: i_quants.split_mxfp4,
}
_CHUNK_ELEMENTS: Final = 1 << 20
"""Decoded at once, so that temporaries stay small beside the result."""


def dequantize(
    data: "ReadableBuffer | npt.NDArray[np.generic]", dtype: DType, shape: Sequence[int]
) -> Floats:
    """Decode a tensor to float32 of `shape`, row-major.

    Raises:
        UnsupportedModel: if corral does not run the type.
        InvalidArgument: if the bytes are not those of such a tensor.
    """
    raw = as_bytes(data)
    expected = dtype.row_bytes(shape[-1]) * math.prod(shape[:-1]) if shape else dtype.block_bytes
    if raw.size != expected:
        raise InvalidArgument(
            f"{raw.size} bytes of {dtype.name} came, {tuple(shape)} takes {expected}"
        )
    if dtype in (DType.F32, DType.F16, DType.BF16):
        return _decode_floats(raw, dtype).reshape(shape)
    blocks = raw.reshape(-1, dtype.block_bytes)
    values = np.empty((len(blocks), dtype.block_elements), dtype=np.float32)
    step = _CHUNK_ELEMENTS // dtype.block_elements
    for start in range(0, len(blocks), step):
        chunk = split_blocks(blocks[start : start + step], dtype)
        values[start : start + step] = combine(chunk, dtype)
    return values.reshape(shape)


def as_bytes(data: "ReadableBuffer | npt.NDArray[np.generic]") -> Bytes:
    """Return the bytes of a buffer or array as a flat array, without a copy where possible."""
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    view = memoryview(data)
    return np.frombuffer(view, dtype=np.uint8) if view.nbytes else np.empty(0, np.uint8)


def split_blocks(blocks: Bytes, dtype: DType) -> Blocks:
    """Take quantized blocks apart, without rounding: (n, block bytes).

    Raises:
        UnsupportedModel: if corral does not run the type, or it is no quantized type.
    """
    split = _SPLITS.get(dtype)
    if split is None:
        raise UnsupportedModel(
            f"cannot decode {dtype.name}; types that can be: "
            f"F32, F16, BF16, {', '.join(t.name for t in _SPLITS)}"
        )
    with np.errstate(invalid="ignore"):  # a scale may be a signalling NaN
        return split(blocks)


def combine(blocks: Blocks, dtype: DType) -> Floats:
    """Compute the values of blocks: (n, block elements)."""
    layout = LAYOUTS[dtype]
    if layout.values is not None:
        codes = np.array(layout.values, dtype=np.float32)[blocks.codes]
    else:
        codes = blocks.codes.astype(np.float32) - np.float32(layout.zero)
    # NaN and infinite scales are legal bytes; their values are what arithmetic makes of them.
    with np.errstate(invalid="ignore", over="ignore"):
        scale = _times(blocks.scale, blocks.sub_scales)
        parts = codes.reshape(len(codes), scale.shape[1], -1) * scale[..., None]
        if blocks.offset is not None:
            parts += _times(blocks.offset, blocks.sub_offsets)[..., None]
    return parts.reshape(codes.shape)


def _times(scale: Floats, parts: npt.NDArray[np.int8] | Bytes | None) -> Floats:
    """Return (n, parts), or (n, 1) for types whose scale serves the whole block."""
    return scale[:, None] if parts is None else scale[:, None] * parts.astype(np.float32)


def _decode_floats(raw: Bytes, dtype: DType) -> Floats:
    if dtype is DType.F32:
        return raw.view("<f4").astype(np.float32)
    if dtype is DType.F16:
        with np.errstate(invalid="ignore"):
            return raw.view("<f2").astype(np.float32)
    return (raw.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
