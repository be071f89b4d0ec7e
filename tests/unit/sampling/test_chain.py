"""Which steps parameters turn on, and in which order."""

import pytest

from corral.contract.sampling import SamplingParams
from corral.sampling.chain import build_chain

EVERYTHING = SamplingParams(
    temperature=0.7,
    typical_p=0.9,
    top_n_sigma=1.0,
    xtc_probability=0.5,
    repeat_penalty=1.1,
    dry_multiplier=0.8,
    logit_bias=((3, 1.0),),
)


def names(chain):
    return [edit.name for edit in chain.edits], [step.name for step in chain.steps]


def test_defaults():
    """Defaults change no logits and apply four filters in order."""
    chain = build_chain(SamplingParams(), seed=1)
    assert names(chain) == ([], ["top_p", "min_p", "temperature"])
    assert (chain.top_k, chain.is_greedy, chain.history_length) == (40, False, 0)


def test_everything_in_order():
    """With everything on, the order is llama.cpp's."""
    assert names(build_chain(EVERYTHING, seed=1)) == (
        ["bias", "penalties", "dry", "top_n_sigma"],
        ["typical_p", "top_p", "min_p", "xtc", "temperature"],
    )


def test_everything_off():
    """Filters at the value that keeps everything are left out."""
    params = SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0)
    chain = build_chain(params, seed=1)
    assert (names(chain), chain.top_k) == (([], []), 0)


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-6, 1e-300])
def test_greedy(temperature):
    """At temperature zero, or practically so, only the edits stay."""
    chain = build_chain(SamplingParams(temperature=temperature, repeat_penalty=1.2), seed=1)
    assert chain.is_greedy
    assert names(chain) == (["penalties"], [])


@pytest.mark.parametrize(
    ("params", "length"),
    [
        (SamplingParams(repeat_penalty=1.1), 64),
        (SamplingParams(frequency_penalty=0.1, repeat_last_n=9), 9),
        (SamplingParams(presence_penalty=-0.1, repeat_last_n=0), 0),
        (SamplingParams(dry_multiplier=0.8), 1024),
        (SamplingParams(dry_multiplier=0.8, dry_last_n=10, repeat_penalty=2), 64),
    ],
)
def test_history_length(params, length):
    """Only as many tokens are remembered as an edit that is on looks back."""
    assert build_chain(params, seed=1).history_length == length
