"""A8 and A16 activations: integer codes with an F32 scale and sum for each 32 columns.

One row is [planes of int8 codes × K][scale F32 × K/32][sum F32 × K/32]; sum = scale × Σ codes. A8
has one plane; A16 has two, and its codes are 256 × the first + the second. Other kernels write the
same form through `CodedRow`.
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
from corral.quant.types import DType

FIELDS = ("x", "count", "out", "x_stride", "out_stride", "columns")
"""Addresses of F32 rows, the i64 row count and the A8 rows; bytes from a row to the next; columns,
a multiple of 32."""

GROUP = 32


PLANES = {DType.A8: 1, DType.A16: 2}
"""Planes of codes of each data type."""
_GREATEST = {1: 127.0, 2: 127.0 * 256}
"""The code of the greatest column of a group, by planes."""


def quantize(k: Kernel, record: Value, thread: Value, threads: Value, planes: int = 1) -> None:
    """Write rows of F32 as A8 (one plane) or A16 (two)."""
    a = k.fields(record, FIELDS)
    count, groups = k.load(i64, a.count), a.columns // GROUP
    with shared_runs(k, count, groups, thread, threads) as (row, first, last):
        x, out = a.x + row * a.x_stride, CodedRow(k, a.out + row * a.out_stride, a.columns, planes)
        with k.range(first, last) as group:
            start = x + group * (4 * GROUP)
            out.store_group(group, k.load(VECTOR, start), k.load(VECTOR, start + 4 * LANES))


@dataclass(frozen=True, slots=True)
class CodedRow:
    """One row: where its parts begin."""

    kernel: Kernel
    address: Value
    columns: Value
    planes: int

    def store_group(self, group: Value, low: Value, high: Value) -> None:
        """Quantize and store the 16 + 16 columns of a group."""
        k = self.kernel
        codes, scale = integer_codes(low, high, _GREATEST[self.planes])
        whole = [convert(code, i32) for code in codes]
        at = self.address + group * GROUP
        for half, numbers in enumerate(whole):
            rest = numbers
            if self.planes == 2:
                upper = (numbers + 128) >> 8
                k.store(at + half * LANES, convert(upper, i8))
                rest = numbers - (upper << 8)
            last = at + (self.planes - 1) * self.columns
            k.store(last + half * LANES, convert(rest, i8))
        scales = self.address + self.planes * self.columns + group * 4
        total = convert(reduce_add(whole[0] + whole[1]), f32)
        k.store(scales, scale)
        k.store(scales + self.columns // 8, scale * total)


def int8_codes(low: Value, high: Value) -> tuple[tuple[Value, Value], Value]:
    """Return codes (still F32) of at most 127 and the scale of 16 + 16 columns."""
    return integer_codes(low, high, 127.0)


def integer_codes(low: Value, high: Value, limit: float) -> tuple[tuple[Value, Value], Value]:
    """Return codes (still F32) and the scale of 16 + 16 columns.

    scale = max|x| / limit, code = x · (1 / scale) rounded half to even; where the reciprocal is not
    finite, codes are 0.
    """
    greatest = reduce_maximum(maximum(absolute(low), absolute(high)))
    scale = greatest / limit
    inverse = 1.0 / scale
    inverse = select(inverse < float("inf"), inverse, 0.0)
    return (round_half_even(low * inverse), round_half_even(high * inverse)), scale
