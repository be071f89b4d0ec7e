"""Not to outlive one's parent: what a process can ask of the system so that it ends with it."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> bool:
    """Be killed when the parent's thread that started this process ends; false if it has already.

    Linux only; elsewhere the end of the connection is all there is to see. See prctl(2).
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    return os.getppid() == parent  # it may have died before the system was asked
