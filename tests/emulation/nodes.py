"""One node of a graph by its CUDA rule in the emulator, and by the reference's NumPy.

Every tensor lies in a buffer of its own between guard zones, and the result is poisoned before.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from corral.devices.cuda.launch import Binding
from corral.devices.cuda.narrow import narrow
from corral.devices.cuda.prefill_launch import Chip
from corral.devices.cuda.rules import RULES
from corral.devices.packing import pack_rows
from corral.devices.reference.ops import KERNELS
from corral.quant.dequantize import dequantize
from corral.quant.quantize import quantize
from corral.quant.types import DType
from corral.tensor.ops import Columns, Op
from corral.tensor.tensor import Extent, Tensor
from emulation import Memory, address, run

CHIP = Chip(multiprocessors=4, has_wgmma=False)
_ELEMENTS = {
    DType.F32: np.float32,
    DType.F16: np.float16,
    DType.BF16: np.uint16,
    DType.F64: np.float64,
    DType.I32: np.int32,
}


def leaf(name, shape, *, op=Op.INPUT, dtype=DType.F32, extent=Extent.ROWS, attributes=None):
    """Return a tensor without sources."""
    return Tensor(name, op, dtype, shape, (), attributes, extent)


def rows_of(name, rows, columns, dtype=DType.F32):
    """Return activations."""
    return leaf(name, (rows, columns), dtype=dtype)


def weight(name, shape, dtype=DType.F32):
    """Return a weight."""
    return leaf(name, shape, op=Op.WEIGHT, dtype=dtype, extent=Extent.FIXED)


def view(x, first, columns):
    """Return some columns of rows."""
    return Tensor("view", Op.VIEW, x.dtype, (x.shape[0], columns), (x,), Columns(first), x.extent)


def file_bytes(values, dtype):
    """Return a matrix as a file has it; BF16 included."""
    if dtype is DType.BF16:
        return (
            (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        )
    if dtype is DType.F16:
        return np.asarray(values, np.float16).view(np.uint8)
    return np.frombuffer(quantize(np.asarray(values, np.float32), dtype).tobytes(), np.uint8)


def stored_shape(tensor):
    """Return how the reference sees a tensor: element type and shape."""
    if tensor.dtype in _ELEMENTS:
        return _ELEMENTS[tensor.dtype], tensor.shape
    return np.uint8, (*tensor.shape[:-1], tensor.dtype.row_bytes(tensor.columns))


@dataclass
class Place:
    """Stands in for a `Binding`: every tensor has memory of its own."""

    values: dict
    num_rows: int
    outputs: int = 0
    segments_bytes: int = 0
    memory: Memory = field(default_factory=Memory)
    arrays: dict = field(default_factory=dict)

    def __post_init__(self):
        self.counts = self.memory.of(np.array([self.num_rows, self.outputs], np.int64))
        self.plan = SimpleNamespace(segments_bytes=self.segments_bytes)
        self._zeros = self.memory.of(np.zeros(264, np.int32))
        self._segments = self.memory.empty(max(self.segments_bytes, 1), np.uint8)

    @property
    def choices(self):
        return 0

    @property
    def counters(self):
        return address(self._zeros)

    @property
    def segments(self):
        return address(self._segments)

    def rows(self, tensor):
        """Return the rows that launches are made for: all that were planned."""
        return tensor.shape[0]

    def array(self, tensor):
        """Return the memory of a tensor that owns its bytes."""
        if tensor not in self.arrays:
            self.arrays[tensor] = self._made(tensor)
        return self.arrays[tensor]

    def _made(self, tensor):
        if tensor not in self.values:
            kind, shape = stored_shape(tensor)
            return self.memory.empty(shape, kind)
        given = self.values[tensor]
        if tensor.op is Op.WEIGHT and len(tensor.shape) == 2:
            return self.memory.of(pack_rows(given, tensor.dtype, *tensor.shape))
        return self.memory.of(given)

    def address(self, tensor):
        if tensor is None:
            return 0
        if tensor.op is Op.VIEW:
            first = tensor.dtype.row_bytes(tensor.attributes.first)
            return self.address(tensor.sources[0]) + first
        return address(self.array(tensor.base))

    def count(self, tensor):
        return address(self.counts) + (8 if tensor.extent is Extent.OUTPUTS else 0)

    is_aligned = Binding.is_aligned


def compute(node, values, *, rows, outputs=0, segments_bytes=0, rules=RULES):
    """Return the node's memory after its launches; `values` has an array for each leaf."""
    place = Place(values, rows, outputs, segments_bytes)
    launches = rules[node.op](place, node)
    for launch in launches:
        run(launch)
    place.memory.check()
    return place.array(node.base)


def compute_step(step, values, *, rows, segments_bytes=0):
    """Return the place of a step after its launches, and the launches."""
    place = Place(values, rows, 0, segments_bytes)
    launches = narrow(place, step, CHIP)
    for launch in launches:
        run(launch)
    place.memory.check()
    return place, launches


def instances_of_step(step, segments_bytes=0):
    """Return the instances that a step's launches ask for."""
    return [launch.instance for launch in narrow(Place({}, 0, 0, segments_bytes), step, CHIP)]


def expected_step(step, values, *, rows):
    """Return what the reference gives for each node of a step, one after the other."""
    results = {}
    for node in step.all_nodes:
        results[node] = expected(node, values | results, rows=rows)
    return results


def instances_of(node, segments_bytes=0, rules=RULES):
    """Return the instances that a node's rule asks for."""
    return [launch.instance for launch in rules[node.op](Place({}, 0, 0, segments_bytes), node)]


def expected(node, values, *, rows, outputs=0):
    """Return what the reference gives for the rows of the batch."""
    kind, shape = stored_shape(node)
    sources = [_for_reference(source, values) for source in node.sources]
    limits = {Extent.ROWS: rows, Extent.OUTPUTS: outputs, Extent.FIXED: None}
    sources = [a[: limits[t.extent]] for a, t in zip(sources, node.sources, strict=True)]
    if node.op is Op.KV_APPEND:
        state = sources[2].copy()
        KERNELS[node.op](node, state, *sources[:2], state, *sources[3:])
        return state
    if node.op is Op.KV_SHIFT:
        state = sources[0].copy()
        KERNELS[node.op](node, state, state, *sources[1:])
        return state
    count = limits[node.extent]
    result = np.empty((count, *shape[1:]), kind)
    KERNELS[node.op](node, result, *sources)
    return result


def _for_reference(tensor, values):
    if tensor.op is Op.VIEW:
        first = tensor.attributes.first
        return _for_reference(tensor.sources[0], values)[:, first : first + tensor.columns]
    if tensor.op is Op.KV_APPEND:
        return values[tensor.base]
    if tensor.op is Op.WEIGHT and len(tensor.shape) == 2:
        return dequantize(values[tensor], tensor.dtype, tensor.shape)
    return values[tensor]
