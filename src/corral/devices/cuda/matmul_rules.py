"""The launches of matrix products: one plain kernel for every layout and any number of rows."""

from corral.devices.cuda.instance import Instance
from corral.devices.cuda.launch import Binding, Launch, ceil_divide
from corral.quant.packed import CPU_INTERLEAVE, LAYOUTS
from corral.quant.types import DType
from corral.tensor.ops import Op
from corral.tensor.tensor import Tensor

_THREADS = 256
_TOKENS = (1, 2, 4, 8)
"""Rows of x that a block can have."""
_KINDS = {DType.F32: "X32", DType.A8: "XA8", DType.A16: "XA16"}


def matmul(at: Binding, node: Tensor) -> tuple[Launch, ...]:
    """Return the launch of MATMUL or MATMUL_ADD."""
    x, weight, *_ = node.sources
    rows = at.rows(node)
    tokens = next((number for number in _TOKENS if number >= rows), _TOKENS[-1])
    grid = (ceil_divide(weight.rows, CPU_INTERLEAVE), ceil_divide(rows, tokens), 1)
    layout = LAYOUTS[weight.dtype].name
    instance = Instance.of("matmul", "matmul", layout, _KINDS[x.dtype], tokens)
    return (Launch(instance, grid, (_THREADS, 1, 1), matmul_fields(at, node)),)


def matmul_fields(at: Binding, node: Tensor) -> dict[str, int]:
    """Return what every kernel of matrix products is given."""
    x, weight, *rest = node.sources
    residual = rest.pop(0) if node.op is Op.MATMUL_ADD else None
    return {
        "x": at.address(x),
        "weights": at.address(weight),
        "out": at.address(node),
        "x_stride": x.row_bytes,
        "out_stride": node.row_bytes,
        "bias": at.address(rest[0]) if rest else 0,
        "residual": at.address(residual),
        "residual_stride": residual.row_bytes if residual else 0,
        "rows": weight.rows,
        "columns": weight.columns,
        "count": at.count(node),
    }
