"""How a call of the CUDA driver is made through cuda.bindings, and its status never overlooked."""

import os
from collections.abc import Callable
from typing import Any

from corral.devices.cuda.driver_errors import EXTRA, failure
from corral.errors import DeviceUnavailable


class LibraryCalls:
    """Makes checked calls in the process that made it; what calls there are, others know."""

    def __init__(self) -> None:
        """Find the bindings and the driver's library.

        Raises:
            DeviceUnavailable: if either is missing.
        """
        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise DeviceUnavailable(f"the CUDA bindings are not installed: {EXTRA}") from error
        self._api: Any = driver
        self._success = driver.CUresult.CUDA_SUCCESS
        self._pid = os.getpid()

    def _call(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Make a call and return what it returns beside its status."""
        if os.getpid() != self._pid:
            raise DeviceUnavailable(
                "this process was forked from one that uses CUDA, which CUDA does not survive: "
                "start processes with the 'spawn' method"
            )
        status, *values = function(*arguments)
        if status != self._success:
            raise failure(function.__name__, int(status), status.name)
        return values[0] if len(values) == 1 else tuple(values)
