"""Calling a kernel from Python, with the interpreter's lock released while it runs."""

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@functools.cache
def _function(address: int) -> Any:
    return _SIGNATURE(address)


def call(address: int, record: Sequence[int], *, thread: int = 0, threads: int = 1) -> None:
    """Call the kernel at an address with a record of 64-bit words."""
    words = (ctypes.c_int64 * len(record))(*record)
    _function(address)(words, thread, threads)
