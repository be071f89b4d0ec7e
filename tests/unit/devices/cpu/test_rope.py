"""Rotations are as exact as F32 can be, and heads turn as float64 says."""

import numpy as np
import pytest

from corral.devices.cpu.compile import KernelSpec
from corral.devices.cpu.kernels.rope import ROPE_FIELDS, ROTATIONS_FIELDS, rope, rotations
from unit.devices.cpu.kernel_call import HOST, TARGETS, call, count, poisoned


def rotated(target, positions, frequencies, *, factors=None, magnitude=1.0, threads=1):
    pairs = len(frequencies)
    out = poisoned(len(positions) + 1, 2 * pairs)
    words = {
        "positions": np.array(positions, np.int32),
        "count": count(len(positions)),
        "frequencies": frequencies,
        "factors": 0 if factors is None else factors,
        "out": out,
        "out_stride": out.strides[0],
        "pairs": pairs,
        "magnitude": np.float32(magnitude),
    }
    spec = KernelSpec.of(rotations, has_factors=factors is not None)
    call(target, spec, ROTATIONS_FIELDS, words, threads=threads)
    assert np.isnan(out[-1]).all()
    return out[:-1]


def turned(target, x, turns, heads, pairs, *, threads=1, in_place=False):
    out = x if in_place else poisoned(*x.shape)
    head_dim = x.shape[1] // heads
    words = {
        "x": x,
        "count": count(len(x)),
        "rotations": turns,
        "out": out,
        "x_stride": x.strides[0],
        "rotations_stride": turns.strides[0],
        "out_stride": out.strides[0],
        "heads": heads,
    }
    spec = KernelSpec.of(rope, head_dim=head_dim, turned=turns.shape[1], pairs=pairs)
    call(target, spec, ROPE_FIELDS, words, threads=threads)
    return out


def exact_turn(x, turns, heads, pairs):
    half = turns.shape[1] // 2
    split = x.astype(np.float64).reshape(len(x), heads, -1)
    out = split.copy()
    one, two = slice(0, half), slice(half, 2 * half)
    if pairs == "NEIGHBOURS":
        one, two = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    cosine, sine = turns[:, None, :half], turns[:, None, half:]
    out[..., one] = split[..., one] * cosine - split[..., two] * sine
    out[..., two] = split[..., two] * cosine + split[..., one] * sine
    return out.reshape(x.shape)


@TARGETS
@pytest.mark.parametrize("pairs", [32, 20, 3])
@pytest.mark.parametrize("with_factors", [False, True])
def test_rotations_are_exact_far_out(target, pairs, with_factors):
    """The error is below 1e-7 for angles up to a million, of either sign."""
    positions = [0, 1, 7, 4095, 999_983, -12345, 131_071]
    frequencies = 10000.0 ** (-np.arange(pairs) / pairs)
    random = np.random.default_rng(pairs)
    factors = random.uniform(1, 32, pairs).astype(np.float32) if with_factors else None
    actual = rotated(target, positions, frequencies, factors=factors)
    angle = np.array(positions)[:, None] * frequencies / (1 if factors is None else factors)
    exact = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
    assert np.abs(actual - exact).max() <= 1e-7


@TARGETS
def test_rotations_near_quarter_turns_are_exact(target):
    """At and beside each multiple of 45 degrees, signs and values are right."""
    frequencies = np.array([np.pi / 4, np.pi / 4 + 1e-9, np.nextafter(np.pi / 4, 0)])
    positions = np.arange(-40, 40)
    angle = positions[:, None] * frequencies
    exact = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
    assert np.abs(rotated(target, positions, frequencies) - exact).max() <= 1e-7


def test_magnitude_multiplies_and_threads_change_nothing():
    """YaRN's factor applies to both halves; rows are the same alone."""
    positions, frequencies = [5, 900, 31, 2], np.array([1.0, 0.25])
    together = rotated(HOST, positions, frequencies, magnitude=1.25, threads=3)
    alone = [rotated(HOST, [p], frequencies, magnitude=1.25)[0] for p in positions]
    assert np.array_equal(together, alone)
    np.testing.assert_allclose(together, rotated(HOST, positions, frequencies) * 1.25, rtol=1e-6)


@TARGETS
@pytest.mark.parametrize("pairs", ["HALVES", "NEIGHBOURS"])
@pytest.mark.parametrize(
    ("rows", "heads", "head_dim", "dims"),
    [(1, 9, 64, 64), (17, 3, 64, 64), (2, 2, 80, 80), (3, 5, 80, 20), (2, 1, 96, 24)],
)
def test_heads_turn(target, pairs, rows, heads, head_dim, dims):
    """Both pairings, whole heads and parts of them, in place or not, for any threads."""
    random = np.random.default_rng(dims)
    x = random.standard_normal((rows, heads * head_dim)).astype(np.float32)
    frequencies = 10000.0 ** (-np.arange(dims // 2) * 2.0 / dims)
    turns = rotated(target, np.arange(rows) * 100, frequencies)
    apart = turned(target, x, turns, heads, pairs)
    np.testing.assert_allclose(apart, exact_turn(x, turns, heads, pairs), rtol=1e-5, atol=1e-6)
    assert np.array_equal(turned(target, x, turns, heads, pairs, threads=3, in_place=True), apart)
