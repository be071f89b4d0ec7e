"""Copies the rows whose logits are wanted."""

from corral.devices.cpu.kernels.columns import Columns, each_vector
from corral.devices.cpu.simd import Kernel, Value, convert, i32, i64

FIELDS = ("x", "rows", "count", "out", "x_stride", "out_stride", "columns")
"""Addresses of F32 rows, the i32 numbers of those wanted, their i64 count and the result; bytes
from a row to the next; columns."""


def select_rows(k: Kernel, record: Value, thread: Value, threads: Value) -> None:
    """Write x[rows]."""
    a = k.fields(record, FIELDS)
    first, last = k.split(k.load(i64, a.count), thread, threads)
    with k.range(first, last) as n:
        x = a.x + convert(k.load(i32, a.rows + n * 4), i64) * a.x_stride
        out = a.out + n * a.out_stride

        def copy(columns: Columns, x: Value = x, out: Value = out) -> None:
            columns.store(out, columns.load(x))

        each_vector(k, 0, a.columns, copy)
