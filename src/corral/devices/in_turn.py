"""What executors have in common that evaluate before `run` returns, in the host's memory."""

from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from corral.devices.closing import Closing
from corral.devices.staging import HostRows
from corral.errors import InternalError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from corral.devices.base import Device, Program, Sent, Store
    from corral.tensor.tensor import Tensor


class InTurn(Closing):
    """Base of backends whose callers wait for each evaluation."""

    is_asynchronous = False
    _device: "Device"

    def storing(self, through: int) -> "AbstractContextManager[Store]":
        """Give what stores rows: the device does it itself."""
        return nullcontext(self._device.upload)

    def release(self, program: "Program") -> None:
        """Give back nothing: a program is no more than its records."""

    def send(self, program: "Program", tensor: "Tensor", rows: int) -> "Sent":
        """Return rows of an output of the last run, for others to receive.

        Raises:
            Closed: as `read`.
        """
        return HostRows(self.read(program, tensor, rows))

    def choices(self, program: "Program", rows: int) -> NDArray[np.int32]:
        """Refuse: who asks has the logits."""
        raise InternalError("this backend computes logits before it returns, and chooses no tokens")

    def read(self, program: "Program", tensor: "Tensor", rows: int) -> NDArray[np.float32]:
        """Return rows of an output; valid until the next run.

        Raises:
            Closed: after close().
        """
        raise NotImplementedError
