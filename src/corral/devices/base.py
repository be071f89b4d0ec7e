"""What every device and backend does; the engine knows these protocols and nothing behind them.

registry.open("cpu") ──▶ Device ──▶ backend() ──▶ Backend ──▶ lower(plan) ──▶ Program
                           │ owns bytes             │ executes                   │ ready to run
                           ▼                        ▼                            ▼
                         Buffer                 closed before               read-only while
                         closed first           its device                  evaluating
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from corral.errors import InternalError
from corral.memory.buffer import Buffer
from corral.memory.lifetime import Lifetime
from corral.memory.plan import Plan, StateLayout, TableLayout
from corral.memory.records import RecordPool
from corral.memory.stored import StoredSlot, WeightsLayout
from corral.memory.traits import DeviceTraits
from corral.tensor.ops import Columns, Op
from corral.tensor.tensor import Tensor

if TYPE_CHECKING:  # the router reads these protocols, and it loads no NumPy
    import numpy as np
    from numpy.typing import NDArray

Store = Callable[[StoredSlot, Buffer, int, memoryview], None]
"""Stores rows of a weight, as `Device.upload` does."""
Progress = Callable[[str, int, int], None]
"""Called with a stage's name, what is done and the total."""


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """What a device says of its own memory at one moment."""

    total_bytes: int
    free_bytes: int | None
    """None is unknown, and admits nothing."""
    source: str


@dataclass(frozen=True, slots=True, eq=False)
class AdapterTables:
    """The buffer with a table for each weight that adapters may change."""

    buffer: Buffer
    layout: TableLayout


@dataclass(frozen=True, slots=True, eq=False)
class ModelBuffers:
    """The buffers of one loaded model, and where its weights and state lie in them."""

    weights: Buffer
    state: Buffer
    scratch: Buffer
    staging: Buffer
    records: RecordPool
    weights_layout: WeightsLayout
    state_layout: StateLayout
    tables: AdapterTables | None = None
    """Where adapters lie; only for plans that have some attached."""

    def require_open(self) -> None:
        """Refuse to go on with memory that may be gone.

        Raises:
            Closed: if one of the buffers was closed.
        """
        for buffer in (self.weights, self.state, self.scratch, self.staging, self.records.buffer):
            buffer.require_open()
        if self.tables is not None:
            self.tables.buffer.require_open()

    def inputs_address(self, plan: Plan) -> int:
        """Return where the device reads the inputs, the counts first: in staging, or its copy."""
        if plan.traits.has_own_memory:
            return self.scratch.address + plan.inputs_offset
        return self.staging.address

    def choices_address(self, plan: Plan) -> int:
        """Return where the device keeps the tokens that it chose."""
        return self.scratch.address + plan.choices_offset

    def address(self, plan: Plan, tensor: Tensor) -> int:
        """Return where the device has a tensor of the plan."""
        if tensor.op is Op.VIEW:
            assert isinstance(tensor.attributes, Columns)
            first = tensor.dtype.row_bytes(tensor.attributes.first)
            return self.address(plan, tensor.sources[0]) + first
        base = tensor.base
        match base.op:
            case Op.WEIGHT | Op.CONSTANT:
                return self.weights.address + self.weights_layout.slots[base.name].offset
            case Op.STATE:
                return self.state.address + self.state_layout.offsets[base.name]
            case Op.ADAPTERS:
                if self.tables is None:
                    raise InternalError(f"{tensor!r} is read, and no adapters are attached")
                return self.tables.buffer.address + self.tables.layout.offsets[base.name]
            case Op.INPUT:
                return self.inputs_address(plan) + plan.staging.offsets[base.name]
            case _:
                return self.scratch.address + plan.scratch_offset(base)


class Sent(Protocol):
    """Rows of an output, on their way to other backends; good until their own runs again."""

    def on_host(self) -> NDArray[np.float32]:
        """Wait until they are computed and return them in host memory."""
        ...


NOTHING_SENT: Mapping[str, Sent] = MappingProxyType({})


class Program(Protocol):
    """A plan lowered for one backend and bound to one model's buffers."""

    @property
    def plan(self) -> Plan:
        """The plan it was made from."""
        ...


class Backend(Protocol):
    """An executor on a device: a team of threads, a stream."""

    is_asynchronous: bool
    """Whether `run` returns before the evaluation is done, so that the caller may go on."""

    def lower(
        self, plan: Plan, buffers: ModelBuffers, *, progress: Progress | None = None
    ) -> Program:
        """Return the plan as a program; compiles what is missing, fills records, allocates none."""
        ...

    def release(self, program: Program) -> None:
        """Give back what a program holds beside its records; it is not run any more."""
        ...

    def storing(self, through: int) -> AbstractContextManager[Store]:
        """Give one reader, in its thread, what stores rows as `Device.upload` does.

        For devices with memory of their own it is faster than that: what is stored must lie in
        pinned memory, and `through` is the address of as much memory of the device, which may be
        written over; for others it is 0.
        """
        ...

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
        """Copy the inputs to staging and start one evaluation.

        Each input holds the rows of this batch only, at most the plan's capacity. `outputs` is
        how many rows of logits are wanted; `received` is what the graph reads of other backends.

        An asynchronous backend that `chooses` gives tokens and no logits: those that the input
        `draws` asks for (`staging.DRAW`), without it the likeliest. The next evaluation may then
        be started before they are read, and a token of −1 − k stands in it for what was chosen for
        row k of the outputs. The outputs of one that `sends` go to other backends, by
        `send`, and are not to be read.
        """
        ...

    def send(self, program: Program, tensor: Tensor, rows: int) -> Sent:
        """Return rows of an output of the last `run` for others to receive; waits for nothing."""
        ...

    def choices(self, program: Program, rows: int) -> NDArray[np.int32]:
        """Wait for the oldest evaluation not read and return the tokens it chose, if it does.

        −1 stands where a logit is no finite number. Valid until the next but one `run`.
        """
        ...

    def read(self, program: Program, tensor: Tensor, rows: int) -> NDArray[np.float32]:
        """Wait for the evaluation and return rows of an output; valid until the next `run`."""
        ...

    def close(self) -> None:
        """End the executor; a second call does nothing."""
        ...


class Device(Protocol):
    """Owner of memory of one kind."""

    name: str

    @property
    def traits(self) -> DeviceTraits:
        """What to plan with, now."""
        ...

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all open buffers."""
        ...

    @property
    def context_bytes(self) -> int:
        """Bytes that its driver holds for this process now, beside all buffers."""
        ...

    def memory(self) -> MemoryReading:
        """Read how much memory the device has; leaves nothing behind."""
        ...

    def hold(self) -> ExitStack:
        """Have the driver hold what it needs for this process, until the result is closed."""
        ...

    def allocate(self, size_bytes: int, lifetime: Lifetime) -> Buffer:
        """Ask the driver for bytes, zero-filled.

        Raises:
            OutOfMemory: if the driver refuses.
        """
        ...

    def upload(self, slot: StoredSlot, weights: Buffer, first_row: int, data: memoryview) -> None:
        """Store whole rows of a weight, given as the file has them, in the device's form.

        `first_row` is a multiple of the traits' interleave. Vectors and constants come whole.
        """
        ...

    def download(self, buffer: Buffer, offset: int, size_bytes: int) -> NDArray[np.uint8]:
        """Return a copy of bytes of a buffer: (size_bytes,).

        No evaluation that writes to them may be under way.
        """
        ...

    def put(self, buffer: Buffer, offset: int, data: NDArray[np.uint8]) -> None:
        """Write bytes into a buffer, as `download` returned them; evaluations find them there.

        No evaluation that uses them may be under way.
        """
        ...

    def backend(self) -> Backend:
        """Return a new executor on this device."""
        ...

    def close(self) -> None:
        """End the device; buffers and backends must be closed before."""
        ...
