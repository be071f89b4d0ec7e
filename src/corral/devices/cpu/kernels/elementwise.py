"""Elementwise operations on rows of F32: sums, products, activations, soft caps.

Every result may take over the bytes of its first source.
"""

from collections.abc import Callable

from corral.devices.cpu.kernels.columns import Columns, each_vector, shared_runs
from corral.devices.cpu.simd import Kernel, Value, exp, f32, fma, i64, low_word, minimum
from corral.devices.cpu.simd.functions import tanh
from corral.tensor.ops import Activation

UNARY_FIELDS = ("x", "count", "out", "x_stride", "out_stride", "columns")
"""Addresses of F32 rows, the i64 row count and the result; bytes from a row to the next; columns
(any number)."""
SOFTCAP_FIELDS = (*UNARY_FIELDS, "limit")
"""As UNARY_FIELDS, and the F32 limit."""
BINARY_FIELDS = ("a", "b", "count", "out", "a_stride", "b_stride", "out_stride", "columns")
"""As UNARY_FIELDS, with two sources."""

_RUN = 64
"""Columns that one thread takes at a time: four cache lines."""


def add(k: Kernel, record: Value, thread: Value, threads: Value) -> None:
    """Add two tensors of one shape."""
    _binary(k, record, (thread, threads), lambda a, b: a + b)


def mul(k: Kernel, record: Value, thread: Value, threads: Value) -> None:
    """Multiply two tensors of one shape."""
    _binary(k, record, (thread, threads), lambda a, b: a * b)


def activate(k: Kernel, record: Value, thread: Value, threads: Value, activation: str) -> None:
    """Apply the non-linearity of that name (of `Activation`)."""
    a = k.fields(record, UNARY_FIELDS)
    count = k.load(i64, a.count)

    def apply(row: Value, columns: Columns) -> None:
        value = activated(columns.load(a.x + row * a.x_stride), Activation[activation])
        columns.store(a.out + row * a.out_stride, value)

    _each(k, (count, a.columns), (thread, threads), apply)


def softcap(k: Kernel, record: Value, thread: Value, threads: Value) -> None:
    """Bend each element to stay inside ±limit: limit · tanh(x / limit)."""
    a = k.fields(record, SOFTCAP_FIELDS)
    count, limit = k.load(i64, a.count), low_word(a.limit, f32)

    def apply(row: Value, columns: Columns) -> None:
        value = tanh(columns.load(a.x + row * a.x_stride) / limit) * limit
        columns.store(a.out + row * a.out_stride, value)

    _each(k, (count, a.columns), (thread, threads), apply)


def activated(x: Value, activation: Activation) -> Value:
    """Return the activation of x, as x · sigmoid(…), where nothing cancels."""
    match activation:
        case Activation.SILU:
            return x / (exp(-x) + 1.0)
        case Activation.GELU:
            # (1 + tanh u) / 2 is sigmoid(2u).
            cubic = fma(x * x, _GELU_CUBE, 1.0)
            return x / (exp(x * cubic * _GELU_STEEPNESS) + 1.0)


_GELU_CUBE = 0.044715
_GELU_STEEPNESS = -1.5957691216057308
"""−2·√(2/π)"""


def _binary(
    k: Kernel, record: Value, share: tuple[Value, Value], combine: Callable[[Value, Value], Value]
) -> None:
    f = k.fields(record, BINARY_FIELDS)

    def apply(row: Value, columns: Columns) -> None:
        a, b = columns.load(f.a + row * f.a_stride), columns.load(f.b + row * f.b_stride)
        columns.store(f.out + row * f.out_stride, combine(a, b))

    _each(k, (k.load(i64, f.count), f.columns), share, apply)


def _each(
    k: Kernel,
    shape: tuple[Value, Value],
    share: tuple[Value, Value],
    apply: Callable[[Value, Columns], None],
) -> None:
    """Emit `apply` for each vector of the (rows, columns) that are this thread's share."""
    rows, columns = shape
    with shared_runs(k, rows, (columns + _RUN - 1) // _RUN, *share) as (row, first, last):
        end = minimum(last * _RUN, columns)
        each_vector(k, first * _RUN, end, lambda vector: apply(row, vector))
