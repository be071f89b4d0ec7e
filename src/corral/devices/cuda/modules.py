"""Kernels on a device: cubins become modules of its context and end with it, or when closed."""

from collections.abc import Mapping
from dataclasses import dataclass

from corral.devices.closing import Closing
from corral.devices.cuda.compile import Cubin
from corral.devices.cuda.context import DeviceContext, Owned
from corral.devices.cuda.driver import Driver
from corral.devices.cuda.instance import Instance

_ALLOWED_SHARED_BYTES = 48 << 10
"""Shared memory of a block, static and dynamic, that every kernel may have unasked."""


@dataclass(eq=False, slots=True)
class _Loaded:
    module: Owned
    function: int
    allowed_bytes: int
    """Of dynamic shared memory."""


class Modules(Closing):
    """The kernels of one backend on its device, each loaded once."""

    def __init__(self, context: DeviceContext, driver: Driver) -> None:
        self._context = context
        self._driver = driver
        self._loaded: dict[Instance, _Loaded] = {}
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._loaded)

    def load(self, cubins: Mapping[Instance, Cubin]) -> None:
        """Bring kernels to the device that are not there yet.

        Raises:
            Closed: after close().
            StaleContext: if other code ended the context that kernels were loaded into.
            CorralError: if the driver refuses a cubin; those loaded before it stay.
        """
        self.require_alive()
        for instance, cubin in cubins.items():
            if instance not in self._loaded:
                self._loaded[instance] = self._load(cubin)

    def _load(self, cubin: Cubin) -> _Loaded:
        driver = self._driver
        module = self._context.own(
            "module", lambda: driver.load_module(cubin.code), driver.unload_module
        )
        try:
            with self._context.current(module):
                function = driver.function(module.handle, cubin.symbol)
                driver.prefer_shared(function)
        except BaseException:
            module.close()
            raise
        return _Loaded(module, function, _ALLOWED_SHARED_BYTES - cubin.usage.shared_bytes)

    def function(self, instance: Instance, shared_bytes: int = 0) -> int:
        """Return what the driver calls a loaded kernel, allowed so much dynamic shared memory.

        Raises:
            Closed, StaleContext: as `load`.
            CorralError: if no block of the device can have so much.
        """
        self._require_open()
        loaded = self._loaded[instance]
        loaded.module.require_alive()
        if shared_bytes > loaded.allowed_bytes:
            with self._context.current(loaded.module):
                self._driver.allow_shared(loaded.function, shared_bytes)
            loaded.allowed_bytes = shared_bytes
        return loaded.function

    def require_alive(self) -> None:
        """Refuse to go on with kernels that are gone; raises as `load` does."""
        self._require_open()
        for loaded in self._loaded.values():  # all are of the same context
            loaded.module.require_alive()
            break

    def _release(self) -> None:
        while self._loaded:
            self._loaded.popitem()[1].module.close()
