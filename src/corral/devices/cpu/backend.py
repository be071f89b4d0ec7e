"""Runs programs on a team of threads: one native call an evaluation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from corral.devices.base import NOTHING_SENT, ModelBuffers, Program, Progress, Sent
from corral.devices.cpu.compile import KernelSpec
from corral.devices.cpu.lower import Instruction, lower_graph, write_records
from corral.devices.cpu.rules import RULES, pack_spec
from corral.devices.cpu.team import ThreadTeam
from corral.devices.host import array_at
from corral.devices.in_turn import InTurn
from corral.devices.staging import Staging
from corral.memory.plan import Plan
from corral.tensor.tensor import Tensor

if TYPE_CHECKING:
    from corral.devices.cpu.device import CpuDevice


@dataclass(frozen=True, slots=True, eq=False)
class CpuProgram:
    """Records in the order of execution, ready to run."""

    plan: Plan
    buffers: ModelBuffers
    staging: Staging
    address: int
    """Of the first record; the others follow."""
    num_records: int


class CpuBackend(InTurn):
    """A team of threads on the CPU device."""

    _device: "CpuDevice"

    def __init__(self, device: "CpuDevice") -> None:
        self._device = device
        self._team = ThreadTeam(device.compiler, device.traits.workers)
        self.is_closed = False

    @property
    def num_threads(self) -> int:
        """Threads that evaluate, the caller's included."""
        return self._team.num_threads

    def lower(
        self, plan: Plan, buffers: ModelBuffers, *, progress: Progress | None = None
    ) -> CpuProgram:
        """Compile what is missing and write the plan's records.

        Raises:
            CompileError: if a kernel does not compile.
            CapacityExceeded: if the record pool is smaller than the plan said.
            Closed: after close().
        """
        self._require_open()
        instructions = lower_graph(plan, buffers, RULES)
        kernels = self._device.compiler.request(_kernels(instructions, buffers), progress)
        address = buffers.records.take(len(instructions))
        write_records(address, instructions, kernels)
        staging = Staging(plan, buffers)
        return CpuProgram(plan, buffers, staging, address, len(instructions))

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
        assert isinstance(program, CpuProgram)
        program.buffers.require_open()
        program.staging.write(inputs, outputs, received)
        self._team.run(program.address, program.num_records)

    def read(self, program: Program, tensor: Tensor, rows: int) -> NDArray[np.float32]:
        """Return rows of an output, in the scratch arena; valid until the next run.

        Raises:
            Closed: after close(), or after a buffer of the model was closed.
        """
        self._require_open()
        assert isinstance(program, CpuProgram)
        program.buffers.require_open()
        address = program.buffers.address(program.plan, tensor)
        return array_at(address, (rows, tensor.columns), np.float32)

    def _release(self) -> None:
        self._team.close()


def _kernels(instructions: Sequence[Instruction], buffers: ModelBuffers) -> Iterator[KernelSpec]:
    """Name every kernel a model needs: those it runs, and those that pack its weights."""
    for instruction in instructions:
        yield instruction.spec
    for slot in buffers.weights_layout.slots.values():
        if slot.form.layout is not None:
            yield pack_spec(slot.form.dtype)
