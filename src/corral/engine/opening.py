"""Devices that open beside other work: a driver takes its time, and a file can be read meanwhile.

name ─▶ device ─▶ what its driver needs for this process      a thread each
          │         held until the model holds it itself
          └ closed with the model
"""

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

from corral.devices import registry
from corral.devices.base import Device
from corral.engine.targets import Targets


class Opening:
    """Opens the devices of targets in threads of their own; owns them until it is closed."""

    def __init__(self, targets: Targets, *, threads: int | None) -> None:
        """Begin to open them; what goes wrong is raised by `devices`."""
        pool = ThreadPoolExecutor(len(targets.names), "corral-open")
        self._opened = [pool.submit(registry.open, name, threads=threads) for name in targets.names]
        # Cards that get no layers shall not be woken.
        wanted = self._opened if targets.gpu_layers != 0 else []
        self._held = [pool.submit(_hold, one) for one in wanted]
        pool.shutdown(wait=False)

    def devices(self) -> list[Device]:
        """Wait for the devices and return them, in order.

        Raises:
            DeviceUnavailable: if one of them is not here.
        """
        return [one.result() for one in self._opened]

    def let_go(self) -> None:
        """Hold the devices' drivers no more; waits until all are open. A second call is fine."""
        while self._held:
            held = self._held.pop()
            if held.exception() is None:
                held.result().close()

    def close(self) -> None:
        """Close what was opened; a second call does nothing."""
        self.let_go()
        for one in reversed(self._opened):
            if one.exception() is None:
                one.result().close()


def _hold(opened: "Future[Device]") -> ExitStack:
    """Wake a device; if that fails, so will its first use, which tells why."""
    return opened.result().hold()
