"""A graph planned, allocated, uploaded and run on any device, with its scratch poisoned.

Whatever reads a byte that no node of this evaluation wrote gives NaN, and the test fails.
"""

from contextlib import ExitStack, closing

import numpy as np

from corral.devices.base import ModelBuffers
from corral.devices.host import array_at
from corral.devices.staging import HostRows
from corral.memory.lifetime import Lifetime
from corral.memory.plan import plan_model
from corral.memory.records import RecordPool
from corral.quant.dequantize import dequantize
from corral.quant.quantize import quantize
from corral.tensor.ops import Op
from corral.tensor.verify import verify


def random_weights(graph, seed=0):
    """Return bytes as a file has them for each weight of the graph, small enough not to explode."""
    generator = np.random.default_rng(seed)
    return {
        weight.name: encoded(
            generator.normal(size=weight.shape) / np.sqrt(weight.columns), weight.dtype
        )
        for weight in graph.leaves(Op.WEIGHT)
    }


def encoded(values, dtype):
    """Return values as the bytes of a file."""
    return quantize(np.asarray(values, np.float32), dtype).tobytes()


def decoded(graph, weights):
    """Return the float64 values that the bytes of the weights stand for."""
    return {
        tensor.name: dequantize(weights[tensor.name], tensor.dtype, tensor.shape).astype(np.float64)
        for tensor in graph.leaves(Op.WEIGHT)
    }


class Evaluation:
    """One graph on one device, perhaps others on the same state; `with` gives everything back."""

    def __init__(self, device, graph, weights=None, tables=None, *, also=()):
        self.device, self.graph = device, verify(graph)
        graphs = [graph, *map(verify, also)]
        self.model = plan_model(graphs, device.traits, loading_bytes=0)
        self.plan = self.model.plans[0]
        self._stack = ExitStack()
        footprint = self.model.footprint()
        buffers = {
            life: self._stack.enter_context(closing(device.allocate(size, life)))
            for life, size in footprint.items()
            if life is not Lifetime.CONTEXT
        }
        self.buffers = ModelBuffers(
            weights=buffers[Lifetime.WEIGHTS],
            state=buffers[Lifetime.STATE],
            scratch=buffers[Lifetime.SCRATCH],
            staging=buffers[Lifetime.STAGING],
            records=RecordPool(
                buffers[Lifetime.RECORDS],
                record_bytes=device.traits.record_bytes,
                capacity=sum(plan.num_records for plan in self.model.plans),
            ),
            weights_layout=self.model.weights,
            state_layout=self.model.state,
            tables=tables,
        )
        self._upload(weights if weights is not None else random_weights(graph))
        self.backend = self._stack.enter_context(closing(device.backend()))
        self.programs = [self.backend.lower(plan, self.buffers) for plan in self.model.plans]
        self.program = self.programs[0]

    def _upload(self, weights):
        for slot in self.model.weights.slots.values():
            tensor = slot.tensor
            constant = tensor.op is Op.CONSTANT
            data = np.array(tensor.attributes.values) if constant else weights[tensor.name]
            self.device.upload(slot, self.buffers.weights, 0, memoryview(data).cast("B"))

    def run(self, *, outputs=0, program=0, **inputs):
        """Evaluate one batch and return a copy of each output of the graph."""
        self.poison()
        ran = self.programs[program]
        graph = ran.plan.graph
        arrays = {
            name: value if isinstance(value, np.ndarray) else np.asarray(value, np.int32)
            for name, value in inputs.items()
        }
        names = {tensor.name for tensor in graph.leaves(Op.RECEIVED)}
        received = {name: HostRows(arrays.pop(name)) for name in names}
        self.backend.run(ran, arrays, outputs, received=received)
        rows = len(arrays["tokens" if "tokens" in arrays else "positions"])
        counts = {"ROWS": rows, "OUTPUTS": outputs}
        return [
            self.backend.read(ran, output, counts[output.extent.name]).copy()
            for output in graph.outputs
        ]

    def poison(self):
        """Fill the scratch arena with NaN."""
        if self.device.name != "null":
            scratch = self.buffers.scratch
            nans = np.full(scratch.size_bytes // 4, np.nan, np.float32)
            _write(self.device, scratch.address, nans)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()


def _write(device, address, values):
    """Write to memory of a device, from the host."""
    if hasattr(device, "driver"):
        with device.context.current():
            device.driver.copy_to_device(address, values.ctypes.data, values.nbytes)
    else:
        array_at(address, values.shape, values.dtype)[:] = values
