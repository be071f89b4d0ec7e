"""Counts what an evaluation would launch and move; its outputs are zeros."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corral.devices.base import NOTHING_SENT, Device, ModelBuffers, Program, Progress, Sent
from corral.devices.in_turn import InTurn
from corral.devices.null.traffic import traffic
from corral.devices.staging import arrived, count
from corral.memory.plan import Plan
from corral.tensor.ops import Op
from corral.tensor.tensor import Tensor


@dataclass(frozen=True, slots=True)
class NullStatistics:
    """What an executor was asked to do so far."""

    runs: int = 0
    launches: int = 0
    """Nodes that a device would have to compute."""
    bytes_moved: int = 0
    """Bytes read and written if each is moved once a node."""


@dataclass(frozen=True, slots=True, eq=False)
class NullProgram:
    """A plan bound to one model's buffers."""

    plan: Plan
    buffers: ModelBuffers


class NullBackend(InTurn):
    """An executor that does nothing."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._statistics = NullStatistics()
        self.is_closed = False

    def lower(
        self, plan: Plan, buffers: ModelBuffers, *, progress: Progress | None = None
    ) -> NullProgram:
        """Take the plan's records and look up every address, as a real device would.

        Raises:
            CapacityExceeded: if the record pool is smaller than the plan said.
            Closed: after close().
        """
        self._require_open()
        for number, node in enumerate(plan.graph, start=1):
            buffers.records.take()
            for tensor in (node, *node.sources):
                buffers.address(plan, tensor)
            if progress:
                progress("lower", number, len(plan.graph))
        return NullProgram(plan, buffers)

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
        """Check and count one evaluation.

        Raises:
            CapacityExceeded: if an input is larger than the plan.
            Closed: after close(), or after a buffer of the model was closed.
        """
        self._require_open()
        assert isinstance(program, NullProgram)
        program.buffers.require_open()
        graph, layout = program.plan.graph, program.buffers.weights_layout
        names = [tensor.name for tensor in graph.leaves(Op.RECEIVED)]
        inputs = {**inputs, **arrived(names, received)}
        leaves = (*graph.leaves(Op.INPUT), *graph.leaves(Op.RECEIVED))
        counts = count(leaves, inputs, outputs)
        before = self._statistics
        self._statistics = replace(
            before,
            runs=before.runs + 1,
            launches=before.launches + sum(node.op is not Op.VIEW for node in graph),
            bytes_moved=before.bytes_moved
            + sum(traffic(node, layout, inputs, counts) for node in graph),
        )

    def read(self, program: Program, tensor: Tensor, rows: int) -> NDArray[np.float32]:
        """Return zeros of the shape asked for.

        Raises:
            Closed: after close().
        """
        self._require_open()
        return np.zeros((rows, tensor.columns), np.float32)

    def statistics(self) -> NullStatistics:
        """Return the counts since the executor was made."""
        return self._statistics
