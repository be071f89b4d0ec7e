"""Slopes: what grows is found, what only moves is not, and sampling holds what it held at first."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.memory.growth import FEWEST, Samples, Slope, fit

WORK = range(0, 800, 8)
NOISE = np.random.RandomState(3).normal(0, 4000, len(WORK)).astype(int)


def values(per_unit):
    """Return a line with noise on it."""
    return [int(1e9 + per_unit * work) + int(n) for work, n in zip(WORK, NOISE, strict=True)]


class TestFit:
    """The slope and its interval."""

    @given(st.integers(-(2**40), 2**40), st.integers(-1000, 1000))
    def test_a_line_is_found_exactly(self, start, per_unit):
        """Without noise the interval is a point."""
        slope = fit(WORK, [start + per_unit * work for work in WORK])
        assert slope.value == pytest.approx(per_unit, abs=1e-6)
        assert slope.half_width == pytest.approx(0, abs=1e-6)

    def test_noise_is_no_growth(self):
        """Values that scatter around a level have an interval with 0 in it."""
        slope = fit(WORK, values(0))
        assert slope.low < 0 < slope.high
        assert not slope.is_growth()

    def test_growth_is_found_in_noise(self):
        """What grows by 64 bytes a unit is found, though the noise is 4,000 bytes."""
        slope = fit(WORK, values(64))
        assert slope.low < 64 < slope.high
        assert slope.is_growth()
        assert slope.is_growth(allowed=32)
        assert not slope.is_growth(allowed=100)

    def test_shrinking_is_no_growth(self):
        """Memory given back is no leak."""
        assert not fit(WORK, values(-64)).is_growth()

    def test_a_single_step_is_no_growth(self):
        """What is taken once, however much, is not taken for each unit."""
        assert not fit(WORK, [10**6 * (work >= 400) for work in WORK]).is_growth()

    def test_growth_that_gets_faster_is_growth(self):
        """The residuals of a bend depend on each other as those of a step do."""
        assert fit(WORK, [work**2 for work in WORK]).is_growth()

    def test_the_interval_holds_the_truth(self):
        """Of a thousand intervals at 95 %, about fifty lie beside the slope that was put in."""
        generator = np.random.RandomState(0)
        work = list(range(20))
        lines = (
            [int(50 * w + n) for w, n in zip(work, generator.normal(0, 1000, 20), strict=True)]
            for _ in range(1000)
        )
        slopes = [fit(work, line) for line in lines]
        assert 900 <= sum(slope.low <= 50 <= slope.high for slope in slopes) <= 990

    def test_too_little_says_nothing(self):
        """Neither a few samples nor work that stands still have a slope."""
        assert fit(range(FEWEST - 1), range(FEWEST - 1)) is None
        assert fit([7] * 10, range(10)) is None
        assert fit(range(FEWEST), range(FEWEST)) == Slope(1.0, 0.0, FEWEST)


class TestSamples:
    """Keeping a bounded number of them."""

    def test_they_are_thinned_evenly(self):
        """After many times the capacity, the first and the whole range are still there."""
        samples = Samples(2, capacity=16, spacing=4)
        for work in range(10_000):
            if samples.is_due(work):
                samples.add(work, 3 * work, 7)
        assert 8 <= samples.count <= 16
        assert samples.spacing == 1024
        assert samples.slope(0, skip=0) == Slope(3.0, 0.0, samples.count)
        assert samples.slope(1).value == 0

    def test_the_earliest_are_left_out(self):
        """What is first used at the beginning is no growth; how much is left out can be said."""
        samples = Samples(1)
        for work in range(40):
            samples.add(work, 0 if work < 4 else 10**9)
        assert samples.slope() == Slope(0.0, 0.0, 36)
        assert samples.slope(skip=0).value > 0

    def test_nothing_is_said_of_nothing(self):
        """No samples have no slope, and the first is due at once."""
        samples = Samples(1, spacing=100)
        assert samples.slope() is None
        assert samples.is_due(0)

    def test_the_interval_is_finite_at_the_least(self):
        """As few samples as may be still have an interval."""
        samples = Samples(1)
        for work, value in enumerate([0, 9, 2, 8, 1]):
            samples.add(work, value)
        assert 0 < samples.slope(skip=0).half_width < math.inf


def test_samples_that_were_kept_are_told():
    """Each with its work, column by column, thinned ones left out."""
    samples = Samples(2, capacity=4)
    for work in range(5):
        samples.add(work, 10 * work, -work)
    assert samples.kept() == ((0, 2, 4), ((0, 20, 40), (0, -2, -4)))
