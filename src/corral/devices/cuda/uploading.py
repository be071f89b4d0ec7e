"""Weights on their way to a card: rows as the file has them go over, and are packed there.

pinned share ──copy──▶ its landing place ──pack──▶ weights        one stream a share
"""

import ctypes
import threading
from collections.abc import Callable, Iterable

import numpy as np

from corral.devices.closing import Closing
from corral.devices.cuda.context import DeviceContext, Owned
from corral.devices.cuda.driver import Driver
from corral.devices.cuda.driver_execution import Fields
from corral.devices.cuda.instance import Instance
from corral.devices.cuda.modules import Modules
from corral.devices.cuda.weight_rules import pack
from corral.memory.buffer import Buffer
from corral.memory.stored import StoredSlot
from corral.quant.packed import CPU_INTERLEAVE


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
        self.is_closed = False

    def store(
        self, slot: StoredSlot, weights: Buffer, first_row: int, data: memoryview, through: int
    ) -> None:
        """Copy rows from pinned memory, pack them, and wait for the end of it."""
        self._require_open()
        layout, columns = slot.form.layout, slot.tensor.columns
        assert layout is not None
        block_bytes = layout.row_block_bytes(columns, CPU_INTERLEAVE)
        to = weights.address + slot.offset + first_row // CPU_INTERLEAVE * block_bytes
        rows = len(data) // slot.tensor.dtype.row_bytes(columns)
        launch = pack(slot.form.dtype, through, to, rows, columns)
        with self._lock:
            function = self._load([launch.instance]).function(launch.instance)
            stream = self._stream(through)
        words = (ctypes.c_uint64 * len(launch.words))(*launch.words)
        fields = Fields(ctypes.addressof(words), ctypes.sizeof(words))
        source = np.frombuffer(data, np.uint8).ctypes.data
        driver = self._driver
        with self._context.current(stream):
            driver.enqueue_to_device(through, source, len(data), stream.handle)
            driver.prepare(function, launch.geometry, fields, stream.handle)()
            driver.synchronize_stream(stream.handle)

    def _stream(self, through: int) -> Owned:
        if through not in self._streams:
            driver = self._driver
            self._streams[through] = self._context.own(
                "stream", driver.create_stream, driver.destroy_stream
            )
        return self._streams[through]

    def _release(self) -> None:
        while self._streams:
            self._streams.popitem()[1].close()
