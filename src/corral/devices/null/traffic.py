"""How many bytes a node reads and writes if each is moved once. Pure arithmetic."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corral.devices.staging import Counts
from corral.memory.stored import WeightsLayout
from corral.tensor.ops import Attend, Op
from corral.tensor.tensor import Tensor


def traffic(
    node: Tensor, weights: WeightsLayout, inputs: Mapping[str, NDArray[Any]], counts: Counts
) -> int:
    """Return the bytes that one evaluation of a node moves.

    Weights count in the form the device keeps them; of a table, only the rows looked up; of the
    cache, what each row sees.
    """
    if node.op is Op.VIEW:
        return 0
    if node.op is Op.KV_APPEND:
        return counts.rows * _token_bytes(node) + sum(_bytes(t, counts) for t in node.sources[:2])
    if node.op is Op.KV_SHIFT:  # keys read and written, and the rotations of each block
        rotations = node.sources[1]
        keys = node.base.shape[3] * _token_bytes(node) * counts.of(rotations)
        return keys + _bytes(rotations, counts)
    moved = _bytes(node, counts)
    for source in node.sources:
        if source.op is Op.KV_APPEND:
            moved += _seen_tokens(node, inputs["positions"]) * _token_bytes(source)
        elif source.op in (Op.WEIGHT, Op.CONSTANT):
            stored = weights.slots[source.name].form.size_bytes
            moved += stored // source.rows * counts.rows if node.op is Op.EMBED else stored
        else:
            moved += _bytes(source, counts)
    return moved


def _bytes(tensor: Tensor, counts: Counts) -> int:
    rows = tensor.rows // tensor.shape[0] * counts.of(tensor)
    if len(tensor.shape) == 1:
        return tensor.dtype.row_bytes(counts.of(tensor))
    return rows * tensor.dtype.row_bytes(tensor.columns)


def _token_bytes(state: Tensor) -> int:
    """Return the bytes of one token's key and value."""
    _, both, heads, _, dim = state.shape
    return both * heads * state.dtype.row_bytes(dim)


def _seen_tokens(attention: Tensor, positions: NDArray[Any]) -> int:
    assert isinstance(attention.attributes, Attend)
    seen = positions.astype(np.int64) + 1
    window = attention.attributes.window
    return int(seen.sum() if window is None else np.minimum(seen, window).sum())
