"""Functions of the embedded language are accurate and the same for every number of lanes."""

import numpy as np
import pytest

from corral.devices.cpu.simd.functions import exp_non_positive, tanh
from unit.devices.cpu.kernel_call import TARGETS
from unit.devices.cpu.test_simd import mapped


def by_lanes(target, function, x):
    """Return the results, after checking that lanes do not matter."""
    one, four, sixteen = (
        mapped(target, function, x, lanes, np.empty_like(x)) for lanes in (0, 4, 16)
    )
    assert np.array_equal(one, four, equal_nan=True)
    assert np.array_equal(one, sixteen, equal_nan=True)
    return one


@TARGETS
def test_weights_of_attention_are_accurate(target):
    """e^x for x ≤ 0: exactly 1 at 0, tiny but a number far below, NaN for NaN."""
    x = -np.geomspace(1e-9, 87.3, 4096).astype(np.float32)
    x[:5] = [0, -1e30, -np.inf, np.nan, -0.0]
    got = by_lanes(target, exp_non_positive, x)
    assert got[0] == 1 and got[4] == 1 and np.isnan(got[3]) and (got[1:3] < 2e-38).all()
    exact = np.exp(x[5:].astype(np.float64))
    error = np.abs(got[5:] / exact - 1)
    slope = 1e-8 if target.fused else 6e-8
    assert (error <= 1.5e-7 + slope * np.abs(x[5:])).all()


@TARGETS
@pytest.mark.parametrize("sign", [1, -1])
def test_tanh_is_accurate(target, sign):
    """Within 4 units of the last place, from the smallest numbers to infinity."""
    x = sign * np.geomspace(1e-30, 100, 4096).astype(np.float32)
    x[:3] = [0, sign * np.inf, np.nan]
    got = by_lanes(target, tanh, x)
    assert got[0] == 0 and got[1] == sign and np.isnan(got[2])
    exact = np.tanh(x[3:].astype(np.float64))
    assert (np.abs(got[3:] - exact) <= 4 * np.spacing(np.abs(exact).astype(np.float32))).all()
