"""The likeliest tokens of a vocabulary, against plain sorting."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from corral.errors import InvalidArgument, ModelError
from corral.sampling.candidates import Workspace, largest, likeliest


def slow_largest(logits, count):
    """Sort everything: descending logits, of equal ones the lower id first."""
    possible = [token for token in range(len(logits)) if logits[token] > -np.inf]
    possible.sort(key=lambda token: (-logits[token], token))
    return possible[: count or None]


def check(logits, count):
    candidates = largest(logits, count, Workspace(logits.size))
    expected = slow_largest(logits, count)
    assert candidates.ids.tolist() == expected
    assert candidates.logits.tolist() == [float(logits[token]) for token in expected]


few_values = st.sampled_from([-np.inf, -(2.0**126), -2.0, -0.0, 0.0, 1.5, 2.0**127])
some_logits = hnp.arrays(
    np.float32,
    st.integers(1, 300),
    elements=st.floats(-(2.0**100), 2.0**100, width=32) | few_values,
).filter(lambda logits: np.isfinite(logits).any())


@given(some_logits, st.integers(0, 400))
def test_small_vocabularies(logits, count):
    """Any logits give the order of a plain sort, also when more are asked for than exist."""
    check(logits, count)


@settings(max_examples=30)
@given(
    st.integers(4096, 9000),
    st.sampled_from([1, 2, 40, 128, 129, 500, 1100]),
    st.sampled_from([1, 5, 1000, 10**6]),
    st.integers(0, 2**32 - 1),
)
def test_large_vocabularies(size, count, distinct, seed):
    """The search by groups finds what a plain sort finds, with few or many equal logits."""
    generator = np.random.default_rng(seed)
    check(generator.integers(0, distinct, size).astype(np.float32), count)


@pytest.mark.parametrize("possible", [1, 39, 40, 41, 3000])
def test_mostly_banned_vocabulary(possible):
    """Banned tokens are never candidates, even if fewer than k are possible."""
    generator = np.random.default_rng(possible)
    logits = np.full(49_152, -np.inf, np.float32)
    allowed = generator.choice(logits.size, possible, replace=False)
    logits[allowed] = generator.standard_normal(possible)
    check(logits, 40)
    check(logits, 0)


@pytest.mark.parametrize("size", [4096, 4097, 5119, 49_152, 49_155])
def test_last_tokens_are_found(size):
    """Tokens beyond the last full row of groups count too."""
    logits = np.zeros(size, np.float32)
    logits[-1] = 2
    logits[-3] = 3
    assert largest(logits, 2, Workspace(size)).ids.tolist() == [size - 3, size - 1]


def test_all_equal_gives_lowest_ids():
    """Equal logits give the lowest ids, also by the greedy way."""
    logits = np.full(49_152, 1.25, np.float32)
    assert largest(logits, 5, Workspace(logits.size)).ids.tolist() == [0, 1, 2, 3, 4]
    assert likeliest(logits) == 0


@pytest.mark.parametrize("size", [1, 100, 5000])
@pytest.mark.parametrize("count", [0, 1, 40])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, -1])
def test_logits_that_are_no_numbers(size, count, bad, place):
    """NaN or plus infinity anywhere is an error that names the token."""
    logits = np.linspace(-1, 1, size, dtype=np.float32)
    logits[place] = bad
    with pytest.raises(ModelError, match=rf"logit {bad} for token {place % size};"):
        largest(logits, count, Workspace(size))
    with pytest.raises(ModelError, match=rf"logit {bad} for token {place % size};"):
        likeliest(logits)


@pytest.mark.parametrize("size", [1, 5000])
@pytest.mark.parametrize("count", [0, 40])
def test_nothing_possible(size, count):
    """A vocabulary that is banned as a whole is an error that says so."""
    logits = np.full(size, -np.inf, np.float32)
    with pytest.raises(ModelError, match="all logits are minus infinity"):
        largest(logits, count, Workspace(size))
    with pytest.raises(ModelError, match="all logits are minus infinity"):
        likeliest(logits)


@pytest.mark.parametrize("size", [0, -1])
def test_empty_vocabulary(size):
    """A workspace for no tokens is refused."""
    with pytest.raises(InvalidArgument, match="vocabulary_size"):
        Workspace(size)
