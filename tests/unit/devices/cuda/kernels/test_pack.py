"""Weights packed by the CUDA kernel: the bytes that `quant/packed.py` describes."""

import numpy as np
import pytest

from corral.devices.cuda.weight_rules import pack
from corral.devices.packing import pack_rows
from corral.quant.packed import LAYOUTS
from corral.quant.types import DType
from emulation import Memory, address, needs_emulator, run
from emulation.instances import prepare_common

pytestmark = needs_emulator


@pytest.fixture(scope="module", autouse=True)
def instances():
    """Compile what the tests below share, at once."""
    prepare_common("pack")


def random_rows(dtype, rows, columns, seed):
    """Return rows as a file has them: random bytes, but no NaN among F16 scales."""
    random = np.random.default_rng(seed)
    data = random.integers(0, 256, (rows, dtype.row_bytes(columns)), dtype=np.uint8)
    if dtype.is_quantized and dtype is not DType.MXFP4:
        blocks = data.reshape(-1, dtype.block_bytes)
        for at in {DType.Q2_K: (80, 82), DType.Q3_K: (108,), DType.Q6_K: (208,)}.get(dtype, (0, 2)):
            blocks[:, at + 1] &= 0xBF
    return data


@pytest.mark.parametrize("dtype", LAYOUTS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(("rows", "columns"), [(16, 256), (35, 768), (1, 512), (20, 576)])
def test_pack(dtype, rows, columns):
    """The bytes are those of the host's packing, padding included."""
    if columns % LAYOUTS[dtype].granularity:
        columns = 1024
    data = random_rows(dtype, rows, columns, rows)
    expected = pack_rows(data, dtype, rows, columns)
    memory = Memory()
    for skew in (0, 1) if dtype.is_quantized else (0,):
        whole = memory.empty(data.size + skew, np.uint8)
        source = whole[skew:]
        source[:] = data.reshape(-1)
        target = memory.empty(expected.size, np.uint8)
        run(pack(dtype, address(source), address(target), rows, columns))
        memory.check()
        assert np.array_equal(target, expected)
