"""Which layers each of several devices gets, by addition: quick enough to try many ways.

Weights and state are exact. Scratch and records of each part are taken to be those of the whole
model: a little more than they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from corral.router.entry import Footprint, LayerBytes

_HALVINGS = 10
"""Of the range in which the fullness of the fullest device is looked for."""
_LEAST_PART = 1e-4
"""Of its space that a device has at least, so that there is a share to speak of."""

Cost = Callable[[int, int, int], int]
"""Bytes that layers `first` … `end` - 1 take on a device; more layers take no less."""


@dataclass(frozen=True, slots=True)
class Part:
    """A run of layers on a device, and what it holds for them."""

    first: int
    end: int
    weights_bytes: int
    own_bytes: int
    """All that lies on the device but its driver's context."""


class LayerSums:
    """Bytes of runs of layers, each by one subtraction."""

    def __init__(self, layers: LayerBytes) -> None:
        self.count = len(layers.weights)
        self._weights = (0, *accumulate(layers.weights))
        self._state = (0, *accumulate(layers.state))
        self._shared = [
            (size, (0, *accumulate(int(n in needed) for n in range(self.count))))
            for size, needed in layers.shared
        ]

    def weights(self, first: int, end: int) -> int:
        """Return the bytes of the weights of layers first … end - 1."""
        shared = sum(size for size, before in self._shared if before[end] > before[first])
        return self._weights[end] - self._weights[first] + shared

    def state(self, first: int, end: int) -> int:
        """Return the bytes of their keys and values."""
        return self._state[end] - self._state[first]


class Splitter:
    """Splits one model over devices, of each of which it is told the model's footprint."""

    def __init__(self, footprints: Sequence[Footprint]) -> None:
        self._footprints = tuple(footprints)
        kinds = {id(footprint): footprint for footprint in self._footprints}
        sums = {key: LayerSums(footprint.layers) for key, footprint in kinds.items()}
        self._sums = [sums[id(footprint)] for footprint in self._footprints]
        self._fixed = [_fixed_bytes(footprint) for footprint in footprints]

    def by_shares(self, shares: Sequence[float]) -> tuple[Part, ...] | None:
        """Return parts whose weights are to each other as the shares are, nearly.

        None if there are more devices than layers.
        """
        whole = self._weights(0, 0, self._sums[0].count)
        spaces = [whole * share / sum(shares) for share in shares]
        return self._parts(self._least_full(self._weights, spaces))

    def by_space(self, spaces: Sequence[int]) -> tuple[Part, ...] | None:
        """Return parts that leave the fullest device as empty as can be; None if it has no space.

        A space is what the model may take of a device beyond its driver's context.
        """
        left = [float(space - fixed) for space, fixed in zip(spaces, self._fixed, strict=True)]
        if min(left) <= 0 or self._filled(self._moving, left) is None:
            return None
        return self._parts(self._least_full(self._moving, left))

    def _weights(self, device: int, first: int, end: int) -> int:
        return self._sums[device].weights(first, end)

    def _moving(self, device: int, first: int, end: int) -> int:
        """Return what a device holds because of certain layers."""
        sums, unit = self._sums[device], self._footprints[device].granularity
        return _rounded(sums.weights(first, end), unit) + _rounded(sums.state(first, end), unit)

    def _parts(self, ends: Sequence[int] | None) -> tuple[Part, ...] | None:
        if ends is None:
            return None
        firsts = (0, *ends[:-1])
        return tuple(
            Part(
                first,
                end,
                self._weights(device, first, end),
                self._fixed[device] + self._moving(device, first, end),
            )
            for device, (first, end) in enumerate(zip(firsts, ends, strict=True))
        )

    def _least_full(self, cost: Cost, spaces: Sequence[float]) -> tuple[int, ...] | None:
        """Return where each run ends if the greatest of cost / space is least, nearly."""
        low, high = 0.0, 1.0
        found = self._filled(cost, spaces)
        while found is None:
            low, high = high, high * 2
            if high > 1 / _LEAST_PART:
                return None
            found = self._filled(cost, [space * high for space in spaces])
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            tried = self._filled(cost, [space * middle for space in spaces])
            if tried is None:
                low = middle
            else:
                high, found = middle, tried
        return found

    def _filled(self, cost: Cost, spaces: Sequence[float]) -> tuple[int, ...] | None:
        """Fill one device after the other; None if layers are left, or a device has none."""
        ends: list[int] = []
        first, count = 0, self._sums[0].count
        for device, space in enumerate(spaces):
            later = len(spaces) - 1 - device  # each of which needs a layer too
            end = _last_end(cost, device, range(first, count - later + 1), space)
            if end == first:  # the one before took what this one could have had
                return self._filled_anyhow(cost, spaces) if len(spaces) <= count else None
            ends.append(end)
            first = end
        return tuple(ends) if first == count else None

    def _filled_anyhow(self, cost: Cost, spaces: Sequence[float]) -> tuple[int, ...] | None:
        """Find runs that fit where filling one device after the other leaves one without."""
        count = self._sums[0].count
        ways: list[dict[int, int]] = []
        firsts: list[int] = [0]
        for device, space in enumerate(spaces):
            found: dict[int, int] = {}  # where a run of this device may end, and began then
            for first in firsts:
                last = _last_end(cost, device, range(first, count + 1), space)
                for end in range(first + 1, last + 1):
                    found.setdefault(end, first)
            ways.append(found)
            firsts = sorted(found)
        ends: list[int] = []
        end = count
        for found in reversed(ways):
            if end not in found:
                return None
            ends.insert(0, end)
            end = found[end]
        return tuple(ends)


def _last_end(cost: Cost, device: int, ends: range, space: float) -> int:
    """Return the end of the longest run that begins with the first of `ends` and fits."""
    if not ends:
        return ends.start
    low, high = ends.start, ends.stop - 1
    while low < high:
        middle = (low + high + 1) // 2
        if cost(device, ends.start, middle) <= space:
            low = middle
        else:
            high = middle - 1
    return low


def _fixed_bytes(footprint: Footprint) -> int:
    return sum(size for life, size in footprint.own.items() if life not in ("weights", "state"))


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit
