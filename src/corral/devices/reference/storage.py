"""Tensors as arrays over the memory where the plan put them, and the types that NumPy lacks.

Types whose elements share a block appear as bytes, the last dimension being the bytes of a row;
BF16 appears as the upper halves of F32 words.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from corral.devices.base import ModelBuffers
from corral.devices.host import array_at
from corral.memory.plan import Plan
from corral.quant.types import DType
from corral.tensor.ops import Columns, Op
from corral.tensor.tensor import Tensor

Floats = NDArray[np.float32]

GROUP = 32
"""Elements of a Q8_0 block, and columns that share one scale of A8."""

_ELEMENTS: dict[DType, Any] = {
    DType.F32: np.float32,
    DType.F64: np.float64,
    DType.F16: np.float16,
    DType.BF16: np.uint16,
    DType.I32: np.int32,
    DType.I64: np.int64,
}

_Q8_0 = np.dtype([("scale", "<f2"), ("codes", "i1", (GROUP,))])


def tensor_array(plan: Plan, buffers: ModelBuffers, tensor: Tensor) -> NDArray[Any]:
    """Return the bytes of a tensor as an array at full capacity."""
    if tensor.op is Op.VIEW:
        assert isinstance(tensor.attributes, Columns)
        first = tensor.attributes.first
        return tensor_array(plan, buffers, tensor.sources[0])[:, first : first + tensor.columns]
    dtype = tensor.dtype
    if tensor.op in (Op.WEIGHT, Op.CONSTANT):
        dtype = buffers.weights_layout.slots[tensor.name].form.dtype
    return typed_array(buffers.address(plan, tensor), tensor.shape, dtype)


def typed_array(address: int, shape: tuple[int, ...], dtype: DType) -> NDArray[Any]:
    """Return memory as an array of a data type."""
    if dtype in _ELEMENTS:
        return array_at(address, shape, _ELEMENTS[dtype])
    return array_at(address, (*shape[:-1], dtype.row_bytes(shape[-1])), np.uint8)


def encode(values: Floats, dtype: DType) -> NDArray[Any]:
    """Return values as a KV cache of the given type stores them: (…, dim) → (…, stored)."""
    match dtype:
        case DType.F32:
            return values
        case DType.F16:
            return values.astype(np.float16)
        case DType.BF16:
            return _to_bf16(values)
        case DType.Q8_0:
            return _to_q8_0(values)
    raise NotImplementedError(f"no KV cache stores {dtype.name}")


def decode(stored: NDArray[Any], dtype: DType) -> Floats:
    """Return the values of a KV cache of the given type: (…, stored) → (…, dim)."""
    match dtype:
        case DType.F32 | DType.F16:
            return stored.astype(np.float32, copy=False)
        case DType.BF16:
            return (stored.astype(np.uint32) << 16).view(np.float32)
        case DType.Q8_0:
            blocks = np.ascontiguousarray(stored).view(_Q8_0)
            values = blocks["codes"] * blocks["scale"][..., None].astype(np.float32)
            return values.reshape(*stored.shape[:-1], -1)
    raise NotImplementedError(f"no KV cache stores {dtype.name}")


def _to_bf16(values: Floats) -> NDArray[np.uint16]:
    """Round to nearest, ties to even; the carry may go over into the exponent."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _to_q8_0(values: Floats) -> NDArray[np.uint8]:
    groups = values.reshape(*values.shape[:-1], -1, GROUP)
    codes, scales = int8_codes(groups)
    blocks = np.empty(scales.shape, _Q8_0)
    blocks["scale"], blocks["codes"] = scales, codes
    return blocks.view(np.uint8).reshape(*values.shape[:-1], -1)


def int8_codes(groups: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Return codes and scale of each group: (…, 32) → (…, 32) and (…)."""
    codes, scales = integer_codes(groups, 127)
    return codes.astype(np.int8), scales


def integer_codes(groups: Floats, greatest: int) -> tuple[NDArray[np.int32], Floats]:
    """Return codes and scale of each group: (…, 32) → (…, 32) and (…).

    scale = max|x| / greatest, code = x · (1 / scale) rounded half to even; groups too small for the
    reciprocal to be finite have codes 0.
    """
    scales = np.max(np.abs(groups), axis=-1) / np.float32(greatest)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scales
    inverse[np.isinf(inverse)] = 0
    return np.rint(groups * inverse[..., None]).astype(np.int32), scales
