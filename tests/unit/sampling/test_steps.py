"""Each filter against its definition, written slowly in plain Python."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.sampling import steps
from corral.sampling.candidates import Candidates
from corral.sampling.random import uniform


def candidates_of(logits):
    ordered = sorted(logits, reverse=True)
    ids = np.arange(100, 100 + len(ordered), dtype=np.int64)
    return Candidates(ids, np.array(ordered, np.float64))


def probabilities_of(candidates):
    weights = [math.exp(logit - candidates.logits[0]) for logit in candidates.logits.tolist()]
    return [weight / math.fsum(weights) for weight in weights]


def slow_top_p(candidates, mass):
    kept, held = [], 0.0
    for token, probability in zip(
        candidates.ids.tolist(), probabilities_of(candidates), strict=True
    ):
        kept.append(token)
        held += probability
        if held >= mass:
            break
    return kept


def slow_min_p(candidates, share):
    probabilities = probabilities_of(candidates)
    return [
        token
        for token, probability in zip(candidates.ids.tolist(), probabilities, strict=True)
        if probability >= share * probabilities[0]
    ]


def slow_typical_p(candidates, mass):
    probabilities = probabilities_of(candidates)
    entropy = -math.fsum(p * math.log(p) for p in probabilities if p > 0)
    by_distance = sorted(
        range(len(probabilities)), key=lambda i: abs(-math.log(probabilities[i]) - entropy)
    )
    kept, held = [], 0.0
    for index in by_distance:
        kept.append(int(candidates.ids[index]))
        held += probabilities[index]
        if held > mass:
            break
    return sorted(kept)


def slow_xtc(candidates, threshold):
    probabilities = probabilities_of(candidates)
    good = [i for i, probability in enumerate(probabilities) if probability >= threshold]
    return [
        token for i, token in enumerate(candidates.ids.tolist()) if i not in good[:-1] or not good
    ]


# Steps of 1/16 keep sums and products away from exact ties between double and fsum.
some_candidates = st.lists(
    st.integers(-160, 160).map(lambda n: n / 16), min_size=1, max_size=60
).map(candidates_of)
shares = st.floats(0.011, 0.993)


@given(some_candidates)
def test_softmax(candidates):
    """Probabilities are positive, descending and add up to one."""
    assert steps.softmax(candidates) == pytest.approx(probabilities_of(candidates), rel=1e-12)


@given(some_candidates, shares)
def test_top_p(candidates, mass):
    """The likeliest are kept until they hold the mass."""
    assert steps.top_p(candidates, mass).ids.tolist() == slow_top_p(candidates, mass)


@given(some_candidates, shares)
def test_min_p(candidates, share):
    """Those are kept that are likely enough compared to the likeliest."""
    assert steps.min_p(candidates, share).ids.tolist() == slow_min_p(candidates, share)


@given(
    st.sets(st.integers(-20_000, 20_000), min_size=1, max_size=30).map(
        lambda numbers: candidates_of([n / 2011 for n in numbers])
    ),
    shares,
)
def test_typical_p(candidates, mass):
    """Those of about the expected surprise are kept until they hold more than the mass."""
    assert steps.typical_p(candidates, mass).ids.tolist() == slow_typical_p(candidates, mass)


@given(some_candidates, st.floats(0.01, 1))
def test_xtc(candidates, threshold):
    """Of those above the threshold only the least likely stays."""
    assert steps.xtc(candidates, threshold).ids.tolist() == slow_xtc(candidates, threshold)


@given(some_candidates, st.floats(0.01, 1), st.floats(0.01, 100))
def test_steps_keep_order_and_something(candidates, share, degree):
    """Whatever is filtered, something stays, in order, with its own logit."""
    logits = dict(zip(candidates.ids.tolist(), candidates.logits.tolist(), strict=True))
    for step in (steps.top_p, steps.min_p, steps.typical_p, steps.xtc):
        kept = step(candidates, share)
        assert kept.ids.size >= 1
        assert kept.ids.tolist() == sorted(kept.ids.tolist())
        assert kept.logits.tolist() == [logits[token] for token in kept.ids.tolist()]
    heated = steps.temperature(candidates, degree)
    assert heated.ids.tolist() == candidates.ids.tolist()
    differences = (candidates.logits - candidates.logits[0]) / degree
    assert heated.logits.tolist() == differences.tolist()


@pytest.mark.parametrize(
    "step", [steps.top_p, steps.min_p, steps.typical_p, steps.xtc, steps.temperature]
)
def test_one_candidate_stays(step):
    """One candidate passes every step."""
    assert step(candidates_of([-3.0]), 0.5).ids.tolist() == [100]


@pytest.mark.parametrize("step", [steps.top_p, steps.typical_p])
def test_extreme_logits(step):
    """Logits at the ends of float32 give neither warnings nor an empty set."""
    assert step(candidates_of([3e38, -3e38]), 0.999).ids.tolist()[0] == 100


def test_draw_at_the_ends():
    """The lowest chance draws the likeliest, the highest the last with any probability."""
    candidates = candidates_of([math.log(0.5), math.log(0.3), math.log(0.2), -1e6])
    assert steps.draw(candidates, 0.0) == 100
    assert steps.draw(candidates, 0.499) == 100
    assert steps.draw(candidates, 0.501) == 101
    assert steps.draw(candidates, 1 - 2**-53) == 102


@given(some_candidates, st.floats(0, 1, exclude_max=True))
def test_draw_inverts_the_distribution(candidates, chance):
    """The token drawn is where the distribution function passes the chance."""
    token = steps.draw(candidates, chance)
    index = candidates.ids.tolist().index(token)
    probabilities = probabilities_of(candidates)
    before = math.fsum(probabilities[:index])
    assert before - 1e-12 <= chance <= before + probabilities[index] + 1e-12


def test_draws_follow_the_probabilities():
    """Twenty thousand draws are distributed as the softmax says (chi-square)."""
    candidates = candidates_of([2.0, 1.5, 1.0, 0.0, -0.5, -1.0])
    counts = Counter(steps.draw(candidates, uniform(3, position)) for position in range(20_000))
    expected = [20_000 * probability for probability in probabilities_of(candidates)]
    statistic = sum(
        (counts[token] - mean) ** 2 / mean
        for token, mean in zip(candidates.ids.tolist(), expected, strict=True)
    )
    assert statistic < 20.5  # 99.9 % point for 5 degrees of freedom
