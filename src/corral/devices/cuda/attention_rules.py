"""The launches of the KV cache and of attention, and how attention is split.

The positions that a row sees are cut in equal parts, one thread block each, so that few rows keep
all multiprocessors busy. How many parts there are is fixed by the plan; what they hold depends on
the row's own position only.
"""

from corral.devices.cuda.instance import Instance
from corral.devices.cuda.launch import Binding, Launch, float_word
from corral.devices.cuda.traits import SEGMENTS
from corral.quant.types import DType
from corral.tensor.ops import Attend
from corral.tensor.tensor import Tensor

LEAST_BLOCKS = 2
"""Blocks of the KV cache that a part has at least; `kLeastBlocks` of the kernel."""
MOST_HEADS = 8
"""Query heads of one thread block."""
_THREADS = 128
MOST_SPLITS = 512
"""`kMostSplits` of the kernel that folds parts."""
_TILES = {DType.F16: "TilesF16", DType.BF16: "TilesBF16", DType.Q8_0: "TilesQ8_0"}
_CACHES = {
    DType.F32: "CacheF32",
    DType.F16: "CacheF16",
    DType.BF16: "CacheBF16",
    DType.Q8_0: "CacheQ8_0",
}


def kv_append(at: Binding, node: Tensor) -> tuple[Launch, ...]:
    """Return the launch of KV_APPEND: a block for the keys of a row and one for its values."""
    k, v, state, positions, sequences, tables = node.sources
    _, _, kv_heads, _, head_dim = state.shape
    fields = {
        "k": at.address(k),
        "v": at.address(v),
        "state": at.address(state),
        "count": at.count(k),
        "positions": at.address(positions),
        "sequences": at.address(sequences),
        "tables": at.address(tables),
        "k_stride": k.row_bytes,
        "v_stride": v.row_bytes,
        "tables_stride": tables.row_bytes,
        "kv_heads": kv_heads,
    }
    if state.dtype is DType.Q8_0:
        instance = Instance.of("kv_append", "kv_append_q8_0", head_dim)
    else:
        instance = Instance.of("kv_append", "kv_append", _CACHES[state.dtype], head_dim)
    return (Launch(instance, (at.rows(k), 2, 1), (256, 1, 1), fields),)


def heads_of_block(attend: Attend) -> int:
    """Return how many heads of a group one thread block has: as many as share it evenly."""
    group = attend.heads // attend.kv_heads
    return max(n for n in range(1, MOST_HEADS + 1) if group % n == 0)


def partial_bytes(attend: Attend, rows: int) -> int:
    """Return the scratch that one part of all rows takes."""
    return rows * attend.heads * (attend.head_dim + 2) * 4


def attention_splits(attend: Attend, rows: int, blocks: int, scratch_bytes: int) -> int:
    """Return in how many parts the positions of a row are cut.

    As many as fill the card, as there are blocks to share, and as fit the scratch.
    """
    seen = blocks if attend.window is None else min(blocks, -(-attend.window // 32) + 1)
    whole = rows * (attend.heads // heads_of_block(attend))
    wanted = -(-SEGMENTS // whole)
    fitting = scratch_bytes // partial_bytes(attend, rows)
    return max(1, min(wanted, -(-seen // LEAST_BLOCKS), fitting, MOST_SPLITS))


def attention(at: Binding, node: Tensor) -> tuple[Launch, ...]:
    """Return the launch of ATTENTION, and one more that folds its parts if there are several."""
    appended = node.sources[1]
    attend = node.attributes
    assert isinstance(attend, Attend)
    rows, blocks = at.rows(node), node.sources[4].columns
    splits = attention_splits(attend, rows, blocks, at.plan.segments_bytes)
    fields = _fields(at, node, attend) | {"partials": at.segments, "splits": splits}
    heads, windowed = heads_of_block(attend), attend.window is not None
    stem = "attention_mma" if appended.dtype in _TILES else "attention"
    kind = (_CACHES | _TILES)[appended.dtype]
    shape = (attend.head_dim, heads, windowed, attend.softcap is not None)
    instance = Instance.of(stem, stem, kind, *shape)
    grid = (attend.heads // heads, splits, rows)
    parts = Launch(instance, grid, (_THREADS, 1, 1), fields)
    if splits == 1:
        return (parts,)
    merge = Instance.of("attention", "attention_merge", attend.head_dim, windowed)
    block = (attend.head_dim, 1, 1)
    return parts, Launch(merge, (attend.heads, rows, 1), block, fields)


def _fields(at: Binding, node: Tensor, attend: Attend) -> dict[str, int]:
    q, appended, positions, sequences, tables = node.sources
    return {
        "q": at.address(q),
        "state": at.address(appended),
        "out": at.address(node),
        "count": at.count(node),
        "positions": at.address(positions),
        "sequences": at.address(sequences),
        "tables": at.address(tables),
        "q_stride": q.row_bytes,
        "out_stride": node.row_bytes,
        "tables_stride": tables.row_bytes,
        "kv_heads": attend.kv_heads,
        "heads": attend.heads,
        "scale": float_word(attend.scale),
        "window": attend.window or 0,
        "softcap": float_word(attend.softcap or 0.0),
    }
