"""Whether something grows with work done: samples, thinned so that they never grow, and a slope.

Knows neither what is sampled nor what the work is.
"""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

FEWEST = 5
"""Samples below which no slope is told."""
_EARLY = 10
"""One in so many samples, the earliest, is left out: what is first used there is no growth."""


@dataclass(frozen=True, slots=True)
class Slope:
    """A straight line's slope, and how far to each side its 95 % confidence interval reaches."""

    value: float
    half_width: float
    num_samples: int

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.value - self.half_width

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.value + self.half_width

    def is_growth(self, allowed: float = 0.0) -> bool:
        """Return whether the interval lies above 0, and the slope above what is allowed."""
        return self.low > 0 and self.value > allowed


class Samples:
    """Values at amounts of work, in memory made beforehand: sampling itself holds nothing.

    When it is full, every second sample goes, and from then on only half as many are due.
    """

    def __init__(self, columns: int, *, capacity: int = 256, spacing: int = 1) -> None:
        """Make room for so many values a sample; `spacing` is the work between two samples."""
        self._work = array("q", bytes(8 * capacity))
        self._columns = [array("q", bytes(8 * capacity)) for _ in range(columns)]
        self.spacing = spacing
        self.count = 0

    def is_due(self, work: int) -> bool:
        """Return whether enough was done since the last sample."""
        return self.count == 0 or work - self._work[self.count - 1] >= self.spacing

    def add(self, work: int, *values: int) -> None:
        """Keep what was found after some work, due or not."""
        if self.count == len(self._work):
            self._thin()
        self._work[self.count] = work
        for column, value in zip(self._columns, values, strict=True):
            column[self.count] = value
        self.count += 1

    def kept(self) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """Return the work of each sample that was kept, and its values column by column."""
        part = slice(self.count)
        return tuple(self._work[part]), tuple(tuple(column[part]) for column in self._columns)

    def _thin(self) -> None:
        kept = (self.count + 1) // 2
        for column in (self._work, *self._columns):
            for place in range(kept):
                column[place] = column[2 * place]
        self.count = kept
        self.spacing *= 2

    def slope(self, column: int = 0, *, skip: int | None = None) -> Slope | None:
        """Return the slope of a column without the first `skip` samples, by default a tenth.

        None if too few are left, or all were taken after the same work.
        """
        first = self.count // _EARLY if skip is None else skip
        part = slice(first, self.count)
        return fit(self._work[part], self._columns[column][part])


def fit(work: Sequence[int], values: Sequence[int]) -> Slope | None:
    """Fit a line by least squares; None for fewer than `FEWEST` samples or work that stands still.

    Memory moves in steps and stays there, so that one sample tells much of what the next one will
    say. The interval counts only as many samples as are independent, by the correlation of
    neighbouring residuals: n (1 - r) / (1 + r), after Santer et al., J. Geophys. Res. 105 (2000).
    Not fewer than `FEWEST`, though, or values that grow faster and faster would pass for noise; a
    single step still does.
    """
    n = len(work)
    if n < FEWEST:
        return None
    mean_work, mean = sum(work) / n, sum(values) / n
    spread = [w - mean_work for w in work]
    total = _dot(spread, spread)
    if total == 0:
        return None
    slope = _dot(spread, [v - mean for v in values]) / total
    residuals = [v - mean - slope * s for v, s in zip(values, spread, strict=True)]
    squares = _dot(residuals, residuals)
    if squares == 0:
        return Slope(slope, 0.0, n)
    alike = max(0.0, _dot(residuals[1:], residuals[:-1]) / squares)
    independent = max(float(FEWEST), n * (1 - alike) / (1 + alike))
    error = math.sqrt(squares / (independent - 2) / total)
    return Slope(slope, _student(independent - 2) * error, n)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(left, right, strict=True))


def _student(freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t, to 1 % from 3 degrees of freedom on.

    Source: the expansion of Abramowitz and Stegun, 26.7.5, at the normal quantile 1.96.
    """
    z, f = 1.959964, freedom
    return (
        z
        + (z**3 + z) / (4 * f)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * f**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * f**3)
    )
