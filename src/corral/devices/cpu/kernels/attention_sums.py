"""What attention keeps of the tokens a query has seen, and how segments of them are folded.

softmax(s) · V needs the greatest score, the sum of the weights e^(s − greatest) and the sum of
weight · value. A total starts from nothing and takes up one segment after the other.
"""

from dataclasses import dataclass

from corral.devices.cpu.kernels.columns import LANES, VECTOR
from corral.devices.cpu.simd import Kernel, Value, f32, fma, maximum
from corral.devices.cpu.simd.functions import exp_non_positive
from corral.devices.cpu.traits import SEGMENT_BYTES

LEAST = -1e30
"""Greatest score of a query that has seen nothing: finite, so that differences are numbers."""


def stored_bytes(head_dim: int) -> int:
    """Return the bytes of sums in memory."""
    return SEGMENT_BYTES + 4 * head_dim


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums of one query over some tokens."""

    kernel: Kernel
    head_dim: int
    greatest: Value
    weight: Value
    """Sum of the weights."""
    mixed: Value
    """Address of head_dim F32: the sum of weight · value."""

    @classmethod
    def load(cls, k: Kernel, head_dim: int, address: Value) -> "Sums":
        """Return what `store` wrote."""
        greatest, weight = k.load(f32, address), k.load(f32, address + 4)
        return cls(k, head_dim, greatest, weight, address + SEGMENT_BYTES)

    def store(self, address: Value) -> None:
        """Write the sums to `stored_bytes` of memory."""
        k = self.kernel
        k.store(address, self.greatest)
        k.store(address + 4, self.weight)
        with k.range(0, 4 * self.head_dim, 4 * LANES) as at:
            k.store(address + (at + SEGMENT_BYTES), k.load(VECTOR, self.mixed + at))


@dataclass(frozen=True, slots=True)
class Total:
    """The sums of one query over all segments so far, in memory."""

    kernel: Kernel
    head_dim: int
    header: Value
    """Address of two F32: the greatest score and the sum of the weights."""
    mixed: Value
    """Address of head_dim F32; in the end, of the result."""

    def clear(self) -> None:
        """Forget everything."""
        k = self.kernel
        k.store(self.header, k.constant(f32, LEAST))
        k.store(self.header + 4, k.constant(f32, 0.0))
        with k.range(0, 4 * self.head_dim, 4 * LANES) as at:
            k.store(self.mixed + at, k.constant(VECTOR, 0.0))

    def fold(self, segment: Sums) -> None:
        """Add the sums of the next segment; sums over nothing change nothing."""
        k = self.kernel
        before = k.load(f32, self.header)
        greatest = maximum(segment.greatest, before)
        old, new = (exp_non_positive(x - greatest) for x in (before, segment.greatest))
        weight = fma(segment.weight, new, k.load(f32, self.header + 4) * old)
        k.store(self.header, greatest)
        k.store(self.header + 4, weight)
        with k.range(0, 4 * self.head_dim, 4 * LANES) as at:
            kept = k.load(VECTOR, self.mixed + at) * old
            k.store(self.mixed + at, fma(k.load(VECTOR, segment.mixed + at), new, kept))

    def finish(self) -> None:
        """Divide by the sum of the weights: `mixed` becomes the result."""
        k = self.kernel
        inverse = 1.0 / k.load(f32, self.header + 4)
        with k.range(0, 4 * self.head_dim, 4 * LANES) as at:
            # A zero's sign would tell how many masked tokens were added: + 0 makes all positive.
            k.store(self.mixed + at, k.load(VECTOR, self.mixed + at) * inverse + 0.0)
