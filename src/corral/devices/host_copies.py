"""What devices have in common whose buffers are the host's memory: bytes in and out are copies."""

import numpy as np
from numpy.typing import NDArray

from corral.devices.closing import Closing
from corral.devices.host import array_at
from corral.memory.buffer import Buffer


class HostCopies(Closing):
    """Base of devices that compute in the host's memory."""

    def download(self, buffer: Buffer, offset: int, size_bytes: int) -> NDArray[np.uint8]:
        """Return a copy of bytes of a buffer: (size_bytes,).

        Raises:
            Closed: after close() of the device or the buffer.
        """
        self._require_open()
        return array_at(buffer.address + offset, (size_bytes,), np.uint8).copy()

    def put(self, buffer: Buffer, offset: int, data: NDArray[np.uint8]) -> None:
        """Write bytes into a buffer.

        Raises:
            Closed: as `download`.
        """
        self._require_open()
        array_at(buffer.address + offset, data.shape, np.uint8)[:] = data
