"""The sampler of one sequence: reproducible, independent of its neighbours, and careful."""

import gc
import itertools
import math
import tracemalloc
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.contract.sampling import SamplingParams
from corral.errors import InvalidArgument, ModelError
from corral.sampling.candidates import Workspace
from corral.sampling.sampler import Sampler

VOCABULARY = 5000
EVERYTHING = SamplingParams(
    typical_p=0.9,
    top_n_sigma=3.0,
    xtc_probability=0.5,
    repeat_penalty=1.1,
    dry_multiplier=0.8,
    logit_bias=((3, 1.0), (4, -math.inf)),
    seed=11,
)
SHORT_MEMORY = msgspec.structs.replace(EVERYTHING, dry_last_n=100)


def logits_of(position, size=VOCABULARY):
    return np.random.default_rng(position).standard_normal(size).astype(np.float32) * 3


def generate(sampler, count=30):
    tokens = []
    for position in range(count):
        token = sampler.sample(logits_of(position % 5), position)
        sampler.accept(token)
        tokens.append(token)
    return tokens


@pytest.mark.parametrize("params", [SamplingParams(seed=11), EVERYTHING])
def test_same_seed_same_tokens(params):
    """Parameters, seed and logits decide every token."""
    assert generate(Sampler(params, VOCABULARY)) == generate(Sampler(params, VOCABULARY))


def test_seeds_differ():
    """Other seeds draw other tokens, and a seed nobody gave can be read and used again."""
    runs = [
        tuple(generate(Sampler(SamplingParams(seed=seed), VOCABULARY)))
        for seed in (0, 1, 2**64 - 1)
    ]
    assert len(set(runs)) == 3
    unseeded = Sampler(SamplingParams(), VOCABULARY)
    again = Sampler(SamplingParams(seed=unseeded.seed), VOCABULARY)
    assert generate(unseeded) == generate(again)


def test_neighbours_change_nothing():
    """Sequences that take turns in one workspace draw what each would draw alone."""
    alone = [generate(Sampler(p, VOCABULARY)) for p in (SamplingParams(seed=5), EVERYTHING)]
    workspace = Workspace(VOCABULARY)
    first = Sampler(SamplingParams(seed=5), VOCABULARY, workspace=workspace)
    second = Sampler(EVERYTHING, VOCABULARY, workspace=workspace)
    together = ([], [])
    for position in range(30):
        for sampler, tokens in zip((first, second), together, strict=True):
            tokens.append(sampler.sample(logits_of(position % 5), position))
            sampler.accept(tokens[-1])
            sampler.logprobs(logits_of(position), 0)
    assert list(together) == alone


def test_positions_can_be_drawn_again_in_any_order():
    """Without penalties a position's token needs no earlier draw."""
    sampler = Sampler(SamplingParams(seed=9), VOCABULARY)
    forwards = [sampler.sample(logits_of(0), position) for position in range(20)]
    backwards = [sampler.sample(logits_of(0), position) for position in reversed(range(20))]
    assert forwards == backwards[::-1]
    assert len(set(forwards)) > 1


@settings(max_examples=50)
@given(
    st.integers(1, 60),
    st.builds(
        SamplingParams,
        temperature=st.floats(0, 5),
        top_k=st.integers(0, 70),
        top_p=st.floats(0.01, 1),
        min_p=st.floats(0, 1),
        typical_p=st.floats(0.01, 1),
        top_n_sigma=st.none() | st.floats(0.01, 5),
        xtc_probability=st.floats(0, 1),
        repeat_penalty=st.floats(0.5, 2),
        presence_penalty=st.floats(-2, 2),
        dry_multiplier=st.floats(0, 2),
        seed=st.integers(0, 2**64 - 1),
    ),
)
def test_any_parameters_draw_a_token(size, params):
    """Valid parameters always give a token of the vocabulary, and leave the logits alone."""
    sampler = Sampler(params, size)
    for position in range(8):
        logits = logits_of(position, size)
        before = logits.copy()
        token = sampler.sample(logits, position)
        assert 0 <= token < size
        assert np.array_equal(before, logits)
        sampler.accept(token)


@pytest.mark.parametrize("temperature", [0, 0.7])
def test_banned_tokens_are_never_drawn(temperature):
    """A bias of minus infinity excludes a token, whatever its logit."""
    banned = SamplingParams(
        temperature=temperature, logit_bias=((0, -math.inf), (1, -math.inf)), seed=1
    )
    logits = np.array([9, 9, 1, 0.5], np.float32)
    sampler = Sampler(banned, 4)
    assert {sampler.sample(logits, position) for position in range(50)} <= {2, 3}


def test_greedy_takes_the_lowest_of_equal_tokens():
    """Temperature zero takes the highest logit, of equal ones the lowest id."""
    sampler = Sampler(SamplingParams(temperature=0), 4)
    assert sampler.sample(np.array([0, 2, 2, 1], np.float32), 0) == 1


def test_penalties_see_prompt_and_answer():
    """A repeated token is penalized whether it came from the prompt or was drawn."""
    params = SamplingParams(temperature=0, presence_penalty=5, repeat_last_n=2)
    sampler = Sampler(params, 3)
    logits = np.array([3, 2, 1], np.float32)
    sampler.accept_prompt([0])
    assert sampler.sample(logits, 1) == 1
    sampler.accept(1)
    assert sampler.sample(logits, 2) == 2
    sampler.accept(2)  # token 0 leaves the window
    assert sampler.sample(logits, 3) == 0


def test_dry_stops_a_loop_and_breakers_allow_it():
    """A repeated phrase is not continued, unless one of its tokens is a breaker."""
    params = SamplingParams(temperature=0, dry_multiplier=5)
    logits = np.array([0, 0, 0, 4, 3], np.float32)
    phrase = [1, 2, 3, 0, 1, 2]
    plain = Sampler(params, 5)
    plain.accept_prompt(phrase)
    assert plain.sample(logits, 6) == 4
    broken = Sampler(params, 5, dry_breakers={2})
    broken.accept_prompt(phrase)
    assert broken.sample(logits, 6) == 3


def test_distribution_after_filters():
    """Draws follow the distribution that filters and temperature leave (chi-square)."""
    params = SamplingParams(top_k=3, top_p=1, min_p=0, temperature=0.5, seed=4)
    logits = np.array([1.0, 0.5, 0.0, -0.1, -5.0], np.float32)
    sampler = Sampler(params, 5)
    counts = Counter(sampler.sample(logits, position) for position in range(5000))
    weights = [math.exp(logit / 0.5) for logit in (1.0, 0.5, 0.0)]
    means = [5000 * weight / sum(weights) for weight in weights]
    statistic = sum((counts[i] - mean) ** 2 / mean for i, mean in enumerate(means))
    assert set(counts) == {0, 1, 2}
    assert statistic < 13.8  # 99.9 % point for 2 degrees of freedom


def test_xtc_happens_as_often_as_asked():
    """The top choices are excluded in the share of positions that was asked for."""
    params = SamplingParams(xtc_probability=0.3, xtc_threshold=0.1, seed=2, temperature=0.01)
    sampler = Sampler(params, 2)
    logits = np.array([0.5, 0.0], np.float32)
    excluded = sum(sampler.sample(logits, position) for position in range(2000))
    assert 520 < excluded < 680


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers(temperature, bad):
    """NaN or infinite logits are an error, and the sampler works on afterwards."""
    params = SamplingParams(temperature=temperature, top_n_sigma=2.0, seed=1)
    sampler = Sampler(params, VOCABULARY)
    good = sampler.sample(logits_of(0), 0)
    logits = logits_of(0)
    logits[4321] = bad
    with pytest.raises(ModelError, match="token 4321"):
        sampler.sample(logits, 0)
    assert sampler.sample(logits_of(0), 0) == good


@pytest.mark.parametrize(
    "logits",
    [
        np.zeros(9, np.float32),
        np.zeros((1, 10), np.float32),
        np.zeros(10, np.float64),
        np.zeros(10, np.float16),
    ],
)
def test_other_shapes_and_types_are_refused(logits):
    """Logits of another vocabulary or type are an error, not a wrong token."""
    sampler = Sampler(SamplingParams(), 10)
    with pytest.raises(InvalidArgument, match="expected float32 of shape"):
        sampler.sample(logits, 0)
    with pytest.raises(InvalidArgument, match="expected float32 of shape"):
        sampler.logprobs(logits, 0)


def test_strided_logits():
    """A row that is not contiguous gives the same token."""
    logits = logits_of(1)
    spread = np.zeros((VOCABULARY, 2), np.float32)
    spread[:, 0] = logits
    sampler = Sampler(SamplingParams(seed=3), VOCABULARY)
    assert sampler.sample(spread[:, 0], 5) == sampler.sample(logits, 5)


@pytest.mark.parametrize("params", [SamplingParams(seed=1, logprobs=5), SHORT_MEMORY])
def test_sampling_holds_no_more_memory_with_every_token(params):
    """Memory in use does not rise with the number of tokens sampled.

    Python and NumPy keep some freed blocks for reuse, so single windows may rise; a leak rises in
    each of them, by a reference for every token at least.
    """
    sampler = Sampler(params, 200)
    logits = logits_of(0, 200)

    def used_after(first, count):
        for position in range(first, first + count):
            token = sampler.sample(logits, position)
            sampler.accept(token)
            sampler.logprobs(logits, token)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        used = [used_after(first, 150) for first in range(0, 1050, 150)]
    finally:
        tracemalloc.stop()
    assert min(after - before for before, after in itertools.pairwise(used)) < 150 * 8


def test_invalid_parameters_are_refused():
    """Parameters are checked against the vocabulary when the sampler is made."""
    with pytest.raises(InvalidArgument, match="temperature"):
        Sampler(SamplingParams(temperature=math.nan), 10)
    with pytest.raises(InvalidArgument, match=r"logit_bias\[0\] token is 10"):
        Sampler(SamplingParams(logit_bias=((10, 1.0),)), 10)
    with pytest.raises(InvalidArgument, match="workspace is for 9"):
        Sampler(SamplingParams(), 10, workspace=Workspace(9))


def test_logprobs_ignore_filters():
    """Log-probabilities are those of the model, not those of the filtered distribution."""
    params = SamplingParams(logprobs=2, top_k=1, logit_bias=((0, -100.0),), temperature=0.1)
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    result = Sampler(params, 3).logprobs(logits, 2)
    assert result.drawn.logprob == pytest.approx(math.log(0.2), abs=1e-6)
    assert [entry.token for entry in result.top] == [0, 1]


def test_parameters_are_frozen():
    """A sampler's parameters cannot change under it."""
    with pytest.raises(AttributeError):
        Sampler(SamplingParams(), 3).params.top_k = 3
