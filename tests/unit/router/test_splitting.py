"""A model split by addition, compared with the planner's own way."""

from hypothesis import given, settings
from hypothesis import strategies as st

from corral.models.assign import assign
from corral.router.entry import Footprint, LayerBytes
from corral.router.splitting import LayerSums, Splitter

sizes = st.integers(1, 1000)


@st.composite
def footprints(draw):
    count = draw(st.integers(1, 12))
    several = lambda low: tuple(draw(st.integers(low, 100)) for _ in range(count))  # noqa: E731
    layers = LayerBytes(several(1), several(0), ((draw(sizes), (0, count - 1)),))
    own = {"weights": sum(layers.weights), "state": sum(layers.state), "scratch": draw(sizes)}
    return Footprint("cuda", own, {}, layers, granularity=draw(st.sampled_from((1, 16))))


def devices(most=4):
    return st.lists(st.integers(1, 3000), min_size=1, max_size=most)


@settings(max_examples=200, deadline=None)
@given(footprints(), devices())
def test_parts_cover_the_layers_and_keep_to_the_space(footprint, spaces):
    """Each device has a run of at least one layer, and no more bytes than its space."""
    parts = Splitter([footprint] * len(spaces)).by_space(spaces)
    if parts is None:
        return
    ends = [part.end for part in parts]
    assert [part.first for part in parts] == [0, *ends[:-1]]
    assert ends[-1] == len(footprint.layers.weights)
    assert all(part.first < part.end for part in parts)
    assert all(part.own_bytes <= space for part, space in zip(parts, spaces, strict=True))


@settings(max_examples=200, deadline=None)
@given(footprints(), devices(3))
def test_no_space_is_no_mistake(footprint, spaces):
    """There is no split only if the one that fills no device more than it must does not fit."""
    count = len(footprint.layers.weights)
    splitter = Splitter([footprint] * len(spaces))
    fixed = footprint.own["scratch"]
    left = [space - fixed for space in spaces]
    if min(left) <= 0 or len(spaces) > count:
        assert splitter.by_space(spaces) is None
        return
    sums, unit = LayerSums(footprint.layers), footprint.granularity

    def cost(first, end):
        return sum(
            -(-size // unit) * unit for size in (sums.weights(first, end), sums.state(first, end))
        )

    runs = assign(count, [cost] * len(spaces), left)
    fits = all(cost(run.start, run.stop) <= size for run, size in zip(runs, left, strict=True))
    assert (splitter.by_space(spaces) is not None) == fits


@settings(max_examples=200, deadline=None)
@given(footprints(), st.lists(st.floats(0.1, 10), min_size=1, max_size=4))
def test_a_worker_told_the_weights_finds_the_same_runs(footprint, shares):
    """The planner, given each part's weights as shares, gives each device just these layers."""
    count = len(footprint.layers.weights)
    parts = Splitter([footprint] * len(shares)).by_shares(shares)
    if len(shares) > count:
        assert parts is None
        return
    weights = [float(part.weights_bytes) for part in parts]
    runs = assign(count, [LayerSums(footprint.layers).weights] * len(shares), weights)
    assert [(part.first, part.end) for part in parts] == [(r.start, r.stop) for r in runs]


def test_layers_may_be_summed_either_way():
    """The sums of a run are those of its layers, shared weights counted once."""
    layers = LayerBytes((1, 2, 3), (10, 20, 30), ((100, (0, 2)),))
    sums = LayerSums(layers)
    for first in range(3):
        for end in range(first + 1, 4):
            assert sums.weights(first, end) + sums.state(first, end) == layers.run_bytes(first, end)
    assert layers.run_bytes(0, 3) == 166
    assert layers.run_bytes(1, 2) == 22
