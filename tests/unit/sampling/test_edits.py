"""Changes of the vocabulary's logits against their definitions in plain Python."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.sampling import edits

SIZE = 12
logit_lists = st.lists(st.integers(-64, 64).map(lambda n: n / 8), min_size=SIZE, max_size=SIZE)
token_lists = st.lists(st.integers(0, SIZE - 1), max_size=40)


def slow_penalties(logits, recent, repeat, frequency, presence):
    result = list(logits)
    for token in set(recent):
        logit = result[token]
        logit = logit / repeat if logit > 0 else logit * repeat
        result[token] = logit - recent.count(token) * frequency - presence
    return result


def slow_sequences(logits, recent, multiplier, base, allowed_length, breakers):
    longest = {}
    for end in range(len(recent) - 1):
        length = 0
        while length <= end:
            token = recent[end - length]
            if token in breakers or token != recent[len(recent) - 1 - length]:
                break
            length += 1
        following = recent[end + 1]
        longest[following] = max(longest.get(following, 0), length)
    result = list(logits)
    for token, length in longest.items():
        if length >= allowed_length:
            result[token] -= multiplier * base ** (length - allowed_length)
    return result


def slow_cut(logits, deviations):
    possible = [logit for logit in logits if math.isfinite(logit)]
    mean = math.fsum(possible) / len(possible)
    deviation = math.sqrt(math.fsum((logit - mean) ** 2 for logit in possible) / len(possible))
    floor = max(possible) - deviations * deviation
    return [logit if logit >= floor else -math.inf for logit in logits]


def array(values):
    return np.array(values, np.float32)


def test_bias_touches_only_its_tokens():
    """A bias is added to its token; minus infinity bans it; others keep every bit."""
    logits = array([1, 2, 3, 4])
    edits.add_bias(logits, np.array([3, 0]), array([-math.inf, 0.5]))
    assert logits.tolist() == [1.5, 2, 3, -math.inf]


@given(logit_lists, token_lists, st.floats(0.1, 3), st.floats(-2, 2), st.floats(-2, 2))
def test_penalties(logits, recent, repeat, frequency, presence):
    """Recent tokens lose what the definition says."""
    changed = array(logits)
    edits.penalize_tokens(
        changed,
        np.array(recent, np.int64),
        repeat=repeat,
        frequency=frequency,
        presence=presence,
    )
    expected = slow_penalties(logits, recent, repeat, frequency, presence)
    assert changed.tolist() == array(expected).tolist()


@given(
    logit_lists,
    st.lists(st.integers(0, 3), max_size=40),
    st.sampled_from([1.0, 1.3, 1.75]),
    st.integers(1, 4),
    st.sets(st.integers(0, 3), max_size=1),
)
def test_sequences(logits, recent, base, allowed_length, breakers):
    """Tokens that would lengthen a repetition lose what the definition says."""
    changed = array(logits)
    edits.penalize_sequences(
        changed,
        np.array(recent, np.int64),
        multiplier=0.8,
        base=base,
        allowed_length=allowed_length,
        is_breaker=np.isin(recent, sorted(breakers)),
    )
    expected = slow_sequences(logits, recent, 0.8, base, allowed_length, breakers)
    assert changed.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_very_long_repetition_saturates():
    """A repetition of thousands of tokens bans its token instead of overflowing."""
    logits = array([1.0, 1.0])
    recent = np.zeros(5000, np.int64)
    with np.errstate(over="ignore"):
        edits.penalize_sequences(
            logits,
            recent,
            multiplier=0.8,
            base=1.75,
            allowed_length=2,
            is_breaker=np.zeros(5000, np.bool_),
        )
    assert logits[0] < -1e37
    assert logits[1] == 1.0


@given(
    st.lists(st.integers(-64, 64).map(lambda n: n / 8) | st.just(-math.inf), min_size=2).filter(
        lambda logits: any(map(math.isfinite, logits))
    ),
    st.sampled_from([0.37, 1.01, 2.3]),
)
def test_cut_below_deviations(logits, deviations):
    """Tokens too far below the likeliest are banned, and banned ones do not count."""
    changed = array(logits)
    edits.cut_below_deviations(changed, deviations)
    assert changed.tolist() == slow_cut(logits, deviations)


@pytest.mark.parametrize("logits", [[-math.inf, -math.inf], [math.nan, math.nan]])
def test_cut_leaves_impossible_logits(logits):
    """Logits without any finite one are left for the selection to refuse."""
    changed = array(logits)
    edits.cut_below_deviations(changed, 1.0)
    assert np.array_equal(changed, array(logits), equal_nan=True)
