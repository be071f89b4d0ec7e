"""Launches that belong to no evaluation: weights packed on the device."""

from corral.devices.cuda.instance import Instance
from corral.devices.cuda.launch import Launch, ceil_divide
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
