"""Compiles a kernel once for each target and calls it, thread by thread, on NumPy arrays."""

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from corral.devices.cpu.compile import Code, KernelSpec, object_code
from corral.devices.cpu.features import Target, runnable

TARGETS = pytest.mark.parametrize("target", runnable(), ids=lambda t: t.path)
HOST = runnable()[0]

Word = int | np.ndarray | np.float32
_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


@functools.cache
def _compiled(spec: KernelSpec, target: Target) -> tuple[Code, Callable[[int, int, int], None]]:
    code = Code()
    code.add(object_code(spec.text(target, "kernel"), target))
    return code, _SIGNATURE(code.address("kernel"))


def _word(value: Word) -> int:
    if isinstance(value, np.ndarray):
        return value.ctypes.data
    return int(value.view(np.uint32)) if isinstance(value, np.float32) else value


def call(
    target: Target,
    spec: KernelSpec,
    fields: Sequence[str],
    words: Mapping[str, Word],
    *,
    threads: int = 1,
) -> None:
    """Run a kernel: arrays stand for their addresses, F32 numbers for their bits.

    The threads run one after the other, the last one first.
    """
    assert set(words) == set(fields), set(words) ^ set(fields)
    record = np.array([_word(words[name]) for name in fields], np.int64)
    _, function = _compiled(spec, target)
    for thread in reversed(range(threads)):
        function(record.ctypes.data, thread, threads)


def count(rows: int) -> np.ndarray:
    """Return memory that holds a row count."""
    return np.array([rows], np.int64)


def poisoned(*shape: int) -> np.ndarray:
    """Return F32 memory full of NaN, for results."""
    return np.full(shape, np.nan, np.float32)
