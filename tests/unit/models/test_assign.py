"""Runs of layers: the fullest device is as empty as it can be."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidArgument
from corral.models.assign import assign

SIZES = st.lists(st.integers(0, 100), min_size=1, max_size=9)


def cost_of(sizes):
    return lambda first, end: sum(sizes[first:end])


def every_way(num_layers, num_devices):
    for inner in combinations(range(1, num_layers), num_devices - 1):
        yield [range(*pair) for pair in pairwise((0, *inner, num_layers))]


def fullness(runs, costs, shares):
    triples = zip(runs, costs, shares, strict=True)
    return max(cost(run.start, run.stop) / share for run, cost, share in triples)


@given(SIZES, st.data())
def test_no_other_way_is_better(sizes, data):
    """Compared with every way there is, for devices that differ in share and in cost."""
    count = data.draw(st.integers(1, min(4, len(sizes))))
    shares = data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    scales = data.draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    costs = [cost_of([scale * size for size in sizes]) for scale in scales]
    runs = assign(len(sizes), costs, shares)
    assert [layer for run in runs for layer in run] == list(range(len(sizes)))
    assert all(len(run) >= 1 for run in runs)
    best = min(fullness(way, costs, shares) for way in every_way(len(sizes), count))
    assert fullness(runs, costs, shares) == best


def test_shares_are_kept():
    """Three quarters of equal layers go to a share of three."""
    assert assign(8, [cost_of([5] * 8)] * 2, (3, 1)) == (range(6), range(6, 8))


def test_a_large_layer_goes_to_the_large_share():
    """Small layers are not left where the one that decides should lie."""
    large = cost_of([5, 1, 100, 1, 0])
    runs = assign(5, [large] * 4, (1, 3, 1, 1))
    assert 2 in runs[1]


def test_every_device_gets_a_layer():
    """A share near nothing is one layer, not none."""
    assert assign(3, [cost_of([5] * 3)] * 2, (1e9, 1e-9)) == (range(2), range(2, 3))


@pytest.mark.parametrize("shares", [(1, 0), (1, -1), (1, float("nan")), (1, float("inf")), (1,)])
def test_wrong_shares_are_refused(shares):
    """A share is a number above 0, and there is one for each device."""
    with pytest.raises(InvalidArgument, match=r"the split is 1.*a number above 0 for each of 2"):
        assign(4, [cost_of([1] * 4)] * 2, shares)


def test_more_devices_than_layers_are_refused():
    """A layer is not cut."""
    with pytest.raises(InvalidArgument, match="2 layers, which cannot be split over 3 devices"):
        assign(2, [cost_of([1, 1])] * 3, (1, 1, 1))
