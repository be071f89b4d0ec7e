"""Runs the nodes of a plan one after the other, each on arrays over the plan's memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corral.devices.base import NOTHING_SENT, Device, ModelBuffers, Program, Progress, Sent
from corral.devices.host import array_at
from corral.devices.in_turn import InTurn
from corral.devices.reference.ops import KERNELS, Kernel
from corral.devices.reference.storage import tensor_array
from corral.devices.staging import Counts, Staging
from corral.memory.plan import Plan
from corral.tensor.ops import Op
from corral.tensor.tensor import Tensor

_OPCODES = {op: number for number, op in enumerate(Op)}


@dataclass(frozen=True, slots=True)
class Step:
    """One node with its kernel and its arrays at full capacity."""

    node: Tensor
    kernel: Kernel
    result: NDArray[Any]
    sources: tuple[NDArray[Any], ...]

    def run(self, counts: Counts) -> None:
        """Compute the node for the rows of this batch."""
        pairs = zip(self.node.sources, self.sources, strict=True)
        sources = [array[: counts.of(tensor)] for tensor, array in pairs]
        self.kernel(self.node, self.result[: counts.of(self.node)], *sources)


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceProgram:
    """A plan bound to one model's buffers."""

    plan: Plan
    buffers: ModelBuffers
    staging: Staging
    steps: tuple[Step, ...]


class ReferenceBackend(InTurn):
    """An executor on the reference device; evaluates at once, in the caller's thread."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.is_closed = False

    def lower(
        self, plan: Plan, buffers: ModelBuffers, *, progress: Progress | None = None
    ) -> ReferenceProgram:
        """Bind a plan to buffers; each node's record is the number of its operation.

        Raises:
            CapacityExceeded: if the record pool is smaller than the plan said.
            Closed: after close().
        """
        self._require_open()
        steps = []
        for number, node in enumerate(plan.graph, start=1):
            array_at(buffers.records.take(), (1,), np.int64)[0] = _OPCODES[node.op]
            if node.op is not Op.VIEW:
                arrays = [tensor_array(plan, buffers, t) for t in (node, *node.sources)]
                steps.append(Step(node, KERNELS[node.op], arrays[0], tuple(arrays[1:])))
            if progress:
                progress("lower", number, len(plan.graph))
        staging = Staging(plan, buffers)
        return ReferenceProgram(plan, buffers, staging, tuple(steps))

    def run(
        self,
        program: Program,
        inputs: Mapping[str, NDArray[Any]],
        outputs: int,
        *,
        received: Mapping[str, Sent] = NOTHING_SENT,
        chooses: bool = False,
        sends: bool = False,
    ) -> None:
        """Evaluate one batch before returning.

        Raises:
            CapacityExceeded: if an input is larger than the plan.
            Closed: after close(), or after a buffer of the model was closed.
        """
        self._require_open()
        assert isinstance(program, ReferenceProgram)
        program.buffers.require_open()
        counts = program.staging.write(inputs, outputs, received)
        for step in program.steps:
            step.run(counts)

    def read(self, program: Program, tensor: Tensor, rows: int) -> NDArray[np.float32]:
        """Return rows of an output, in the scratch arena; valid until the next run.

        Raises:
            Closed: after close(), or after a buffer of the model was closed.
        """
        self._require_open()
        assert isinstance(program, ReferenceProgram)
        program.buffers.require_open()
        return tensor_array(program.plan, program.buffers, tensor)[:rows]
