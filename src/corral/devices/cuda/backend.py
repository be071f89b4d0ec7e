"""Runs programs on a card: a stream, the kernels that programs need, graphs of whole evaluations.

    run:      inputs ──▶ pinned staging ──▶ the arena's copy ──▶ launches ──▶ outputs ──▶ staging
                                        └─ one graph, small buckets: up to the chosen tokens ─┘
    read:     waits for the event behind the outputs
    choices:  the same, where only the likeliest tokens were wanted; a second evaluation, whose
              tokens are these, may be under way meanwhile

Everything here lives in the device's context, which is kept from the first launch on.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from corral.devices.base import NOTHING_SENT, ModelBuffers, Program, Progress, Sent, Store
from corral.devices.closing import Closing
from corral.devices.cuda.compile import architecture
from corral.devices.cuda.context import Owned
from corral.devices.cuda.driver import DeviceFacts, Driver
from corral.devices.cuda.driver_execution import Place
from corral.devices.cuda.input_rules import INSTANCES, give_tokens, take_inputs
from corral.devices.cuda.instance import Instance
from corral.devices.cuda.launch import Binding, Launch
from corral.devices.cuda.lowering import lower_all
from corral.devices.cuda.modules import Modules
from corral.devices.cuda.prefill_launch import Chip
from corral.devices.cuda.program import CudaProgram, Pass, capture, prepare
from corral.devices.cuda.traits import DECODE_BUCKETS
from corral.devices.cuda.transfer import CudaRows
from corral.devices.cuda.uploading import Uploading
from corral.devices.cuda.weight_rules import pack
from corral.devices.host import array_at
from corral.devices.staging import Counts, Staging, arrived
from corral.errors import InternalError
from corral.interrupts import deferred
from corral.memory.buffer import Buffer
from corral.memory.plan import Plan
from corral.memory.stored import StoredSlot
from corral.tensor.ops import Op
from corral.tensor.tensor import Tensor

if TYPE_CHECKING:
    from corral.devices.cuda.device import CudaDevice


class CudaBackend(Closing):
    """A stream on a CUDA device."""

    is_asynchronous = True

    def __init__(self, device: "CudaDevice") -> None:
        """Begin the device's context, if it is not there.

        Raises:
            OutOfMemory: if the driver has no room for it.
            StaleContext: if other code ended the device's context.
        """
        self._device = device
        self._driver = device.driver
        self._context = device.context
        self._closing = ExitStack()
        with deferred, ExitStack() as stack:
            stack.enter_context(device.hold())
            self._context.keep()
            self._stream = self._own(stack, "stream")
            self._events = [self._own(stack, "event") for _ in range(device.traits.flights)]
            self._taken = self._own(stack, "event")
            self._modules = Modules(self._context, self._driver)
            stack.callback(self._modules.close)
            self._uploading = Uploading(self._context, self._driver, self._load)
            stack.callback(self._uploading.close)
            self._closing = stack.pop_all()
        self._under_way: deque[int] = deque()
        """Flights that were started and not read, by number."""
        self._next_flight = 0
        self._readers: list[int] = []
        """Events before which others may still read this backend's scratch."""
        self.is_closed = False

    def _own(self, stack: ExitStack, kind: str) -> Owned:
        driver = self._driver
        make, destroy = {
            "stream": (driver.create_stream, driver.destroy_stream),
            "event": (driver.create_event, driver.destroy_event),
        }[kind]
        owned = self._context.own(kind, make, destroy)
        stack.callback(owned.close)
        return owned

    def lower(
        self, plan: Plan, buffers: ModelBuffers, *, progress: Progress | None = None
    ) -> CudaProgram:
        """Compile what is missing, write the plan's records, capture graphs of small buckets.

        Raises:
            CompileError: if a kernel does not compile.
            CapacityExceeded: if the record pool is smaller than the plan said.
            Closed: after close().
            StaleContext: if other code ended the device's context.
        """
        self._require_open()
        chip = chip_of(self._context.facts, self._driver)
        lowered = lower_all(plan, buffers, plan.buckets, chip)
        self._load(_instances(lowered.values(), buffers), progress)
        flights = range(plan.traits.flights)
        stagings = tuple(Staging(plan, buffers, flight) for flight in flights)
        with self._context.current(self._stream):
            passes = tuple(
                Pass(
                    bucket,
                    prepare(launches, buffers, self._modules, self._driver, self._stream.handle),
                )
                for bucket, launches in lowered.items()
            )
        program = CudaProgram(
            plan, buffers, stagings, passes, tuple(plan.graph.leaves(Op.RECEIVED))
        )
        self._capture(program)
        return program

    def release(self, program: Program) -> None:
        """End the graphs that were captured of a program."""
        assert isinstance(program, CudaProgram)
        for each in program.passes:
            for graph in each.graphs:
                graph.close()

    def _load(self, instances: Iterable[Instance], progress: Progress | None = None) -> Modules:
        """Return the modules with these kernels among them."""
        arch = architecture(self._context.facts.capability)
        self._modules.load(self._device.compiler.request(instances, arch, progress))
        return self._modules

    def _capture(self, program: CudaProgram) -> None:
        """Capture the passes in which every sequence goes on by one token, if there are any."""
        sequences = program.plan.graph.shape_class.sequences
        if not sequences:
            return
        last = program.pass_for(min(sequences, program.passes[-1].bucket)).bucket
        for each in program.passes:
            if each.bucket <= last and each.bucket in (*DECODE_BUCKETS, last):
                flights = range(len(program.stagings))
                each.graphs = tuple(self._captured(program, each, flight) for flight in flights)

    def _captured(self, program: CudaProgram, each: Pass, flight: int) -> Owned:
        """Return a graph of a pass with the inputs of a flight, from staging to staging."""
        driver, stream, buffers = self._driver, self._stream.handle, program.buffers
        at = Binding(program.plan, buffers, bucket=each.bucket)
        ends = (take_inputs(at, flight), *give_tokens(at, flight))
        with self._context.current(self._stream):
            first, *last = prepare(ends, buffers, self._modules, driver, stream)
        with deferred:
            graph = capture((first, *each.launches, *last), self._context, driver, stream)
            self._closing.callback(graph.close)
        with self._context.current(graph):
            driver.upload_executable(graph.handle, stream)
        return graph

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
        """Put one evaluation into the stream; two may be under way if both choose tokens.

        Raises:
            CapacityExceeded: if an input is larger than the plan.
            Closed: after close(), or after a buffer of the model was closed.
            StaleContext: if other code ended the device's context.
            DeviceFault: if the device failed; this process cannot use it any more.
        """
        self._require_open()
        assert isinstance(program, CudaProgram)
        program.buffers.require_open()
        if len(self._under_way) == len(self._events):
            raise InternalError("as many evaluations are under way as there may be: read one first")
        flight, driver, stream = self._next_flight, self._driver, self._stream.handle
        staging = program.stagings[flight]
        counts = staging.write(inputs, outputs)
        each = program.pass_for(counts.rows)
        with self._context.current(self._stream) as context:
            self._await_readers()
            for tensor in program.received:
                self._receive(program, tensor, received, context)
            if each.graphs:
                driver.launch_executable(each.graphs[flight].handle, stream)
            else:
                self._launch(program, each, staging)
            if not sends and not (chooses and each.graphs):
                self._copy_results(program, flight, counts, chooses=chooses)
            driver.record_event(self._events[flight].handle, stream)
        self._under_way.append(flight)
        self._next_flight = (flight + 1) % len(self._events)

    def _launch(self, program: CudaProgram, each: Pass, staging: Staging) -> None:
        """Put a copy of the inputs and the launches of a pass into the stream."""
        plan, stream = program.plan, self._stream.handle
        to, size = program.buffers.inputs_address(plan), plan.staging.inputs_bytes
        self._driver.enqueue_to_device(to, staging.address, size, stream)
        for launch in each.launches:
            launch()

    def _copy_results(
        self, program: CudaProgram, flight: int, counts: Counts, *, chooses: bool
    ) -> None:
        """Put copies to staging into the stream: of the chosen tokens, or of the outputs."""
        plan, buffers = program.plan, program.buffers
        staging, stream = buffers.staging.address, self._stream.handle
        if chooses:
            to = staging + plan.staging.choices(flight)
            size = 4 * counts.outputs
            self._driver.enqueue_to_host(to, buffers.choices_address(plan), size, stream)
            return
        for tensor in plan.graph.outputs:
            size = counts.of(tensor) * tensor.row_bytes
            if size:
                to = staging + plan.staging.offsets[tensor.name]
                source = buffers.address(plan, tensor)
                self._driver.enqueue_to_host(to, source, size, stream)

    def read(self, program: Program, tensor: Tensor, rows: int) -> NDArray[np.float32]:
        """Wait for the evaluation and return rows of an output, in staging; valid until `run`.

        Raises:
            Closed: after close(), or after a buffer of the model was closed.
            DeviceFault: if the device failed; this process cannot use it any more.
        """
        assert isinstance(program, CudaProgram)
        self._wait(program)
        plan, buffers = program.plan, program.buffers
        address = buffers.staging.address + plan.staging.offsets[tensor.name]
        return array_at(address, (rows, tensor.columns), np.float32)

    def choices(self, program: Program, rows: int) -> NDArray[np.int32]:
        """Wait for the oldest evaluation that was not read and return the tokens it chose.

        Raises:
            Closed, DeviceFault: as `read`.
        """
        assert isinstance(program, CudaProgram)
        flight = self._wait(program)
        address = program.buffers.staging.address + program.plan.staging.choices(flight)
        return array_at(address, (rows,), np.int32)

    def send(self, program: Program, tensor: Tensor, rows: int) -> CudaRows:
        """Return rows of an output of the oldest flight that was not read, for others to receive.

        Raises:
            Closed: after close(), or after a buffer of the model was closed.
            StaleContext: if other code ended the device's context.
        """
        assert isinstance(program, CudaProgram)
        self._require_open()
        program.buffers.require_open()
        plan, flight = program.plan, self._oldest()
        address, size = program.buffers.address(plan, tensor), rows * tensor.row_bytes
        ready = self._events[flight].handle
        with self._context.current(self._stream) as context:
            at = Place(context, address)

        def fetch() -> NDArray[np.float32]:
            to = program.buffers.staging.address + plan.staging.offsets[tensor.name]
            with self._context.current(self._stream):
                self._driver.enqueue_to_host(to, address, size, self._stream.handle)
                self._driver.record_event(ready, self._stream.handle)
            self._driver.synchronize_event(ready)
            return array_at(to, (rows, tensor.columns), np.float32)

        return CudaRows(at, size, ready, self._readers.append, fetch)

    def _await_readers(self) -> None:
        """Put into the stream that it waits for those who read what the last run computed."""
        for event in self._readers:
            self._driver.wait_event(event, self._stream.handle)
        self._readers.clear()

    def _receive(
        self, program: CudaProgram, tensor: Tensor, received: Mapping[str, Sent], context: int
    ) -> None:
        """Put a copy of what another backend sent into the stream."""
        plan, driver, stream = program.plan, self._driver, self._stream.handle
        to = program.buffers.address(plan, tensor)
        sent = received.get(tensor.name)
        if isinstance(sent, CudaRows):
            driver.wait_event(sent.ready, stream)
            if sent.at.context == context:
                driver.enqueue_copy(to, sent.at.address, sent.size_bytes, stream)
            else:
                driver.enqueue_copy_between(Place(context, to), sent.at, sent.size_bytes, stream)
            driver.record_event(self._taken.handle, stream)
            sent.hold(self._taken.handle)
            return
        rows = arrived((tensor.name,), received)[tensor.name]
        through = program.buffers.staging.address + plan.staging.offsets[tensor.name]
        array_at(through, tensor.shape, np.float32)[: len(rows)] = rows
        driver.enqueue_to_device(to, through, rows.nbytes, stream)

    def _oldest(self) -> int:
        """Return the number of the oldest flight, which is then read; a read one may be again."""
        if not self._under_way:
            return (self._next_flight - 1) % len(self._events)
        return self._under_way.popleft()

    def _wait(self, program: CudaProgram) -> int:
        """Wait for the oldest flight and return its number."""
        self._require_open()
        program.buffers.require_open()
        flight = self._oldest()
        self._driver.synchronize_event(self._events[flight].handle)
        return flight

    @contextmanager
    def storing(self, through: int) -> Iterator[Store]:
        """Give what stores whole rows of weights, packed on the device; for one thread.

        Rows lie in pinned memory, `through` is the address of as much device memory.

        Raises:
            Closed: after close() of the backend or the buffer.
            StaleContext: if other code ended the device's context.
        """
        self._require_open()
        with self._uploading.lane(through) as lane:

            def store(slot: StoredSlot, weights: Buffer, first_row: int, data: memoryview) -> None:
                if slot.form.layout is None:
                    self._device.upload(slot, weights, first_row, data)
                else:
                    lane.store(slot, weights, first_row, data)

            yield store

    def _release(self) -> None:
        self._closing.close()


def chip_of(facts: DeviceFacts, driver: Driver) -> Chip:
    """Return what the choice of kernels depends on."""
    limits, has_wgmma = driver.limits(facts.ordinal), facts.capability == (9, 0)
    return Chip(limits.multiprocessors, has_wgmma, limits.shared_bytes_per_block)


def _instances(lowered: Iterable[tuple[Launch, ...]], buffers: ModelBuffers) -> list[Instance]:
    """Name every kernel a model needs, once: those it runs, and those that pack its weights."""
    named = {launch.instance: None for launches in lowered for launch in launches}
    named |= dict.fromkeys(INSTANCES)
    for slot in buffers.weights_layout.slots.values():
        if slot.form.layout is not None:
            named[pack(slot.form.dtype, 0, 0, 1, slot.tensor.columns).instance] = None
    return list(named)
