"""Launches: one kernel instance with its grid and the values of its fields. Pure data, no driver.

A kernel takes one struct of 8-byte members; `Launch.fields` names them in the struct's order.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from corral.devices.binding import BoundPlan
from corral.devices.cuda.driver_execution import Geometry
from corral.devices.cuda.instance import Instance, Kernel
from corral.memory.choices import DRAWS
from corral.memory.plan import ZEROS
from corral.tensor.ops import Op
from corral.tensor.tensor import Tensor

MOST_FIELDS = 30
"""Members that the struct of a kernel may have."""
_VECTOR_BYTES = 16

Size = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel with all that a launch needs but a stream."""

    instance: Instance
    grid: Size
    block: Size
    fields: Mapping[str, int]
    """The members of the kernel's struct by name, in its order; every value is one word."""
    shared_bytes: int = 0
    """Dynamic shared memory of a block."""
    is_early: bool = True
    """Whether it may begin before the one ahead of it has ended, and waits for that by itself."""

    @classmethod
    def of(cls, kernel: Kernel, fields: Mapping[str, int]) -> "Launch":
        """Return the launch of a kernel with these fields."""
        block = (kernel.threads, 1, 1)
        return cls(kernel.instance, kernel.grid, block, fields, kernel.shared_bytes)

    @property
    def words(self) -> tuple[int, ...]:
        """The struct as 64-bit words."""
        return tuple(self.fields.values())

    @property
    def geometry(self) -> Geometry:
        """The shape of the launch."""
        return Geometry(self.grid, self.block, self.shared_bytes, is_dependent=self.is_early)


@dataclass(frozen=True)
class Binding(BoundPlan):
    """A plan on one model's buffers, for batches of at most so many rows."""

    bucket: int = 1
    """Rows that launches are made for; fewer may come."""

    def rows(self, tensor: Tensor) -> int:
        """Return the most rows that a tensor has in such a batch."""
        return min(tensor.shape[0], self.bucket)

    def is_aligned(self, *rows: Tensor) -> bool:
        """Return whether all rows of these can be read 16 bytes at a time."""
        return all(
            (self.address(tensor) | tensor.row_bytes | tensor.dtype.row_bytes(tensor.columns))
            % _VECTOR_BYTES
            == 0
            for tensor in rows
        )

    @cached_property
    def segments(self) -> int:
        """The address of the plan's scratch for segments of attention."""
        return self.buffers.scratch.address + self.plan.segments_offset

    @property
    def counters(self) -> int:
        """The address of a few zeros, one for each segment of attention; to be left zero."""
        return self.inputs + self.plan.staging.offsets[ZEROS]

    @property
    def draws(self) -> int:
        """The address of how the token of each row of logits is chosen."""
        return self.inputs + self.plan.staging.offsets[DRAWS]

    @property
    def choices(self) -> int:
        """The address of the tokens that the evaluation before chose."""
        return self.buffers.choices_address(self.plan)

    @cached_property
    def factors(self) -> int:
        """The address of the plan's scratch for factors of products."""
        return self.buffers.scratch.address + self.plan.factors_offset


Rule = Callable[[Binding, Tensor], tuple[Launch, ...]]
"""Gives the launches that compute one node, in order."""
Rules = Mapping[Op, Rule]


def ceil_divide(value: int, by: int) -> int:
    """Return the quotient rounded up."""
    return -(-value // by)
