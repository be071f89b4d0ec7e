"""A plan ready to run on a card: for each bucket of rows its launches, and perhaps one graph.

rows of a batch ──▶ bucket ──▶ Pass ─┬─▶ launches, one call of the driver each
                                     └─▶ graphs: all of them in one call, one a flight (small
                                         buckets); inputs and chosen tokens cross inside
"""

import ctypes
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from corral.devices.base import ModelBuffers
from corral.devices.cuda.context import DeviceContext, Owned
from corral.devices.cuda.driver import Driver
from corral.devices.cuda.driver_execution import Fields, PreparedLaunch
from corral.devices.cuda.instance import Instance
from corral.devices.cuda.launch import Launch
from corral.devices.cuda.modules import Modules
from corral.devices.staging import Staging
from corral.memory.plan import Plan
from corral.tensor.tensor import Tensor

_WORD_BYTES = 8


@dataclass(slots=True, eq=False)
class Pass:
    """The launches of one bucket, in order."""

    bucket: int
    launches: tuple[PreparedLaunch, ...]
    graphs: tuple[Owned, ...] = ()
    """For each flight an executable of all of them, where they were captured."""


@dataclass(frozen=True, slots=True, eq=False)
class CudaProgram:
    """A plan lowered for one stream; read-only while evaluating."""

    plan: Plan
    buffers: ModelBuffers
    stagings: tuple[Staging, ...]
    """One a flight; flights take turns."""
    passes: tuple[Pass, ...]
    """By bucket, ascending."""
    received: tuple[Tensor, ...] = ()
    """What it reads of other backends' outputs."""

    def pass_for(self, rows: int) -> Pass:
        """Return the pass of the smallest bucket that holds so many rows."""
        return self.passes[bisect_left(self.passes, rows, key=lambda each: each.bucket)]


def prepare(
    launches: Sequence[Launch], buffers: ModelBuffers, modules: Modules, driver: Driver, stream: int
) -> tuple[PreparedLaunch, ...]:
    """Write the fields of launches to records, from which the driver reads them at each launch.

    Raises:
        CapacityExceeded: if the record pool is smaller than the plan said.
    """
    at, size = buffers.records.take(len(launches)), buffers.records.record_bytes
    functions: dict[tuple[Instance, int], int] = {}
    prepared = []
    for launch in launches:
        words, kernel = launch.words, (launch.instance, launch.shared_bytes)
        (ctypes.c_uint64 * len(words)).from_address(at)[:] = list(words)
        if kernel not in functions:
            functions[kernel] = modules.function(*kernel)
        fields = Fields(at, len(words) * _WORD_BYTES)
        prepared.append(driver.prepare(functions[kernel], launch.geometry, fields, stream))
        at += size
    return tuple(prepared)


def capture(
    launches: Sequence[PreparedLaunch],
    context: DeviceContext,
    driver: Driver,
    stream: int,
) -> Owned:
    """Return an executable graph of launches."""

    def make() -> int:
        driver.begin_capture(stream)
        try:
            for launch in launches:
                launch()
        finally:
            graph = driver.end_capture(stream)
        try:
            return driver.instantiate(graph)
        finally:
            driver.destroy_graph(graph)

    return context.own("graph", make, driver.destroy_executable)
