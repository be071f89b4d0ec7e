"""A8 activations: int8 codes with an F32 scale and sum for each 32 columns.

One row is [codes int8 × K][scale F32 × K/32][sum F32 × K/32]; sum = scale × Σ codes. Other kernels
write the same form through `RowA8`.
"""

from dataclasses import dataclass

from corral.devices.cpu.kernels.columns import LANES, VECTOR, shared_runs
from corral.devices.cpu.simd import (
    Kernel,
    Value,
    absolute,
    convert,
    f32,
    i8,
    i32,
    i64,
    maximum,
    reduce_add,
    reduce_maximum,
    round_half_even,
    select,
)

FIELDS = ("x", "count", "out", "x_stride", "out_stride", "columns")
"""Addresses of F32 rows, the i64 row count and the A8 rows; bytes from a row to the next; columns,
a multiple of 32."""

GROUP = 32


def quantize(k: Kernel, record: Value, thread: Value, threads: Value) -> None:
    """Write rows of F32 as A8."""
    a = k.fields(record, FIELDS)
    count, groups = k.load(i64, a.count), a.columns // GROUP
    with shared_runs(k, count, groups, thread, threads) as (row, first, last):
        x, out = a.x + row * a.x_stride, RowA8(k, a.out + row * a.out_stride, a.columns)
        with k.range(first, last) as group:
            start = x + group * (4 * GROUP)
            out.store_group(group, k.load(VECTOR, start), k.load(VECTOR, start + 4 * LANES))


@dataclass(frozen=True, slots=True)
class RowA8:
    """One A8 row: where its parts begin."""

    kernel: Kernel
    address: Value
    columns: Value

    def store_group(self, group: Value, low: Value, high: Value) -> None:
        """Quantize and store the 16 + 16 columns of a group."""
        k = self.kernel
        codes, scale = int8_codes(low, high)
        whole = [convert(code, i32) for code in codes]
        at = self.address + group * GROUP
        for half, numbers in enumerate(whole):
            k.store(at + half * LANES, convert(numbers, i8))
        scales = self.address + self.columns + group * 4
        total = convert(reduce_add(whole[0] + whole[1]), f32)
        k.store(scales, scale)
        k.store(scales + self.columns // 8, scale * total)


def int8_codes(low: Value, high: Value) -> tuple[tuple[Value, Value], Value]:
    """Return codes (still F32) and the scale of 16 + 16 columns.

    scale = max|x| / 127, code = x · (1 / scale) rounded half to even; where the reciprocal is not
    finite, codes are 0.
    """
    greatest = reduce_maximum(maximum(absolute(low), absolute(high)))
    scale = greatest / 127.0
    inverse = 1.0 / scale
    inverse = select(inverse < float("inf"), inverse, 0.0)
    return (round_half_even(low * inverse), round_half_even(high * inverse)), scale
