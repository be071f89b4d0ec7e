"""Launches outside of graphs: weights packed on the device, and the greedy token of each row."""

from corral.devices.cuda.instance import Instance
from corral.devices.cuda.launch import Launch, ceil_divide
from corral.memory.plan import CHOICE_PARTS
from corral.quant.packed import CPU_INTERLEAVE, SPAN
from corral.quant.types import DType

_PACK_THREADS = 256
_FLOAT_COLUMNS = 64
_WORDS = {DType.F32: "unsigned int", DType.F16: "unsigned short", DType.BF16: "unsigned short"}


def pack(dtype: DType, source: int, target: int, rows: int, columns: int) -> Launch:
    """Return the launch that packs whole rows, given as a file has them, for the matrix kernels.

    `source` and `target` are addresses on the device; the target is that of a row block. Rows that
    are missing in the last row block become rows of zero bytes.
    """
    fields = {"source": source, "target": target, "rows": rows, "columns": columns}
    row_blocks = ceil_divide(rows, CPU_INTERLEAVE)
    if dtype in _WORDS:
        instance = Instance("pack", f"corral::pack_floats<{_WORDS[dtype]}>")
        grid = (row_blocks, ceil_divide(columns, _FLOAT_COLUMNS), 1)
    else:
        instance = Instance.of("pack", "pack", dtype.name)
        grid = (row_blocks, ceil_divide(columns, SPAN), 1)
    return Launch(instance, grid, (_PACK_THREADS, 1, 1), fields)


ARGMAX_PARTS = CHOICE_PARTS
"""Thread blocks that share a row of logits."""
_ARGMAX_THREADS = 512


def argmax_bytes(rows: int) -> int:
    """Return the scratch that `argmax` needs."""
    return rows * ARGMAX_PARTS * 8


def argmax(
    logits: int, count: int, rows: int, vocabulary: int, *, scratch: int, tokens: int
) -> tuple[Launch, Launch]:
    """Return the launches that write the greatest logit's number of each row, as I32.

    Of equal logits the first wins. All but sizes are addresses; rows of logits lie side by side.
    """
    stride = vocabulary * 4
    fields = {
        "logits": logits,
        "count": count,
        "partials": scratch,
        "tokens": tokens,
        "logits_stride": stride,
        "vocabulary": vocabulary,
        "parts": ARGMAX_PARTS,
    }
    is_aligned = (logits | stride) % 16 == 0
    first = Instance.of("argmax", "argmax", is_aligned)
    second = Instance.of("argmax", "argmax_merge")
    return (
        Launch(first, (ARGMAX_PARTS, rows, 1), (_ARGMAX_THREADS, 1, 1), fields),
        Launch(second, (rows, 1, 1), (32, 1, 1), fields),
    )
