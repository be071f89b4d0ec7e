"""A run of bytes on a device, and who may end it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from corral.errors import Closed
from corral.interrupts import deferred
from corral.memory.lifetime import Lifetime


def _always() -> None:
    """Memory that only its owner can end is alive until then."""


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
    _require_alive: Callable[[], None] = field(default=_always, repr=False)
    """Raises where a driver may have ended the bytes behind the buffer's back."""
    is_closed: bool = False

    @property
    def address(self) -> int:
        """Address of the first byte, in the device's address space.

        Raises:
            Closed: after close().
            StaleContext: if the device's context ended.
        """
        self.require_open()
        return self._address

    def require_open(self) -> None:
        """Refuse to go on with bytes that were given back.

        Raises:
            Closed: after close().
            StaleContext: if the device's context ended.
        """
        if self.is_closed:
            raise Closed(f"{self.lifetime.value} buffer on {self.device} was closed")
        self._require_alive()

    def close(self) -> None:
        """Give the bytes back; a second call does nothing."""
        with deferred:
            if not self.is_closed:
                self.is_closed = True  # first: a second thread that closes finds it done
                self._free(self)
