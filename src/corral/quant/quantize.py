"""From float32 to bytes of a type, bit for bit as ggml's reference quantizers do.

No importance of columns is known here, so what ggml does without an importance matrix is done.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from corral.errors import InvalidArgument
from corral.quant import k_quants, legacy
from corral.quant.blocks import Bytes, Floats, half_bytes
from corral.quant.types import DType

_QUANTIZERS: Final[dict[DType, Callable[[Floats], Bytes]]] = {
    DType.Q4_0: legacy.quantize_q4_0,
    DType.Q4_1: legacy.quantize_q4_1,
    DType.Q5_0: legacy.quantize_q5_0,
    DType.Q5_1: legacy.quantize_q5_1,
    DType.Q8_0: legacy.quantize_q8_0,
    DType.Q2_K: k_quants.quantize_q2_k,
    DType.Q3_K: k_quants.quantize_q3_k,
    DType.Q4_K: k_quants.quantize_q4_k,
    DType.Q5_K: k_quants.quantize_q5_k,
    DType.Q6_K: k_quants.quantize_q6_k,
}
_CHUNK_ELEMENTS: Final = 1 << 16
"""Encoded at once, so that temporaries stay in the processor's cache."""


def quantize(values: npt.ArrayLike, dtype: DType) -> Bytes:
    """Encode finite values as `dtype`: (…, columns) → (…, row bytes).

    Raises:
        InvalidArgument: if there is no quantizer for the type, rows are not whole blocks, or a
            value is not finite or so large that the type cannot hold it.
    """
    array = np.ascontiguousarray(values, dtype=np.float32)
    if array.ndim == 0 or array.shape[-1] % dtype.block_elements:
        raise InvalidArgument(f"shape {array.shape} is not whole blocks of {dtype.name}")
    if not np.isfinite(array).all():
        raise InvalidArgument("values to quantize must be finite")
    rows = (*array.shape[:-1], dtype.row_bytes(array.shape[-1]))
    if dtype in (DType.F32, DType.F16, DType.BF16):
        return _encode_floats(array, dtype).reshape(rows)
    quantizer = _QUANTIZERS.get(dtype)
    if quantizer is None:
        raise InvalidArgument(
            f"no quantizer for {dtype.name}; there are F32, F16, BF16, "
            f"{', '.join(t.name for t in _QUANTIZERS)}"
        )
    blocks = array.reshape(-1, dtype.block_elements)
    data = np.empty((len(blocks), dtype.block_bytes), dtype=np.uint8)
    step = _CHUNK_ELEMENTS // dtype.block_elements
    with np.errstate(all="ignore"):  # what is not finite loses a search, or is refused at the end
        for start in range(0, len(blocks), step):
            data[start : start + step] = quantizer(blocks[start : start + step])
    return data.reshape(rows)


def _encode_floats(values: Floats, dtype: DType) -> Bytes:
    flat = values.reshape(-1)
    if dtype is DType.F32:
        return flat.astype("<f4").view(np.uint8)
    if dtype is DType.F16:
        return half_bytes(flat).reshape(-1)
    bits = flat.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))  # to even
    if np.any(rounded & np.uint32(0x7F800000) == np.uint32(0x7F800000)):
        raise InvalidArgument(f"{np.abs(flat).max():.3g} came, which is beyond the range of BF16")
    return (rounded >> np.uint32(16)).astype("<u2").view(np.uint8)
