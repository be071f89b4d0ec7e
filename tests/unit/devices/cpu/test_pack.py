"""The native packing kernels write the bytes that the NumPy description says."""

import numpy as np
import pytest

from corral.devices.cpu.compile import Compiler, KernelSpec
from corral.devices.cpu.features import runnable
from corral.devices.cpu.kernels.pack import pack, pack_record
from corral.devices.cpu.native import call
from corral.devices.packing import pack_rows
from corral.quant.packed import LAYOUTS


@pytest.fixture(scope="module")
def compilers():
    made = {target.path: Compiler(target) for target in runnable()}
    yield made
    for compiler in made.values():
        compiler.close()


def packed(compiler, dtype, data, rows, columns, threads):
    spec = KernelSpec.of(pack, dtype=dtype.name)
    # What only fills the last row block is not written: it starts as the description has it.
    untouched = pack_rows(np.zeros_like(data), dtype, rows, columns)
    out = np.append(untouched, np.full(64, 0xA5, np.uint8))
    source = np.ascontiguousarray(data)
    record = pack_record(source.ctypes.data, out.ctypes.data, rows=rows, columns=columns)
    for thread in range(threads):
        call(compiler.request([spec])[spec], record, thread=thread, threads=threads)
    assert (out[-64:] == 0xA5).all()
    return out[:-64]


@pytest.mark.parametrize("path", [target.path for target in runnable()])
@pytest.mark.parametrize("dtype", LAYOUTS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(("rows", "blocks", "threads"), [(1, 1, 1), (16, 2, 1), (35, 3, 2)])
def test_native_packing_is_the_described_one(compilers, path, dtype, rows, blocks, threads):
    """Every data type, also where the last row block is not full, on every path."""
    columns = blocks * max(dtype.block_elements, 32)
    random = np.random.default_rng(rows)
    data = random.integers(0, 256, (rows, dtype.row_bytes(columns)), dtype=np.uint8)
    expected = pack_rows(data, dtype, rows, columns)
    actual = packed(compilers[path], dtype, data, rows, columns, threads)
    assert np.array_equal(actual, expected)
