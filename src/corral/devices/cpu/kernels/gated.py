"""Gated feed-forward: activation(gate) · up, as F32 or as A8 for the matrix product after it."""

from corral.devices.cpu.kernels.columns import LANES, VECTOR, Columns, each_vector, own_runs
from corral.devices.cpu.kernels.elementwise import activated
from corral.devices.cpu.kernels.quantize import GROUP, CodedRow
from corral.devices.cpu.simd import Kernel, Value, i64, minimum
from corral.tensor.ops import Activation

FIELDS = ("gate", "up", "count", "out", "gate_stride", "up_stride", "out_stride", "columns")
"""Addresses of F32 rows, the i64 row count and the result, which may be the gate (`gated` only);
bytes from a row to the next; columns, a multiple of 32 for `gated_quantize`."""


def gated(k: Kernel, record: Value, thread: Value, threads: Value, activation: str) -> None:
    """Write activation(gate) · up; `activation` is a name of `Activation`."""
    a = k.fields(record, FIELDS)
    kind, count, runs = Activation[activation], k.load(i64, a.count), (a.columns + 31) // GROUP
    with own_runs(k, count, runs, thread, threads) as (row, first, last):
        gate, up = a.gate + row * a.gate_stride, a.up + row * a.up_stride
        out = a.out + row * a.out_stride

        def apply(columns: Columns, gate: Value = gate, up: Value = up, out: Value = out) -> None:
            columns.store(out, activated(columns.load(gate), kind) * columns.load(up))

        each_vector(k, first * GROUP, minimum(last * GROUP, a.columns), apply)


def gated_quantize(
    k: Kernel, record: Value, thread: Value, threads: Value, activation: str, planes: int = 1
) -> None:
    """Write activation(gate) · up as A8 or A16; `activation` is a name of `Activation`."""
    a = k.fields(record, FIELDS)
    kind, count, groups = Activation[activation], k.load(i64, a.count), a.columns // GROUP
    with own_runs(k, count, groups, thread, threads) as (row, first, last):
        gate, up = a.gate + row * a.gate_stride, a.up + row * a.up_stride
        out = CodedRow(k, a.out + row * a.out_stride, a.columns, planes)
        with k.range(first, last) as group:
            low, high = (
                activated(k.load(VECTOR, gate + at), kind) * k.load(VECTOR, up + at)
                for at in (group * (4 * GROUP), group * (4 * GROUP) + 4 * LANES)
            )
            out.store_group(group, low, high)
