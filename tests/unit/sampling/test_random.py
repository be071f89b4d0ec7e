"""Random numbers are those of Philox4x32-10 and depend on seed, position and stream alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.sampling.random import Stream, fresh_seed, philox, uniform

seeds = st.integers(0, 2**64 - 1)
positions = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter, key, expected):
    """The words are those Random123 publishes as known answers."""
    assert philox(counter, key) == expected


@given(seeds, positions)
def test_uniform_is_in_the_half_open_interval(seed, position):
    """Every number is at least 0 and below 1, and asking twice gives it twice."""
    chance = uniform(seed, position)
    assert 0 <= chance < 1
    assert chance == uniform(seed, position)


def test_largest_words_stay_below_one(monkeypatch):
    """Even all random bits set give less than 1."""
    monkeypatch.setattr("corral.sampling.random.philox", lambda counter, key: (0xFFFFFFFF,) * 4)
    assert uniform(0, 0) == 1 - 2**-53


@given(seeds, st.integers(0, 2**40))
def test_neighbours_and_streams_differ(seed, position):
    """Another position, stream or seed gives another number."""
    numbers = {
        uniform(seed, position),
        uniform(seed, position + 1),
        uniform(seed, position + 2**32),
        uniform(seed, position, Stream.XTC),
        uniform(seed ^ 1, position),
        uniform(seed ^ 2**63, position),
    }
    assert len(numbers) == 6


def test_numbers_are_spread_evenly():
    """Ten thousand positions fill a hundred bins as evenly as chance does."""
    bins = [0] * 100
    for position in range(10_000):
        bins[int(uniform(7, position) * 100)] += 1
    statistic = sum((count - 100) ** 2 / 100 for count in bins)
    assert 61 < statistic < 149  # 0.1 % and 99.9 % points for 99 degrees of freedom


def test_fresh_seeds_are_valid_and_differ():
    """A seed nobody gave is of 64 bits and never the same twice."""
    drawn = {fresh_seed() for _ in range(100)}
    assert len(drawn) == 100
    assert all(0 <= seed < 2**64 for seed in drawn)
