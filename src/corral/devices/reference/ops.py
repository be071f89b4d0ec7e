"""Operations on rows, and the table of all that the reference device computes.

A kernel gets the node, the result and the sources as arrays cut to the rows of this batch. The
result may lie in the bytes of a source, so every kernel reads before it writes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corral.devices.reference.activations import Bytes, decoded, quantize
from corral.devices.reference.attention import (
    Integers,
    attention,
    kv_append,
    kv_shift,
    rope,
    rotations,
)
from corral.devices.reference.lora import lora_down, lora_up
from corral.devices.reference.storage import Floats
from corral.tensor.ops import Activation, Cap, Embed, Gate, Norm, Op
from corral.tensor.tensor import Tensor

Kernel = Callable[..., None]


def embed(node: Tensor, result: Floats, tokens: Integers, table: Floats) -> None:
    """Look up a row for each token."""
    assert isinstance(node.attributes, Embed)
    result[:] = table[tokens] * np.float32(node.attributes.scale)


def rms_norm(node: Tensor, result: Floats, x: Floats, weight: Floats) -> None:
    """Divide each group of columns by its root mean square."""
    result[:] = _normed(node, x, weight)


def _normed(node: Tensor, x: Floats, weight: Floats) -> Floats:
    assert isinstance(node.attributes, Norm)
    group = node.attributes.group
    groups = x.reshape(len(x), x.shape[1] // group, group).astype(np.float64)
    squares = np.mean(groups**2, axis=-1, keepdims=True)
    normed = groups / np.sqrt(squares + node.attributes.epsilon) * weight
    result: Floats = normed.reshape(x.shape).astype(np.float32)
    return result


def matmul(
    node: Tensor, result: Floats, x: NDArray[Any], weight: Floats, bias: Floats | None = None
) -> None:
    """Multiply rows of F32, A8 or A16 by a matrix that is stored row by row."""
    result[:] = _product(node, x, weight, bias)


def matmul_add(
    node: Tensor,
    result: Floats,
    x: NDArray[Any],
    weight: Floats,
    residual: Floats,
    bias: Floats | None = None,
) -> None:
    """Multiply as `matmul` does, then add a residual."""
    result[:] = _product(node, x, weight, bias) + residual


def _product(node: Tensor, x: NDArray[Any], weight: Floats, bias: Floats | None) -> Floats:
    dtype = node.sources[0].dtype
    values: Floats = decoded(x, dtype) if dtype.is_activation else x
    product: Floats = values @ weight.T
    return product if bias is None else product + bias


def add(node: Tensor, result: Floats, a: Floats, b: Floats) -> None:
    """Add."""
    np.add(a, b, out=result)


def mul(node: Tensor, result: Floats, a: Floats, b: Floats) -> None:
    """Multiply element by element."""
    np.multiply(a, b, out=result)


def activate(node: Tensor, result: Floats, x: Floats) -> None:
    """Apply SiLU or GELU."""
    result[:] = _active(node, x)


def gated(node: Tensor, result: Floats, gate: Floats, up: Floats) -> None:
    """Multiply the activated gate by the other half."""
    result[:] = _active(node, gate) * up


def _active(node: Tensor, gate: Floats) -> Floats:
    assert isinstance(node.attributes, Gate)
    x = gate.astype(np.float64)
    if node.attributes.activation is Activation.SILU:
        inner = x / 2  # sigmoid(x) = (1 + tanh(x/2)) / 2 never overflows
    else:
        inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    active: Floats = (x / 2 * (1 + np.tanh(inner))).astype(np.float32)
    return active


def softcap(node: Tensor, result: Floats, x: Floats) -> None:
    """Bend each element to stay inside the limit."""
    assert isinstance(node.attributes, Cap)
    limit = node.attributes.limit
    result[:] = limit * np.tanh(x.astype(np.float64) / limit)


def select_rows(node: Tensor, result: Floats, x: Floats, rows: Integers) -> None:
    """Keep the rows whose logits are wanted."""
    result[:] = x[rows]


def quantize_rows(node: Tensor, result: Bytes, x: Floats) -> None:
    """Write A8 or A16."""
    quantize(x, result, node.dtype)


def norm_quantize(node: Tensor, result: Bytes, x: Floats, weight: Floats) -> None:
    """Normalize, then write A8 or A16."""
    quantize(_normed(node, x, weight), result, node.dtype)


def gated_quantize(node: Tensor, result: Bytes, gate: Floats, up: Floats) -> None:
    """Gate, then write A8 or A16."""
    quantize(_active(node, gate) * up, result, node.dtype)


KERNELS: dict[Op, Kernel] = {
    Op.EMBED: embed,
    Op.RMS_NORM: rms_norm,
    Op.MATMUL: matmul,
    Op.ADD: add,
    Op.MUL: mul,
    Op.ACTIVATE: activate,
    Op.SOFTCAP: softcap,
    Op.ROTATIONS: rotations,
    Op.ROPE: rope,
    Op.KV_APPEND: kv_append,
    Op.KV_SHIFT: kv_shift,
    Op.ATTENTION: attention,
    Op.SELECT_ROWS: select_rows,
    Op.QUANTIZE: quantize_rows,
    Op.NORM_QUANTIZE: norm_quantize,
    Op.GATED: gated,
    Op.GATED_QUANTIZE: gated_quantize,
    Op.MATMUL_ADD: matmul_add,
    Op.LORA_DOWN: lora_down,
    Op.LORA_UP: lora_up,
}
"""One kernel an operation; leaves and views compute nothing."""
