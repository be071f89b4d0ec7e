"""The greedy token of each row of logits."""

import numpy as np
import pytest

from corral.devices.cuda.weight_rules import argmax, argmax_bytes
from emulation import Memory, address, needs_emulator, prepare_missing, run

pytestmark = needs_emulator


@pytest.fixture(scope="module", autouse=True)
def instances():
    """Compile what the tests below share, at once."""
    prepare_missing(
        launch.instance
        for vocabulary in (1, 4)
        for launch in argmax(0, 0, 1, vocabulary, scratch=0, tokens=0)
    )


def greedy(logits, count):
    """Return the tokens that the kernels give for the first rows, and what lies behind them."""
    memory = Memory()
    rows, vocabulary = logits.shape
    values, counts = memory.of(logits.astype(np.float32)), memory.of(np.array([count], np.int64))
    scratch, tokens = memory.empty(argmax_bytes(rows), np.uint8), memory.empty(rows, np.int32)
    launches = argmax(
        address(values),
        address(counts),
        rows,
        vocabulary,
        scratch=address(scratch),
        tokens=address(tokens),
    )
    for launch in launches:
        run(launch)
    memory.check()
    assert (tokens[count:] == -1).all()
    return tokens[:count].tolist()


@pytest.mark.parametrize("vocabulary", [1, 5, 33, 1000, 4096, 49_153])
def test_argmax(vocabulary):
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


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_finite_number_gives_no_token(bad):
    """NaN anywhere, plus infinity anywhere, or nothing but minus infinity."""
    logits = np.full((2, 100), -3.0)
    logits[0] = bad if bad == -np.inf else logits[0]
    logits[0, 60] = bad
    assert greedy(logits, 2) == [-1, 0]
