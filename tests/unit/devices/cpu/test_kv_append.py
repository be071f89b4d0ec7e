"""Keys and values land in the slots of their positions, rounded as the state's type says."""

import numpy as np
import pytest

from corral.devices.cpu.compile import KernelSpec
from corral.devices.cpu.kernels.kv_append import FIELDS, kv_append
from corral.quant.types import DType
from unit.devices.cpu.kernel_call import HOST, TARGETS, call, count
from unit.devices.cpu.kv_cache import Cache

TYPES = pytest.mark.parametrize(
    "dtype", [DType.F32, DType.F16, DType.BF16, DType.Q8_0], ids=lambda t: t.name
)
TABLES = np.array([[3, 1, 0], [2, 5, 4]], np.int32)
POSITIONS = np.array([30, 31, 32, 33, 95, 0], np.int32)
SEQUENCES = np.array([0, 0, 0, 0, 1, 1], np.int32)


def keys_and_values(rows, heads, dim):
    """Return views of one array, as a fused projection gives them."""
    random = np.random.default_rng(dim)
    both = random.standard_normal((rows, 2 * heads * dim + 1)).astype(np.float32)
    both[0, :32] = 0
    return both[:, : heads * dim], both[:, heads * dim : -1]


def append(target, cache, k, v, *, threads=1):
    words = {
        "k": k,
        "v": v,
        "state": cache.state,
        "count": count(len(k)),
        "positions": POSITIONS,
        "sequences": SEQUENCES,
        "tables": TABLES,
        "k_stride": k.strides[0],
        "v_stride": v.strides[0],
        "tables_stride": TABLES.strides[0],
        "kv_heads": cache.kv_heads,
    }
    spec = KernelSpec.of(kv_append, head_dim=cache.dim, dtype=cache.dtype.name)
    call(target, spec, FIELDS, words, threads=threads)


@TARGETS
@TYPES
@pytest.mark.parametrize(("heads", "dim"), [(3, 64), (1, 96)])
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_land_in_their_slots(target, dtype, heads, dim, threads):
    """Blocks follow the tables; every other byte of the state stays as it was."""
    k, v = keys_and_values(len(POSITIONS), heads, dim)
    actual, expected = (Cache(dtype, 6, heads, dim) for _ in range(2))
    append(target, actual, k, v, threads=threads)
    for row, (position, sequence) in enumerate(zip(POSITIONS, SEQUENCES, strict=True)):
        values = (x[row].reshape(1, heads, dim) for x in (k, v))
        expected.write(TABLES[sequence, position // 32], position % 32, *values)
    assert np.array_equal(actual.state, expected.state)


def test_heads_may_be_a_multiple_of_16():
    """A head of 80 dimensions is kept as floats."""
    k, v = keys_and_values(1, 2, 80)
    actual, expected = (Cache(DType.F16, 6, 2, 80) for _ in range(2))
    append(HOST, actual, k, v)
    expected.write(TABLES[0, 0], 30, k.reshape(1, 2, 80), v.reshape(1, 2, 80))
    assert np.array_equal(actual.state, expected.state)
