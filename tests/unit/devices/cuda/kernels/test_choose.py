"""The token of each row of logits, as the host's sampler would choose it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.contract.sampling import SamplingParams
from corral.devices.cuda.choice_rules import choose
from corral.devices.staging import DRAW, LIKELIEST, biases_of
from corral.memory.choices import MOST_CANDIDATES, choice_parts, partials_bytes
from corral.sampling.sampler import Sampler
from emulation import Memory, address, needs_emulator, prepare_missing, run

pytestmark = needs_emulator


@pytest.fixture(scope="module", autouse=True)
def instances():
    """Compile what the tests below share, at once."""
    prepare_missing(
        launch.instance
        for vocabulary in (1, 4)
        for launch in choose(0, 0, 1, vocabulary, draws=0, scratch=0, tokens=0)
    )


def chosen(logits, draws, count=None):
    """Return the tokens that the kernels give for the first rows; those behind stay as they are."""
    memory = Memory()
    rows, vocabulary = logits.shape
    count = rows if count is None else count
    values, counts = memory.of(logits.astype(np.float32)), memory.of(np.array([count], np.int64))
    asked = memory.of(np.array(draws, DRAW))
    scratch = memory.empty(partials_bytes(rows, vocabulary), np.uint8)
    tokens = memory.empty(rows, np.int32)
    launches = choose(
        address(values),
        address(counts),
        rows,
        vocabulary,
        draws=address(asked),
        scratch=address(scratch),
        tokens=address(tokens),
    )
    for launch in launches:
        run(launch)
    memory.check()
    assert (tokens[count:] == -1).all()
    return tokens[:count].tolist()


def greedy(logits, count):
    """Return the likeliest tokens of the first rows."""
    return chosen(logits, [LIKELIEST] * len(logits), count)


def as_host(logits, params, positions):
    """Return what the kernels and what the sampler chooses for each row, at its position."""
    draws, expected = [], []
    for row, options, position in zip(logits.astype(np.float32), params, positions, strict=True):
        sampler = Sampler(SamplingParams(**options), logits.shape[1])
        draw = sampler.draw
        assert draw is not None
        words = (sampler.seed, position, draw.top_p, draw.floor, draw.temperature, draw.top_k)
        draws.append((*words, *biases_of(draw.biases)))
        expected.append(sampler.sample(row, position))
    return chosen(logits, draws), expected


@pytest.mark.parametrize("vocabulary", [1, 5, 33, 1000, 4096, 49_153])
def test_likeliest(vocabulary):
    """Each row gives its own greatest; rows past the count give nothing."""
    logits = np.random.default_rng(vocabulary).normal(size=(4, vocabulary))
    assert greedy(logits, 3) == logits[:3].astype(np.float32).argmax(axis=1).tolist()


def test_the_first_of_equal_logits_wins():
    """Zeros of either sign are equal."""
    logits = np.full((3, 9000), -1.0)
    logits[0, [77, 8000]] = 2.0
    logits[1, [5000, 8999]] = 0.0
    logits[1, 5000] = -0.0
    assert greedy(logits, 3) == [77, 5000, 0]


@pytest.mark.parametrize("top_k", [1, 40])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_finite_number_gives_no_token(bad, top_k):
    """NaN anywhere, plus infinity anywhere, or nothing but minus infinity."""
    logits = np.full((2, 100), -3.0)
    logits[0] = bad if bad == -np.inf else logits[0]
    logits[0, 60] = bad
    tokens = chosen(logits, [(1, 7, 0.9, -3.0, 0.8, top_k, *biases_of(()))] * 2)
    assert tokens[0] == -1
    assert 0 <= tokens[1] < 100
    assert tokens[1] != 60 or bad != -np.inf or top_k > 1


@pytest.mark.parametrize("vocabulary", [7, 300, 4099, 140_001])
def test_draws_as_the_host_does(vocabulary):
    """Rows that ask for different things, the usual ones among them, side by side."""
    rng = np.random.default_rng(vocabulary)
    kinds = [
        {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
        {"temperature": 1.0, "top_k": 2, "top_p": 1.0, "min_p": 0.0},
        {"temperature": 0.0},
        {"temperature": 2.5, "top_k": MOST_CANDIDATES, "top_p": 0.5, "min_p": 0.0},
        {"temperature": 1.3, "top_k": 64, "top_p": 1.0, "min_p": 0.3},
        {"temperature": 0.01, "top_k": 33, "top_p": 0.99, "min_p": 1.0},
    ]
    params = [kind | {"seed": int(rng.integers(2**63))} for kind in kinds]
    logits = rng.normal(size=(len(kinds), vocabulary)) * [[1.0], [3.0], [1.0], [0.1], [9.0], [2.0]]
    got, expected = as_host(logits, params, rng.integers(0, 2**40, len(kinds)).tolist())
    assert got == expected


def test_equal_logits_are_drawn_among_the_first_of_them():
    """However many are equal: all of a vocabulary of several parts."""
    logits = np.zeros((24, 9001))
    options = {"temperature": 1.0, "top_k": 100, "top_p": 1.0, "min_p": 0.0, "seed": 5}
    got, expected = as_host(logits, [options] * 24, range(24))
    assert got == expected
    assert max(got) < 100
    assert len(set(got)) > 10


def test_banned_tokens_are_not_drawn():
    """Minus infinity is no candidate, even if fewer are left than were asked for."""
    logits = np.full((8, 5000), -np.inf)
    logits[:, [3, 4000, 4999]] = [0.5, 0.5, 0.25]
    options = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0, "seed": 9}
    got, expected = as_host(logits, [options] * 8, range(8))
    assert got == expected
    assert set(got) <= {3, 4000, 4999}


@pytest.mark.parametrize("vocabulary", [9, 4099, 140_001])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_biases_count_before_anything_else(vocabulary, temperature):
    """Bans of the likeliest, wherever they lie, and biases that make others so, row by row."""
    rng = np.random.default_rng(vocabulary)
    logits = rng.normal(size=(6, vocabulary)) * 3
    likeliest = np.argsort(-logits, axis=1)[:, :4].tolist()
    biases = [
        {likeliest[0][0]: -math.inf},
        dict.fromkeys(likeliest[1], -math.inf),
        {vocabulary - 1: 50.0, 0: 49.5},
        {},
        {likeliest[4][0]: -0.25, likeliest[4][1]: 0.25},
        {vocabulary - 2: 100.0, 1: 100.0},
    ]
    options = {"temperature": temperature, "top_k": 40, "top_p": 0.95, "min_p": 0.0}
    params = [
        options | {"seed": seed, "logit_bias": tuple(given.items())}
        for seed, given in enumerate(biases)
    ]
    got, expected = as_host(logits, params, range(6))
    assert got == expected
    assert got[0] != likeliest[0][0]
    assert got[1] not in likeliest[1]
    assert got[2] in (vocabulary - 1, 0)


_ROWS = 8


@settings(max_examples=12, deadline=None)
@given(
    st.integers(2, 6000),
    st.floats(0.01, 30.0),
    st.lists(
        st.fixed_dictionaries(
            {
                "seed": st.integers(0, 2**64 - 1),
                "temperature": st.floats(0.0, 3.0),
                "top_k": st.integers(1, MOST_CANDIDATES),
                "top_p": st.floats(0.01, 1.0),
                "min_p": st.floats(0.0, 1.0),
                "logit_bias": st.sampled_from([-math.inf, -1.5, 0.25, 7.0]).map(
                    lambda bias: ((1, bias), (0, 0.5))
                ),
            }
        ),
        min_size=_ROWS,
        max_size=_ROWS,
    ),
    st.integers(0, 2**32),
)
def test_any_parameters_give_what_the_host_gives(vocabulary, spread, params, number):
    """Some logits are repeated, as rounding makes them."""
    rng = np.random.default_rng(number)
    logits = np.round(rng.normal(size=(_ROWS, vocabulary)) * spread, 2)
    got, expected = as_host(logits, params, rng.integers(0, 2**62, _ROWS).tolist())
    assert got == expected


@pytest.mark.parametrize("vocabulary", [1, 128_256, 262_208])
def test_a_part_is_never_longer_than_a_block_can_hold(vocabulary):
    """Four groups of four logits a thread of 512."""
    groups = math.ceil(vocabulary / 4)
    assert math.ceil(groups / choice_parts(vocabulary)) <= 1024
