"""Whether anything grows: memory against work done, and objects that are alive."""

import gc
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

KINDS = ("RssAnon", "RssShmem", "VmSwap")


def held_bytes():
    """Return the bytes this process holds and could not get back from a file."""
    held = 0
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in KINDS:
            held += int(value.split()[0]) * 1024
    return held


def live_objects():
    """Return how many objects of corral's own types are alive, by type."""
    gc.collect()
    kinds = Counter(map(type, gc.get_objects()))
    return {kind: n for kind, n in kinds.items() if str(kind.__module__).startswith("corral.")}


@dataclass(frozen=True)
class Slope:
    """A straight line's slope, and how far to each side its 95 % confidence interval reaches."""

    value: float
    half_width: float

    def is_nothing(self, allowed):
        """Return whether 0 lies in the interval, or the slope is not above `allowed`."""
        return self.value <= max(self.half_width, allowed)


class Samples:
    """Memory at amounts of work, in arrays made beforehand: sampling itself holds nothing."""

    def __init__(self, capacity):
        self._work = np.zeros(capacity)
        self._held = np.zeros(capacity)
        self.count = 0

    def add(self, work):
        """Sample now."""
        self._work[self.count] = work
        self._held[self.count] = held_bytes()
        self.count += 1

    def slope(self, skip):
        """Fit bytes against work by least squares, without the first `skip` samples."""
        x, y = self._work[skip : self.count], self._held[skip : self.count]
        spread = x - x.mean()
        slope = float((spread * y).sum() / (spread**2).sum())
        residuals = y - y.mean() - slope * spread
        error = math.sqrt((residuals**2).sum() / (len(x) - 2) / (spread**2).sum())
        return Slope(slope, 2 * error)
