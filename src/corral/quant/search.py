"""The searches by which ggml's K-quants find scales: every candidate is tried, the best one kept.

A part of a block (16 or 32 values) becomes small whole numbers and a scale, perhaps with a minimum.
Rounding over the range of the part is the first candidate; others widen or narrow that range a
little, and a fit by weighted least squares makes a scale of each candidate's codes. The scale with
the least weighted error stays.

Results are those of ggml's reference quantizers bit for bit. That is why sums run in the order of
the columns, why nothing is rearranged, and why `nearest` rounds in their way. Arrays are (columns,
parts): a part is a column of the array, so that each step treats all of them at once. Candidates
may divide by zero; whoever calls has NumPy's warnings off.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from corral.quant.blocks import Floats

Whole = npt.NDArray[np.int32]

LEAST_MAGNITUDE = np.float32(1e-15)
"""Parts whose values are all smaller count as zero."""
_SHIFT = np.float32(12_582_912)  # 1.5 × 2²³: what is added to it loses its fraction
_REFINEMENTS = 5
_TRIALS = tuple(n for n in range(-9, 10) if n)


@dataclass(frozen=True, slots=True)
class Fit:
    """What a search found for each part."""

    scale: Floats
    """(parts,)."""
    codes: Floats
    """(columns, parts): whole numbers."""
    minimum: Floats
    """(parts,): what is subtracted, never negative; zeros where the type has none."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The ranges that are tried: (most + first + step × n) / width for n of 0…steps."""

    most: int
    """The greatest code."""
    first: float
    step: float
    steps: int
    is_linear: bool = False
    """Whether an error counts as it is, instead of its square."""

    def numerators(self) -> list[np.float32]:
        """Return the numbers that the width of a part divides."""
        first, step, most = np.float32(self.first), np.float32(self.step), np.float32(self.most)
        return [first + step * np.float32(n) + most for n in range(self.steps + 1)]


def nearest(values: Floats) -> Whole:
    """Return the nearest whole numbers, halves to even; what is beyond 2²² gives nonsense.

    The nonsense, too, is the reference's: candidates meet it, and lose.
    """
    whole = (values + _SHIFT).view(np.int32)
    whole &= np.int32(0x7FFFFF)
    whole -= np.int32(0x400000)
    return whole


def fit_ranges(values: Floats, weights: Floats, candidates: Candidates) -> Fit:
    """Find scales and minima with which code × scale − minimum is near each value.

    Codes are 0…most; no minimum lets the range end above zero.
    """
    least = np.minimum(values.min(axis=0), np.float32(0))
    width = values.max(axis=0) - least
    is_flat = width == 0
    search = _RangeSearch(values, weights, candidates, least, width)
    for numerator in candidates.numerators():
        search.attempt(numerator)
    return Fit(
        np.where(is_flat, np.float32(0), search.scale),
        np.where(is_flat, np.float32(0), search.codes),
        -np.where(is_flat, least, search.least),
    )


class _RangeSearch:
    """The best fit so far, part by part."""

    def __init__(
        self,
        values: Floats,
        weights: Floats,
        candidates: Candidates,
        least: Floats,
        width: Floats,
    ) -> None:
        """Begin with plain rounding over the range from `least` on."""
        self._values, self._weights, self._most = values, weights, candidates.most
        self._is_linear = candidates.is_linear
        self._greatest = values.max(axis=0)
        self._sum_w = _sum(weights)
        self._sum_x = _sum(weights * values)
        self.least = least
        inverse = np.float32(candidates.most) / width
        self.scale = np.float32(1) / inverse
        self.codes = self._codes(inverse)
        self._error = self._errors(self.codes, self.scale, least)

    def attempt(self, numerator: np.float32) -> None:
        """Try the codes of another range, from the best minimum on, with the scale that fits."""
        codes = self._codes(numerator / (self._greatest - self.least))
        weighted = self._weights * codes
        sum_l = _sum(weighted)
        sum_l2 = _sum(weighted * codes)
        weighted *= self._values
        sum_xl = _sum(weighted)
        divisor = self._sum_w * sum_l2 - sum_l * sum_l
        scale: Floats = np.divide(self._sum_w * sum_xl - self._sum_x * sum_l, divisor)
        least: Floats = np.divide(sum_l2 * self._sum_x - sum_l * sum_xl, divisor)
        is_above = least > 0
        np.copyto(scale, sum_xl / sum_l2, where=is_above)
        np.copyto(least, np.float32(0), where=is_above)
        error = self._errors(codes, scale, least)
        is_better = (divisor > 0) & (error < self._error)
        for best, found in (
            (self.codes, codes),
            (self.scale, scale),
            (self.least, least),
            (self._error, error),
        ):
            np.copyto(best, found, where=is_better)

    def _codes(self, inverse: Floats) -> Floats:
        exact = self._values - self.least
        exact *= inverse
        whole = nearest(exact)
        return whole.clip(0, self._most, out=whole).astype(np.float32)

    def _errors(self, codes: Floats, scale: Floats, least: Floats) -> Floats:
        apart = codes * scale
        apart += least
        apart -= self._values
        if self._is_linear:
            np.abs(apart, out=apart)
        else:
            apart *= apart
        apart *= self._weights
        return _sum(apart)


def fit_scales(values: Floats, most: int) -> Fit:
    """Find scales with which (code − most) × scale is near each value; codes are 0…2 × most − 1.

    A value weighs as much as its square. The scale has the sign that gives the value of greatest
    magnitude the code 0, or one near it.
    """
    at = np.abs(values).argmax(axis=0)[None]
    widest = np.take_along_axis(values, at, axis=0)[0]
    weights = values * values
    codes = _signed_codes(values, np.float32(-most) / widest, most)
    sum_xl, sum_l2 = _moments(values, weights, codes)
    scale = np.where(sum_l2 != 0, sum_xl / sum_l2, np.float32(0))
    best = scale * sum_xl
    for trial in _TRIALS:
        inverse = -(np.float32(most) + np.float32(0.1) * np.float32(trial)) / widest
        tried = _signed_codes(values, inverse, most)
        sum_xl, sum_l2 = _moments(values, weights, tried)
        is_better = (sum_l2 > 0) & (sum_xl * sum_xl > best * sum_l2)
        np.copyto(codes, tried, where=is_better)
        np.copyto(scale, sum_xl / sum_l2, where=is_better)
        np.copyto(best, scale * sum_xl, where=is_better)
    is_zero = np.abs(widest) < LEAST_MAGNITUDE
    none = np.float32(0)
    shifted = np.where(is_zero, none, codes + np.float32(most))
    return Fit(np.where(is_zero, none, scale), shifted, np.zeros_like(scale))


def fit_refined(values: Floats, most: int) -> Fit:
    """Find scales with which (code − most) × scale is near each value; codes are 0…2 × most − 1.

    There is one candidate. Its codes are then changed one after the other where that fits better,
    five times over. A value weighs as much as its square.
    """
    at = np.abs(values).argmax(axis=0)[None]
    widest = np.take_along_axis(values, at, axis=0)[0]
    weights = values * values
    codes = _signed_codes(values, np.float32(-most) / widest, most)
    sum_xl, sum_l2 = _moments(values, weights, codes)
    for _ in range(_REFINEMENTS):
        for x, w, code in zip(values, weights, codes, strict=True):
            # What a code that fits the others better would do to the sums, part by part.
            rest_xl = sum_xl - w * x * code
            rest_l2 = sum_l2 - w * code * code
            new = _clipped(x * rest_l2 / rest_xl, most)
            new_xl, new_l2 = rest_xl + w * x * new, rest_l2 + w * new * new
            is_better = (rest_xl > 0) & (new != code) & (new_l2 > 0)
            is_better &= new_xl * new_xl * sum_l2 > sum_xl * sum_xl * new_l2
            for old, found in ((code, new), (sum_xl, new_xl), (sum_l2, new_l2)):
                np.copyto(old, found, where=is_better)
    none = np.float32(0)
    is_zero = np.abs(widest) < LEAST_MAGNITUDE
    scale = np.where(is_zero | ~(sum_l2 > 0), none, sum_xl / sum_l2)
    shifted = np.where(is_zero, none, codes + np.float32(most))
    return Fit(scale, shifted, np.zeros_like(scale))


def _signed_codes(values: Floats, inverse: Floats, most: int) -> Floats:
    return _clipped(values * inverse, most)


def _clipped(values: Floats, most: int) -> Floats:
    whole = nearest(values)
    return whole.clip(-most, most - 1, out=whole).astype(np.float32)


def _moments(values: Floats, weights: Floats, codes: Floats) -> tuple[Floats, Floats]:
    """Return Σ w·x·l and Σ w·l²."""
    cross = weights * values
    cross *= codes
    square = weights * codes
    square *= codes
    return _sum(cross), _sum(square)


def _sum(values: Floats) -> Floats:
    """Return the sums of columns one after the other: along its first axis NumPy adds in turn."""
    total: Floats = np.add.reduce(values, axis=0)
    return total
