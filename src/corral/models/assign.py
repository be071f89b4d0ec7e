"""Assignment: which run of layers goes to which device, so that none is fuller than it must be.

Pure: layers are numbers, and what a run of them takes on a device is a function that is passed in.
"""

from collections.abc import Callable, Sequence

from corral.errors import InvalidArgument

Cost = Callable[[int, int], float]
"""Bytes that layers first … end - 1 take on one device; more layers take no less."""


def assign(num_layers: int, costs: Sequence[Cost], shares: Sequence[float]) -> tuple[range, ...]:
    """Return a run of at least one layer for each device, in order, all layers together.

    The greatest of cost / share is as small as it can be; of equal ways the one that gives fewer
    layers to later devices.

    Raises:
        InvalidArgument: if there are more devices than layers, or a share is not positive.
    """
    if not 1 <= len(costs) <= num_layers:
        raise InvalidArgument(
            f"the model has {num_layers} layers, which cannot be split over {len(costs)} devices"
        )
    if not all(0 < share < float("inf") for share in shares) or len(shares) != len(costs):
        raise InvalidArgument(
            f"the split is {','.join(f'{share:g}' for share in shares)}; expected a number above 0 "
            f"for each of {len(costs)} devices"
        )
    fullest = [0.0] + [float("inf")] * num_layers  # of the first `end` layers on the devices so far
    ways: list[list[int]] = []
    for number, (cost, share) in enumerate(zip(costs, shares, strict=True)):
        last = number == len(costs) - 1
        ends = (num_layers,) if last else range(number + 1, num_layers - len(costs) + number + 2)
        found, firsts = [float("inf")] * (num_layers + 1), [0] * (num_layers + 1)
        for end in ends:
            for first in range(end - 1, number - 1, -1):
                load = cost(first, end) / share
                if load >= found[end]:
                    break  # and so would every longer run be
                if max(load, fullest[first]) < found[end]:
                    found[end], firsts[end] = max(load, fullest[first]), first
        fullest = found
        ways.append(firsts)
    return _runs(ways, num_layers)


def _runs(ways: Sequence[Sequence[int]], num_layers: int) -> tuple[range, ...]:
    """Follow the way of the last device back to the first."""
    runs: list[range] = []
    end = num_layers
    for firsts in reversed(ways):
        runs.insert(0, range(firsts[end], end))
        end = firsts[end]
    return tuple(runs)
