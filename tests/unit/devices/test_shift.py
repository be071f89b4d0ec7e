"""A shift of the context on every device that computes, against the formula over what is left."""

import numpy as np
import pytest

import formulas
from corral.devices.reference.attention import kv_shift
from corral.devices.reference.storage import decode, encode
from corral.quant.types import DType
from corral.tensor.ops import Op, Rope, RopePairs
from corral.tensor.tensor import Tensor
from golden import nmse
from shift_cases import CASES, check


@pytest.mark.parametrize("spare", [False, True], ids=["in-place", "to-another-block"])
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_shifted_keys_are_those_of_their_new_positions(computing, case, spare):
    """The next token sees what it would see if the rest had always stood there; others as before.

    One more rounding of the keys apart.
    """
    check(computing, case, spare=spare)


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.Q8_0], ids=lambda t: t.name)
def test_each_turn_adds_one_rounding(dtype):
    """After as many turns as a key can have, its error is that of so many roundings."""
    keys = np.random.default_rng(0).normal(size=(1, 1, 32, 128)).astype(np.float32)
    state = leaf("kv", (1, 2, 1, 32, 128), dtype)
    shift = Tensor("s", Op.KV_SHIFT, dtype, state.shape, (state,), Rope(128, RopePairs.HALVES))
    cached, place = np.stack([encode(keys, dtype)] * 2, axis=1), np.zeros(1, np.int32)
    turns = turning(-1024)
    errors = [nmse(decode(cached[:, 0], dtype), keys)]
    exact = keys.astype(np.float64)
    for _ in range(3):
        kv_shift(shift, cached, cached, turns, place, place)
        exact = formulas.rope(exact.reshape(32, 128), turns.repeat(32, 0), 128, halves)
        kept = decode(np.ascontiguousarray(cached[:, 0]), dtype)
        errors.append(nmse(kept.reshape(32, 128), exact))
    for number, error in enumerate(errors[1:], start=2):
        assert error == pytest.approx(number * errors[0], rel=0.25)


def leaf(name, shape, dtype):
    return Tensor(name, Op.STATE, dtype, shape)


def turning(distance):
    """Return the cosines and sines of one distance: (1, 128)."""
    return formulas.rotations([distance], 10000.0 ** (-np.arange(64) / 64)).astype(np.float32)


def halves(pair, half):
    return pair, pair + half
