"""Root-mean-square norms, as F32 or as A8 or A16 for the matrix product that follows."""

from corral.devices.cpu.kernels.columns import LANES, VECTOR, Columns, each_vector
from corral.devices.cpu.kernels.quantize import GROUP, CodedRow
from corral.devices.cpu.simd import (
    Kernel,
    Value,
    convert,
    f32,
    fma,
    i64,
    low_word,
    reduce_add,
    sqrt,
)

NORM_FIELDS = (
    "x", "count", "weight", "out", "x_stride", "out_stride", "groups", "group", "epsilon",
)  # fmt: skip
"""Addresses of F32 rows, the i64 row count, the F32 weight of `group` columns and the result,
which may be x; bytes from a row to the next; groups in a row; columns of a group; F32 epsilon."""

NORM_QUANTIZE_FIELDS = (
    "x", "count", "weight", "out", "x_stride", "out_stride", "columns", "epsilon",
)  # fmt: skip
"""As NORM_FIELDS, with the whole row as the group (a multiple of 32) and coded rows as
the result."""

_CHAINS = 4
"""Sums that run side by side, to hide the latency of an addition."""


def rms_norm(k: Kernel, record: Value, thread: Value, threads: Value) -> None:
    """Divide each group of columns by its root mean square, times the weight."""
    a = k.fields(record, NORM_FIELDS)
    first, last = k.split(k.load(i64, a.count) * a.groups, thread, threads)
    with k.range(first, last) as n:
        row, group = n // a.groups, n % a.groups
        within = group * a.group * 4
        x, out = a.x + row * a.x_stride + within, a.out + row * a.out_stride + within
        inverse = _inverse_rms(k, x, a.group, low_word(a.epsilon, f32))

        def scale(
            columns: Columns, x: Value = x, out: Value = out, inverse: Value = inverse
        ) -> None:
            columns.store(out, columns.load(x) * inverse * columns.load(a.weight))

        each_vector(k, 0, a.group, scale)


def norm_quantize(k: Kernel, record: Value, thread: Value, threads: Value, planes: int = 1) -> None:
    """Divide each row by its root mean square, times the weight, and write A8 or A16."""
    a = k.fields(record, NORM_QUANTIZE_FIELDS)
    first, last = k.split(k.load(i64, a.count), thread, threads)
    with k.range(first, last) as row:
        x, out = a.x + row * a.x_stride, CodedRow(k, a.out + row * a.out_stride, a.columns, planes)
        inverse = _inverse_rms(k, x, a.columns, low_word(a.epsilon, f32))
        with k.range(0, a.columns // GROUP) as group:
            low, high = (
                k.load(VECTOR, x + at) * inverse * k.load(VECTOR, a.weight + at)
                for at in (group * (4 * GROUP), group * (4 * GROUP) + 4 * LANES)
            )
            out.store_group(group, low, high)


def _inverse_rms(k: Kernel, x: Value, columns: Value, epsilon: Value) -> Value:
    """Return 1 / √(mean of squares + epsilon)."""
    sums = [k.variable(VECTOR, 0.0) for _ in range(_CHAINS)]
    together = columns - columns % (_CHAINS * LANES)
    with k.range(0, together, _CHAINS * LANES) as column:
        for n, total in enumerate(sums):
            value = k.load(VECTOR, x + column * 4 + n * (4 * LANES))
            total.value = fma(value, value, total.value)

    def square(columns: Columns) -> None:
        value = columns.load(x)
        sums[0].value = fma(value, value, sums[0].value)

    each_vector(k, together, columns, square)
    squares = (sums[0].value + sums[1].value) + (sums[2].value + sums[3].value)
    mean = reduce_add(squares) / convert(columns, f32)
    return 1.0 / sqrt(mean + epsilon)
