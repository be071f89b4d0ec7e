"""Weights on their way to a card: rows as the file has them go over, and are packed there.

pinned share ──copy──▶ its landing place ──pack──▶ weights        one lane a share, for one reader
"""

import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from corral.devices.closing import Closing
from corral.devices.cuda.context import DeviceContext, Owned
from corral.devices.cuda.driver import Driver
from corral.devices.cuda.driver_execution import Fields, Geometry, PreparedLaunch
from corral.devices.cuda.instance import Instance
from corral.devices.cuda.modules import Modules
from corral.devices.cuda.weight_rules import pack
from corral.memory.buffer import Buffer
from corral.memory.stored import StoredSlot
from corral.quant.packed import CPU_INTERLEAVE

_FIELDS = 4
"""Of the kernels that pack."""


class Uploading(Closing):
    """Streams through which weights are copied and packed, one for each landing place."""

    def __init__(
        self,
        context: DeviceContext,
        driver: Driver,
        load: Callable[[Iterable[Instance]], Modules],
    ) -> None:
        self._context = context
        self._driver = driver
        self._load = load
        self._lock = threading.Lock()
        self._streams: dict[int, Owned] = {}
        self._functions: dict[Instance, int] = {}
        self.is_closed = False

    @contextmanager
    def lane(self, through: int) -> Iterator["Lane"]:
        """Give what stores rows by way of a landing place; for the thread that asks.

        The context is that thread's current one meanwhile, which spares four calls of the driver
        for each piece.
        """
        self._require_open()
        with self._lock:
            stream = self._stream(through)
        with self._context.current(stream):
            yield Lane(self._driver, through, stream, self._function)

    def _stream(self, through: int) -> Owned:
        if through not in self._streams:
            driver = self._driver
            self._streams[through] = self._context.own(
                "stream", driver.create_stream, driver.destroy_stream
            )
        return self._streams[through]

    def _function(self, instance: Instance) -> int:
        with self._lock:
            self._require_open()
            if instance not in self._functions:
                self._functions[instance] = self._load([instance]).function(instance)
            return self._functions[instance]

    def _release(self) -> None:
        while self._streams:
            self._streams.popitem()[1].close()


class Lane:
    """One landing place with its stream, and the launches that were made for it."""

    def __init__(
        self, driver: Driver, through: int, stream: Owned, function: Callable[[Instance], int]
    ) -> None:
        self._driver = driver
        self._through = through
        self._stream = stream
        self._function = function
        self._words = (ctypes.c_uint64 * _FIELDS)()
        self._fields = Fields(ctypes.addressof(self._words), ctypes.sizeof(self._words))
        self._launches: dict[tuple[Instance, Geometry], PreparedLaunch] = {}

    def store(self, slot: StoredSlot, weights: Buffer, first_row: int, data: memoryview) -> None:
        """Copy rows from pinned memory, pack them, and wait for the end of it."""
        layout, columns = slot.form.layout, slot.tensor.columns
        assert layout is not None
        block_bytes = layout.row_block_bytes(columns, CPU_INTERLEAVE)
        to = weights.address + slot.offset + first_row // CPU_INTERLEAVE * block_bytes
        rows = len(data) // slot.tensor.dtype.row_bytes(columns)
        launch = pack(slot.form.dtype, self._through, to, rows, columns)
        kernel = launch.instance, launch.geometry
        stream, driver = self._stream.handle, self._driver
        if kernel not in self._launches:
            function = self._function(launch.instance)
            prepared = driver.prepare(function, launch.geometry, self._fields, stream)
            self._launches[kernel] = prepared
        self._words[:] = list(launch.words)  # the launch before was waited for
        source = np.frombuffer(data, np.uint8).ctypes.data
        driver.enqueue_to_device(self._through, source, len(data), stream)
        self._launches[kernel]()
        driver.synchronize_stream(stream)
