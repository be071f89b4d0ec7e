"""The wanted rows are copied, and nothing else is written."""

import numpy as np
import pytest

from corral.devices.cpu.compile import KernelSpec
from corral.devices.cpu.kernels.select_rows import FIELDS, select_rows
from unit.devices.cpu.kernel_call import TARGETS, call, count, poisoned


@TARGETS
@pytest.mark.parametrize("columns", [576, 7])
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_copied(target, columns, threads):
    """Any order, repeats, any number of threads."""
    x = np.random.default_rng(0).standard_normal((17, columns)).astype(np.float32)
    wanted = [16, 0, 3, 3]
    out = poisoned(len(wanted) + 1, columns + 2)
    words = {
        "x": x,
        "rows": np.array(wanted, np.int32),
        "count": count(len(wanted)),
        "out": out,
        "x_stride": x.strides[0],
        "out_stride": out.strides[0],
        "columns": columns,
    }
    call(target, KernelSpec.of(select_rows), FIELDS, words, threads=threads)
    assert np.array_equal(out[:-1, :columns], x[wanted])
    assert np.isnan(out[-1]).all() and np.isnan(out[:, columns:]).all()
