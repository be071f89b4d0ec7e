"""A run of bytes on a device, and who may end it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from corral.errors import Closed
from corral.memory.lifetime import Lifetime


@dataclass(slots=True, eq=False)
class Buffer:
    """Bytes asked of a device's driver; made by `Device.allocate` only.

    Closing gives them back, once; using the address afterwards raises `Closed`.
    """

    device: str
    lifetime: Lifetime
    size_bytes: int
    """Bytes the driver really gave, granularity included."""
    _address: int
    _free: Callable[["Buffer"], None] = field(repr=False)
    is_closed: bool = False

    @property
    def address(self) -> int:
        """Address of the first byte, in the device's address space.

        Raises:
            Closed: after close().
        """
        self.require_open()
        return self._address

    def require_open(self) -> None:
        """Refuse to go on with bytes that were given back.

        Raises:
            Closed: after close().
        """
        if self.is_closed:
            raise Closed(f"{self.lifetime.value} buffer on {self.device} was closed")

    def close(self) -> None:
        """Give the bytes back; a second call does nothing."""
        if not self.is_closed:
            self._free(self)
            self.is_closed = True
