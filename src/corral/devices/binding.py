"""Where a plan's tensors lie in one model's buffers, and how fields of kernels say numbers."""

import struct
from dataclasses import dataclass, field
from functools import cached_property

from corral.devices.base import ModelBuffers
from corral.errors import InternalError
from corral.memory.plan import COUNTS, Plan
from corral.tensor.tensor import Extent, Tensor

_COUNT_BYTES = 8
"""Of each of the counts among the inputs."""


@dataclass(frozen=True)
class BoundPlan:
    """A plan on one model's buffers: where things are."""

    plan: Plan
    buffers: ModelBuffers
    _addresses: dict[Tensor, int] = field(default_factory=dict, repr=False, compare=False)
    """Of tensors that were asked for; those made from this by `replace` share them."""

    def address(self, tensor: Tensor | None) -> int:
        """Return the address of a tensor; 0 of one that is absent."""
        if tensor is None:
            return 0
        known = self._addresses.get(tensor)
        if known is None:
            known = self._addresses[tensor] = self.buffers.address(self.plan, tensor)
        return known

    @cached_property
    def inputs(self) -> int:
        """The address of the inputs, the counts first, as the device reads them."""
        return self.buffers.inputs_address(self.plan)

    def count(self, tensor: Tensor) -> int:
        """Return the address of the number of rows that a tensor has in this batch."""
        counts = self.inputs + self.plan.staging.offsets[COUNTS]
        match tensor.extent:
            case Extent.ROWS:
                return counts
            case Extent.OUTPUTS:
                return counts + _COUNT_BYTES
            case Extent.FIXED:
                raise InternalError(f"{tensor!r} has no rows that a batch could count")


def float_word(value: float) -> int:
    """Return the word whose low half is an F32."""
    word: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return word
