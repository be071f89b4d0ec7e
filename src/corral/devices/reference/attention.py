"""Operations that know positions: rotations, RoPE, the KV cache and attention.

A row's position p of sequence s lies in block tables[s, p // tokens] at token p % tokens; the state
is (blocks, K|V, kv heads, tokens, dim).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corral.devices.reference.storage import Floats, decode, encode
from corral.tensor.ops import Attend, Rope, RopePairs, Rotation
from corral.tensor.tensor import Tensor

Integers = NDArray[np.int32]
Doubles = NDArray[np.float64]

_SCORES_AT_ONCE = 1 << 22
"""Bounds the memory that scores take: rows are cut in chunks."""


def rotations(
    node: Tensor,
    result: Floats,
    positions: Integers,
    frequencies: Doubles,
    factors: Floats | None = None,
) -> None:
    """Write cosines, then sines, of position · frequency / factor."""
    assert isinstance(node.attributes, Rotation)
    steps = frequencies if factors is None else frequencies / factors
    angles = positions[:, None] * steps  # (rows, turned / 2), F64
    magnitude = node.attributes.magnitude
    result[:] = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * magnitude


def rope(node: Tensor, result: Floats, x: Floats, turns: Floats) -> None:
    """Turn the first dimensions of each head."""
    assert isinstance(node.attributes, Rope)
    heads = x.reshape(len(x), -1, node.attributes.head_dim)
    result[:] = _turned(heads, turns[:, None], node.attributes.pairs).reshape(x.shape)


def _turned(heads: Floats, turns: Floats, pairs: RopePairs) -> Floats:
    """Turn the last dimension; the turns, as broadcast, say by which cosines and sines."""
    half = turns.shape[-1] // 2
    cosine, sine = turns[..., :half], turns[..., half:]
    out = heads.copy()
    if pairs is RopePairs.HALVES:
        one, two = slice(0, half), slice(half, 2 * half)
    else:
        one, two = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    out[..., one] = heads[..., one] * cosine - heads[..., two] * sine
    out[..., two] = heads[..., two] * cosine + heads[..., one] * sine
    return out


def kv_append(
    node: Tensor, result: NDArray[Any], k: Floats, v: Floats, state: NDArray[Any], *where: Integers
) -> None:
    """Write each row's key and value to the block of its position."""
    positions, sequences, tables = where
    _, _, heads, tokens, dim = node.shape
    blocks = tables[sequences, positions // tokens]
    for which, values in enumerate((k, v)):
        stored = encode(values.reshape(-1, heads, dim), node.dtype)
        state[blocks, which, :, positions % tokens] = stored


def kv_shift(
    node: Tensor,
    result: NDArray[Any],
    state: NDArray[Any],
    turns: Floats,
    from_blocks: Integers,
    to_blocks: Integers,
) -> None:
    """Write blocks with their keys turned by each row's rotations, in place or to other blocks."""
    assert isinstance(node.attributes, Rope)
    moved = state[from_blocks]  # a copy: (rows, K|V, heads, tokens, dim)
    keys = decode(moved[:, 0], node.dtype)
    moved[:, 0] = encode(_turned(keys, turns[:, None, None], node.attributes.pairs), node.dtype)
    state[to_blocks] = moved


def attention(
    node: Tensor, result: Floats, q: Floats, state: NDArray[Any], *where: Integers
) -> None:
    """Attend from each row to the earlier positions of its sequence."""
    positions, sequences, tables = where
    attend = node.attributes
    assert isinstance(attend, Attend)
    for sequence in np.unique(sequences):
        rows = np.flatnonzero(sequences == sequence)
        length = int(np.max(positions[rows])) + 1
        for chunk in _chunks(rows, attend.heads * length):
            at = positions[chunk]
            first = 0 if attend.window is None else max(0, int(np.min(at)) - attend.window + 1)
            last = int(np.max(at))
            keys, values = _cached(node.sources[1], state, tables[sequence], first, last)
            result[chunk] = _attend(attend, q[chunk], keys, values, at - first)


def _chunks(rows: NDArray[np.intp], scores_per_row: int) -> Iterator[NDArray[np.intp]]:
    size = max(1, _SCORES_AT_ONCE // scores_per_row)
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _cached(
    appended: Tensor, state: NDArray[Any], table: Integers, first: int, last: int
) -> tuple[Doubles, Doubles]:
    """Return keys and values of the positions first … last: (kv heads, positions, dim) each.

    Table entries before the first position are not looked at: a window's blocks may be gone.
    """
    _, _, heads, tokens, dim = appended.shape
    start = first // tokens
    blocks = table[start : last // tokens + 1]
    inside = slice(first - start * tokens, last + 1 - start * tokens)
    stored = decode(state[blocks], appended.dtype)  # (blocks, K|V, heads, tokens, dim)
    both = stored.transpose(1, 2, 0, 3, 4).reshape(2, heads, -1, dim)[:, :, inside]
    keys, values = both.astype(np.float64)
    return keys, values


def _attend(attend: Attend, q: Floats, keys: Doubles, values: Doubles, last: Integers) -> Doubles:
    """Return softmax(q·K)·V, where row i sees the positions up to last[i]: (rows, heads · dim)."""
    rows, kv_heads = len(q), attend.kv_heads
    split = q.reshape(rows, kv_heads, -1, attend.head_dim).transpose(1, 2, 0, 3)  # kv, group, row
    scores = split.astype(np.float64) @ keys[:, None].swapaxes(-1, -2) * attend.scale
    if attend.softcap is not None:
        scores = attend.softcap * np.tanh(scores / attend.softcap)
    distance = last[:, None] - np.arange(keys.shape[1])  # (rows, positions)
    hidden = distance < 0
    if attend.window is not None:
        hidden |= distance >= attend.window
    scores[..., hidden] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed: Doubles = weights @ values[:, None]  # (kv, group, row, dim)
    return mixed.transpose(2, 0, 1, 3).reshape(rows, -1)
