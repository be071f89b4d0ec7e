"""Log-probabilities against a plain log-softmax in double precision."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from corral.errors import ModelError
from corral.sampling.candidates import Workspace
from corral.sampling.logprobs import LEAST_LOGPROB, token_logprobs


def slow_log_softmax(logits):
    exact = logits.astype(np.float64)
    return exact - exact.max() - math.log(math.fsum(np.exp(exact - exact.max()).tolist()))


@given(
    hnp.arrays(np.float32, st.integers(1, 200), elements=st.floats(-50, 50, width=32)),
    st.integers(0, 20),
)
def test_against_log_softmax(logits, top):
    """The drawn and the likeliest tokens have the log-probabilities of the log-softmax."""
    token = logits.size // 2
    result = token_logprobs(logits, token, top=top, workspace=Workspace(logits.size))
    exact = slow_log_softmax(logits)
    assert result.drawn.token == token
    assert result.drawn.logprob == pytest.approx(exact[token], abs=1e-5)
    ranked = sorted(range(logits.size), key=lambda i: (-logits[i], i))[:top]
    assert [entry.token for entry in result.top] == ranked
    assert [entry.logprob for entry in result.top] == pytest.approx(
        [exact[i] for i in ranked], abs=1e-5
    )


def test_large_vocabulary():
    """A large vocabulary loses no precision, and its logits are left as they are."""
    logits = np.random.default_rng(5).standard_normal(262_144).astype(np.float32) * 4
    before = logits.copy()
    result = token_logprobs(logits, 7, top=20, workspace=Workspace(logits.size))
    exact = slow_log_softmax(logits)
    assert result.drawn.logprob == pytest.approx(exact[7], abs=1e-6)
    assert [e.logprob for e in result.top] == pytest.approx(np.sort(exact)[:-21:-1], abs=1e-6)
    assert np.array_equal(before, logits)


def test_impossible_tokens_have_a_finite_logprob():
    """A banned token has the least log-probability, not minus infinity."""
    logits = np.array([0.0, -np.inf, -3e38], np.float32)
    workspace = Workspace(3)
    assert token_logprobs(logits, 1, top=0, workspace=workspace).drawn.logprob == LEAST_LOGPROB
    assert token_logprobs(logits, 2, top=0, workspace=workspace).drawn.logprob == LEAST_LOGPROB
    assert token_logprobs(logits, 0, top=0, workspace=workspace).drawn.logprob == 0.0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_numbers(bad):
    """NaN and plus infinity are refused."""
    logits = np.array([0.0, bad], np.float32)
    with pytest.raises(ModelError, match="token 1"):
        token_logprobs(logits, 0, top=0, workspace=Workspace(2))
