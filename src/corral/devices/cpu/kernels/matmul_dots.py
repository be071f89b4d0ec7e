"""How the dots of a group start, and how they become part of a total. All paths share it.

A dot is summed in 32-bit integers that start at the bits of the float 1.5 · 2²³. Read as a float,
the sum is 1.5 · 2²³ + dot, exactly (|dot| < 2²²), and one fused multiply-add both removes the
constant and scales: fma(sum, scale, −1.5 · 2²³ · scale) is dot × scale, rounded once. No conversion
is needed. Processors without fused multiply-add convert and multiply: the same result.

    per group (or half of it):   total = fma(dot × scale, x_scale, total)
    with offsets:                total = fma(offset, x_scale × Σ x codes, total)

If codes stand for code − zero, a dot starts lower by zero × Σ x codes. A16 activations have two
planes of codes, and each a dot: dot × scale is then fma(high × scale, 256, low × scale).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from corral.devices.cpu.features import Target
from corral.devices.cpu.kernels.matmul_weights import ROWS, Shape
from corral.devices.cpu.simd import (
    Kernel,
    Value,
    Variable,
    convert,
    dot_u8_i8,
    f32,
    fma,
    i8,
    i32,
    shuffle,
    u8,
)
from corral.quant.packed import GROUP

_LIFT = 1.5 * 2.0**23
_LIFT_BITS = 0x4B400000
_PLANE = 256.0
"""What a code is worth in one plane, counted in the next."""


def lift(target: Target) -> int:
    """Return the integer at which dots start."""
    return _LIFT_BITS if target.fused else 0


def scaled(dot: Value, scale: Value, *, lifted: bool) -> Value:
    """Return dot × scale, of a dot that started at `lift` or at 0."""
    if not (lifted and dot.kernel.target.fused):
        return convert(dot, f32) * scale
    return fma(dot.bits(f32.x(dot.type.lanes)), scale, scale * -_LIFT)


def joined(planes: Sequence[Value]) -> Value:
    """Return dot × scale from that of each plane, the highest first."""
    result = planes[0]
    for plane in planes[1:]:
        result = fma(result, _PLANE, plane)
    return result


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums of activation codes that a layout needs and rows of activations do not have.

    For each token, group, plane and half an i32: where a dot starts (layouts with a zero), or the
    plain sum (offsets for each 16 columns). Kept in a thread's scratch for a chunk of tokens.
    """

    shape: Shape
    groups: int
    planes: int
    start: int

    @property
    def group_bytes(self) -> int:
        """Bytes of one group of one token."""
        return 4 * self.shape.halves * self.planes

    @property
    def token_bytes(self) -> int:
        """Bytes of one token; 0 if the layout needs no sums."""
        needed = self.shape.zero or (self.shape.halves == 2 and self.shape.has_offset)
        return self.group_bytes * self.groups if needed else 0

    def store(self, k: Kernel, codes: Value, to: Value) -> None:
        """Write the sums of a token whose codes lie at an address."""
        halves = self.shape.halves
        with k.range(0, self.groups) as group:
            for plane in range(self.planes):
                at = codes + group * GROUP + plane * self.groups * GROUP
                sums = _sums(k, k.load(i8.x(GROUP), at), halves)
                if self.shape.zero:
                    sums = sums * -self.shape.zero + self.start
                k.store(to + group * self.group_bytes + 4 * halves * plane, sums)


def _sums(k: Kernel, codes: Value, parts: int) -> Value:
    """Return the sums of the parts of 32 codes: i32.x(parts)."""
    ones = k.constant(u8.x(GROUP), 1)
    sums = dot_u8_i8(k.constant(i32.x(GROUP // 4), 0), ones, codes, 1)
    while sums.type.lanes > parts:
        count = sums.type.lanes
        even = shuffle(sums, list(range(0, count, 2)))
        sums = even + shuffle(sums, list(range(1, count, 2)))
    return sums


@dataclass(frozen=True, slots=True)
class Activations:
    """A run of rows of activations; the distances between tokens are constants of the kernel."""

    k: Kernel
    columns: int
    codes: Value
    """Address of the first token's codes."""
    sums: Sums
    sums_at: Value
    """Address of the first token's sums."""

    @property
    def stride(self) -> int:
        """Bytes of a row."""
        return self.scales_at + self.columns // 4

    @property
    def scales_at(self) -> int:
        """Where in a row the scales are; the sums follow them."""
        return self.sums.planes * self.columns

    def code(self, token: int, group: Value, column: int) -> Value:
        """Return the four codes from a column of the group on, in every lane.

        Columns of the next plane are `columns` further.
        """
        at = self.codes + group * GROUP + (token * self.stride + column)
        return self.k.broadcast(i32.x(ROWS), at).bits(i8.x(4 * ROWS))

    def start(self, token: int, group: Value, plane: int, half: int) -> Value:
        """Return where the dot of unsigned codes starts."""
        if not self.sums.shape.zero:
            return self.k.constant(i32.x(ROWS), self.sums.start)
        return self._sum(token, group, plane, half)

    def add(self, total: Variable, product: Value, token: int, group: Value) -> None:
        """Add dot × scale of a group, or of half of it, to the total of a token."""
        total.value = fma(product, self._scale(token, group), total.value)

    def add_offsets(
        self, total: Variable, offsets: Sequence[Value], token: int, group: Value
    ) -> None:
        """Add what the offsets of a group make; its products come before."""
        for half, offset in enumerate(offsets):
            x_sum = self._sum_of_half(token, group, half)
            total.value = fma(offset, x_sum, total.value)

    def _sum_of_half(self, token: int, group: Value, half: int) -> Value:
        """Return scale × Σ codes of the group or a half of it, in every lane."""
        if self.sums.shape.halves == 1:
            return self._float(token * self.stride + self.scales_at + self.columns // 8, group)
        planes = [self._sum(token, group, plane, half) for plane in range(self.sums.planes)]
        return joined([convert(plane, f32) for plane in planes]) * self._scale(token, group)

    def _scale(self, token: int, group: Value) -> Value:
        return self._float(token * self.stride + self.scales_at, group)

    def _float(self, offset: int, group: Value) -> Value:
        return self.k.broadcast(f32.x(ROWS), self.codes + group * 4 + offset)

    def _sum(self, token: int, group: Value, plane: int, half: int) -> Value:
        at = self.sums_at + group * self.sums.group_bytes
        number = plane * self.sums.shape.halves + half
        return self.k.broadcast(i32.x(ROWS), at + (token * self.sums.token_bytes + 4 * number))
