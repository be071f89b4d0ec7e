"""Launches: one kernel instance with its grid and the values of its fields. Pure data, no driver.

A kernel takes one struct of 8-byte members; `Launch.fields` names them in the struct's order.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from corral.devices.base import ModelBuffers
from corral.devices.cuda.driver_execution import Geometry
from corral.devices.cuda.instance import Instance
from corral.errors import InternalError
from corral.memory.plan import COUNTS, ZEROS, Plan
from corral.tensor.ops import Op
from corral.tensor.tensor import Extent, Tensor

MOST_FIELDS = 30
"""Members that the struct of a kernel may have."""
_WORD_BYTES = 8
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

    @property
    def words(self) -> tuple[int, ...]:
        """The struct as 64-bit words."""
        return tuple(self.fields.values())

    @property
    def geometry(self) -> Geometry:
        """The shape of the launch; every kernel waits by itself for the one ahead of it."""
        return Geometry(self.grid, self.block, self.shared_bytes, is_dependent=True)


@dataclass(frozen=True, slots=True)
class Binding:
    """A plan on one model's buffers, for batches of at most so many rows."""

    plan: Plan
    buffers: ModelBuffers
    bucket: int
    """Rows that launches are made for; fewer may come."""

    def address(self, tensor: Tensor | None) -> int:
        """Return the address of a tensor; 0 of one that is absent."""
        return 0 if tensor is None else self.buffers.address(self.plan, tensor)

    def rows(self, tensor: Tensor) -> int:
        """Return the most rows that a tensor has in such a batch."""
        return min(tensor.shape[0], self.bucket)

    def count(self, tensor: Tensor) -> int:
        """Return the address of the number of rows that a tensor has in this batch."""
        counts = self.buffers.inputs_address(self.plan) + self.plan.staging.offsets[COUNTS]
        match tensor.extent:
            case Extent.ROWS:
                return counts
            case Extent.OUTPUTS:
                return counts + _WORD_BYTES
            case Extent.FIXED:
                raise InternalError(f"{tensor!r} has no rows that a batch could count")

    def is_aligned(self, *rows: Tensor) -> bool:
        """Return whether all rows of these can be read 16 bytes at a time."""
        return all(
            (self.address(tensor) | tensor.row_bytes | tensor.dtype.row_bytes(tensor.columns))
            % _VECTOR_BYTES
            == 0
            for tensor in rows
        )

    @property
    def segments(self) -> int:
        """The address of the plan's scratch for segments of attention."""
        return self.buffers.scratch.address + self.plan.segments_offset

    @property
    def counters(self) -> int:
        """The address of a few zeros, one for each segment of attention; to be left zero."""
        return self.buffers.inputs_address(self.plan) + self.plan.staging.offsets[ZEROS]

    @property
    def choices(self) -> int:
        """The address of the tokens that the evaluation before chose."""
        return self.buffers.choices_address(self.plan)

    @property
    def factors(self) -> int:
        """The address of the plan's scratch for factors of products."""
        return self.buffers.scratch.address + self.plan.factors_offset


Rule = Callable[[Binding, Tensor], tuple[Launch, ...]]
"""Gives the launches that compute one node, in order."""
Rules = Mapping[Op, Rule]


def float_word(value: float) -> int:
    """Return the word whose low half is an F32."""
    word: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return word


def ceil_divide(value: int, by: int) -> int:
    """Return the quotient rounded up."""
    return -(-value // by)
