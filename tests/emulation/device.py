"""A device that is CUDA in all but the card: host memory, kernels run by the emulator.

Weights are packed by the CUDA kernels, graphs lowered by the CUDA rules, every launch run in order.
What needs compiling for one graph is compiled at once, file by file.
"""

import ctypes
from collections import deque
from contextlib import nullcontext

import numpy as np

from corral.devices.base import NOTHING_SENT, MemoryReading
from corral.devices.contextless import Contextless
from corral.devices.cuda.lowering import lower_plan
from corral.devices.cuda.prefill_launch import Chip
from corral.devices.cuda.traits import cuda_traits
from corral.devices.cuda.weight_rules import pack
from corral.devices.host import HostMemory, array_at
from corral.devices.reference.storage import tensor_array
from corral.devices.staging import HostRows, Staging
from corral.quant.dequantize import dequantize
from corral.tensor.ops import Op
from emulation import prepare_missing, run

PLAIN = Chip(multiprocessors=4, has_wgmma=False, shared_bytes=0)
"""A card without shared memory for tuned products, which take g++ long to compile."""
TUNED = Chip(multiprocessors=4, has_wgmma=False)
HOPPER = Chip(multiprocessors=1, has_wgmma=True)
"""One that computes with warpgroups; so small that it has no clusters."""


class EmulatedDevice(Contextless):
    """Owner of host memory that plays the card's."""

    name = "emulated"

    def __init__(self, traits=None, chip=PLAIN, *, bucket=None, chooses=False):
        """Play a card; one that `chooses` gives tokens as well as logits, fed to the next step.

        Programs are lowered for `bucket` rows, if these are fewer than a plan's.
        """
        self.traits = traits or cuda_traits(0)
        self.chip, self.bucket, self.chooses = chip, bucket, chooses
        self._memory = HostMemory(self.name)

    @property
    def allocated_bytes(self):
        return self._memory.allocated_bytes

    def memory(self):
        return MemoryReading(1 << 34, 1 << 34, "emulated")

    def allocate(self, size_bytes, lifetime):
        return self._memory.allocate(size_bytes, lifetime)

    def upload(self, slot, weights, first_row, data):
        tensor, layout = slot.tensor, slot.form.layout
        to = weights.address + slot.offset
        if layout is None:
            constant = tensor.op is Op.CONSTANT
            values = (
                np.frombuffer(data, np.float64)
                if constant
                else dequantize(data, tensor.dtype, (tensor.columns,))
            )
            array_at(to, values.shape, values.dtype)[:] = values
            return
        to += first_row // 16 * layout.row_block_bytes(tensor.columns, 16)
        rows = len(data) // tensor.dtype.row_bytes(tensor.columns)
        source = np.frombuffer(data, np.uint8)
        run(pack(tensor.dtype, source.ctypes.data, to, rows, tensor.columns))

    def put(self, buffer, offset, data):
        array_at(buffer.address + offset, data.shape, np.uint8)[:] = data

    def backend(self):
        return EmulatedBackend(self)

    def close(self):
        assert self.allocated_bytes == 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class EmulatedProgram:
    """The launches of one plan."""

    def __init__(self, plan, buffers, chip, bucket):
        self.plan, self.buffers = plan, buffers
        self.staging = Staging(plan, buffers)
        self.launches = lower_plan(plan, buffers, bucket or plan.graph.shape_class.rows, chip)
        prepare_missing(launch.instance for launch in self.launches)


class EmulatedBackend:
    """Runs launches one after the other."""

    def __init__(self, device):
        self._device = device
        self._chosen = deque()
        self.is_asynchronous = device.chooses

    def lower(self, plan, buffers, *, progress=None):
        return EmulatedProgram(plan, buffers, self._device.chip, self._device.bucket)

    def release(self, program):
        pass

    def storing(self, through):
        return nullcontext(self._device.upload)

    def run(self, program, inputs, outputs, *, received=NOTHING_SENT, chooses=False, sends=False):
        assert self._device.chooses or not chooses
        plan, buffers = program.plan, program.buffers
        for tensor in plan.graph.leaves(Op.RECEIVED):
            rows = received[tensor.name].on_host()
            tensor_array(plan, buffers, tensor)[: len(rows)] = rows
        program.staging.write(inputs, outputs)
        to, size = buffers.inputs_address(plan), plan.staging.inputs_bytes
        ctypes.memmove(to, buffers.staging.address, size)
        for launch in program.launches:
            run(launch)
        if chooses:
            tokens = array_at(buffers.choices_address(plan), (outputs,), np.int32)
            self._chosen.append(tokens.copy())

    def choices(self, program, rows):
        return self._chosen.popleft()

    def read(self, program, tensor, rows):
        return tensor_array(program.plan, program.buffers, tensor)[:rows]

    def send(self, program, tensor, rows):
        return HostRows(self.read(program, tensor, rows))

    def close(self):
        pass
