"""The window over recent tokens, against a list."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.sampling.history import History


@given(st.integers(0, 9), st.lists(st.integers(0, 99), max_size=40), st.integers(0, 12))
def test_recent_is_the_end_of_the_sequence(capacity, tokens, count):
    """The window holds the last tokens in order, never more than its capacity."""
    history = History(capacity)
    history.extend(tokens)
    kept = tokens[-capacity:] if capacity else []
    assert history.recent(count).tolist() == (kept[-count:] if count else [])


@pytest.mark.parametrize("capacity", [0, 1, 64])
def test_memory_does_not_grow(capacity):
    """Tokens are kept in the array made at the start."""
    history = History(capacity)
    before = history.recent(capacity).base
    history.extend(range(1000))
    assert history.recent(capacity).base is before
