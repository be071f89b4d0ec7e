"""The launches of the KV cache, of heads on their way to it, and of attention, and how it is split.

The positions that a row sees are cut in equal parts, one thread block each, so that few rows keep
all multiprocessors busy. How many parts there are is fixed by the plan; what they hold depends on
the row's own position only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from corral.devices.binding import float_word
from corral.devices.cuda.instance import Instance
from corral.devices.cuda.launch import Binding, Launch, ceil_divide
from corral.devices.cuda.traits import SEGMENTS
from corral.devices.node_fields import append_fields, shift_fields
from corral.quant.types import DType
from corral.tensor.ops import Attend, Norm, Op, Rope, RopePairs
from corral.tensor.tensor import Tensor

LEAST_BLOCKS = 4
"""Blocks of the KV cache that a part has at least; `kLeastBlocks` of the kernel."""
MOST_HEADS = 8
"""Query heads of one thread block."""
_THREADS = 128
_SHIFT_THREADS = 256
_LARGE_HEAD = 128
"""Larger heads leave no room for twice the threads."""
GROUP = 32
"""Columns of a group of codes."""
PLANES = {DType.A8: 1, DType.A16: 2}
"""Planes of codes of each type of activations."""
_TILED = 3
"""What stands for these where the result becomes tiles; `kTiled` of the kernels."""
MOST_HEAD_DIM = 256
"""Dimensions of the heads that `rope_append` takes."""
_ROPE_APPEND_HEADS = 4
"""Heads of one thread block of it, a warp each."""
MOST_SPLITS = SEGMENTS
"""`kMostSplits` of the kernels."""
_TILES = {DType.F16: "TilesF16", DType.BF16: "TilesBF16", DType.Q8_0: "TilesQ8_0"}
_CACHES = {
    DType.F32: "CacheF32",
    DType.F16: "CacheF16",
    DType.BF16: "CacheBF16",
    DType.Q8_0: "CacheQ8_0",
}


def kv_append(at: Binding, node: Tensor) -> tuple[Launch, ...]:
    """Return the launch of KV_APPEND: a block for the keys of a row and one for its values."""
    k, _, state, *_ = node.sources
    head_dim, fields = state.shape[-1], append_fields(at, node)
    if state.dtype is DType.Q8_0:
        instance = Instance.of("kv_append", "kv_append_q8_0", head_dim)
    else:
        instance = Instance.of("kv_append", "kv_append", _CACHES[state.dtype], head_dim)
    return (Launch(instance, (at.rows(k), 2, 1), (256, 1, 1), fields),)


def kv_shift(at: Binding, node: Tensor) -> tuple[Launch, ...]:
    """Return the launch of KV_SHIFT: a block for each moved block and head."""
    state, rotations, *_ = node.sources
    rope = node.attributes
    assert isinstance(rope, Rope)
    are_neighbours = rope.pairs is RopePairs.NEIGHBOURS
    shape = (rope.head_dim, rotations.columns, are_neighbours)
    instance = Instance.of("kv_shift", "kv_shift", _CACHES[state.dtype], *shape)
    grid = (at.rows(rotations), state.shape[2], 1)
    return (Launch(instance, grid, (_SHIFT_THREADS, 1, 1), shift_fields(at, node)),)


def rope_append(at: Binding, nodes: Sequence[Tensor]) -> tuple[Launch, ...] | None:
    """Return the launch of ROPE of q, ROPE of k, each with an RMS_NORM or without, and KV_APPEND.

    There is none for large heads.
    """
    *turned, append = nodes
    q_rope, k_rope = (node for node in turned if node.op is Op.ROPE)
    q, k = _NormedHeads.of(q_rope, turned), _NormedHeads.of(k_rope, turned)
    _, v, state, positions, sequences, tables = append.sources
    rotations, rope = q_rope.sources[1], q_rope.attributes
    assert isinstance(rope, Rope)
    if rope.head_dim > MOST_HEAD_DIM:
        return None
    heads, kv_heads = q.x.columns // rope.head_dim, k.x.columns // rope.head_dim
    fields = {
        "q": at.address(q.x),
        "k": at.address(k.x),
        "v": at.address(v),
        "out": at.address(q_rope),
        "state": at.address(state),
        "count": at.count(k_rope),
        "rotations": at.address(rotations),
        "positions": at.address(positions),
        "sequences": at.address(sequences),
        "tables": at.address(tables),
        "q_weight": at.address(q.weight),
        "k_weight": at.address(k.weight),
        "q_stride": q.x.row_bytes,
        "k_stride": k.x.row_bytes,
        "v_stride": v.row_bytes,
        "out_stride": q_rope.row_bytes,
        "rotations_stride": rotations.row_bytes,
        "tables_stride": tables.row_bytes,
        "heads": heads,
        "kv_heads": kv_heads,
        "q_epsilon": float_word(q.epsilon),
        "k_epsilon": float_word(k.epsilon),
    }
    are_neighbours = rope.pairs is RopePairs.NEIGHBOURS
    shape = (rope.head_dim, rotations.columns, are_neighbours, len(turned) > 2)
    instance = Instance.of("rope_append", "rope_append", _CACHES[state.dtype], *shape)
    blocks = ceil_divide(heads + 2 * kv_heads, _ROPE_APPEND_HEADS)
    grid, block = (at.rows(k_rope), blocks, 1), (32 * _ROPE_APPEND_HEADS, 1, 1)
    return (Launch(instance, grid, block, fields),)


@dataclass(frozen=True, slots=True)
class _NormedHeads:
    """What is turned: rows as products give them, and the norm of their heads, if there is one."""

    x: Tensor
    weight: Tensor | None = None
    epsilon: float = 0.0

    @classmethod
    def of(cls, rope: Tensor, nodes: Sequence[Tensor]) -> "_NormedHeads":
        """Return what a ROPE turns; the norm must be among the nodes."""
        x = rope.sources[0]
        if x not in nodes:
            return cls(x)
        assert isinstance(x.attributes, Norm)
        rows, weight = x.sources
        return cls(rows, weight, x.attributes.epsilon)


def heads_of_block(attend: Attend) -> int:
    """Return how many heads of a group one thread block has: as many as share it evenly."""
    group = attend.heads // attend.kv_heads
    return max(n for n in range(1, MOST_HEADS + 1) if group % n == 0)


def partial_bytes(attend: Attend, rows: int) -> int:
    """Return the scratch that one part of all rows takes."""
    return rows * attend.heads * (attend.head_dim + 2) * 4


def attention_splits(
    attend: Attend, rows: int, blocks: int, scratch_bytes: int, *, wanted_blocks: int = SEGMENTS
) -> int:
    """Return in how many parts the positions of a row are cut.

    As many as fill the card with so many thread blocks, as there are blocks of the cache to share,
    and as fit the scratch.
    """
    seen = blocks if attend.window is None else min(blocks, -(-attend.window // 32) + 1)
    whole = rows * (attend.heads // heads_of_block(attend))
    wanted = max(1, wanted_blocks // whole)
    fitting = scratch_bytes // partial_bytes(attend, rows)
    return max(1, min(wanted, -(-seen // LEAST_BLOCKS), fitting, MOST_SPLITS))


def attention(at: Binding, node: Tensor) -> tuple[Launch, ...]:
    """Return the launch of ATTENTION; of several parts, the last that ends folds all."""
    return _attention(at, node, node)


def coded_attention(at: Binding, node: Tensor, codes: Tensor) -> tuple[Launch, ...] | None:
    """Return the launches of ATTENTION whose result is written as the codes that QUANTIZE gives.

    A group of codes must lie in one head, else there are none.
    """
    attend = node.attributes
    assert isinstance(attend, Attend)
    return None if attend.head_dim % GROUP else _attention(at, node, codes)


def tiled_attention(at: Binding, node: Tensor, tiles: int, tile_bytes: int) -> tuple[Launch, ...]:
    """Return the launch of ATTENTION whose result is written as tiles of a left factor."""
    written = {"out": tiles, "out_stride": tile_bytes, "planes": _TILED}
    (launch,) = _attention(at, node, node)
    return (replace(launch, fields={**launch.fields, **written}),)


def _attention(at: Binding, node: Tensor, result: Tensor) -> tuple[Launch, ...]:
    appended = node.sources[1]
    attend = node.attributes
    assert isinstance(attend, Attend)
    rows, blocks = at.rows(node), node.sources[4].columns
    is_tiled, heads = appended.dtype in _TILES, heads_of_block(attend)
    whole = rows * (attend.heads // heads)
    is_spread = is_tiled and attend.head_dim <= _LARGE_HEAD and whole <= SEGMENTS // 2
    threads = 2 * _THREADS if is_spread else _THREADS
    splits = attention_splits(
        attend,
        rows,
        blocks,
        at.plan.segments_bytes,
        wanted_blocks=SEGMENTS * _THREADS // threads,
    )
    fields = _fields(at, node, attend, result) | {
        "partials": at.segments,
        "counters": at.counters,
        "splits": splits,
        "planes": PLANES.get(result.dtype, 0),
    }
    windowed = attend.window is not None
    stem = "attention_mma" if is_tiled else "attention"
    kind = (_CACHES | _TILES)[appended.dtype]
    shape: tuple[int, ...] = (attend.head_dim, heads, windowed, attend.softcap is not None)
    if is_tiled:
        is_ahead = _fits_two_tiles(attend, appended.dtype) and whole <= SEGMENTS
        shape = (*shape, threads // 32, is_ahead)
    instance = Instance.of(stem, stem, kind, *shape)
    grid = (attend.heads // heads, splits, rows)
    return (Launch(instance, grid, (threads, 1, 1), fields),)


def _fits_two_tiles(attend: Attend, dtype: DType) -> bool:
    """Return whether a warp has registers for the next tokens while it takes in some."""
    return attend.head_dim <= _LARGE_HEAD and dtype is not DType.Q8_0


def _fields(at: Binding, node: Tensor, attend: Attend, result: Tensor) -> dict[str, int]:
    q, appended, positions, sequences, tables = node.sources
    return {
        "q": at.address(q),
        "state": at.address(appended),
        "out": at.address(result),
        "count": at.count(node),
        "positions": at.address(positions),
        "sequences": at.address(sequences),
        "tables": at.address(tables),
        "q_stride": q.row_bytes,
        "out_stride": result.row_bytes,
        "tables_stride": tables.row_bytes,
        "kv_heads": attend.kv_heads,
        "heads": attend.heads,
        "scale": float_word(attend.scale),
        "window": attend.window or 0,
        "softcap": float_word(attend.softcap or 0.0),
    }
