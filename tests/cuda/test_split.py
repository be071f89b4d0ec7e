"""Layers on a card and beside it: two backends on one card, the CPU for the first layers."""

from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest

import corral
import tiny
from corral.devices import registry
from corral.models.footprint import Limits
from corral.quant.types import DType
from golden import nmse
from loaded import Loaded, logits_together, prompt

LIMITS = Limits(context=128, parallel=3, chunk=16, outputs=4)
LAYERS = {"llama": 4, "gemma3": 7}
HIGHEST_NMSE = 1e-4
"""Of one device against another: of float weights, with a cache of 16 bits."""


def files(folder, dtype):
    """Return files with several layers, by family."""
    return {
        family: tiny.write(
            folder / f"{family}.{dtype.name}.gguf",
            family,
            table=tiny.tensors(family, count, dtype),
            block_count=count,
        )
        for family, count in LAYERS.items()
    }


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """Return files of quantized weights."""
    return files(tmp_path_factory.mktemp("deep"), DType.Q8_0)


@pytest.fixture(scope="module")
def deep_floats(tmp_path_factory):
    """Return files of float weights, in which devices differ by rounding alone."""
    return files(tmp_path_factory.mktemp("deep"), DType.F16)


def opened(stack, *names):
    """Open devices; a card may be named twice, and is two then, in one context."""
    return tuple(stack.enter_context(registry.open(name)) for name in names)


@pytest.mark.parametrize(
    ("family", "runs"),
    [
        ("llama", (range(1), range(1, 4))),
        ("llama", tuple(range(n, n + 1) for n in range(4))),
        ("gemma3", (range(3), range(3, 7))),
    ],
    ids=["two", "a layer each", "windowed"],
)
def test_two_backends_on_one_card_compute_what_one_does(deep, family, runs):
    """To the bit, in chunks and batches; rows cross on events."""
    with ExitStack() as stack:
        devices = opened(stack, *["cuda:0"] * len(runs))
        whole = logits_together(deep[family], devices[:1], (range(LAYERS[family]),), LIMITS)
        assert np.array_equal(logits_together(deep[family], devices, runs, LIMITS), whole)


@pytest.mark.parametrize("family", LAYERS)
def test_the_first_layers_may_be_on_the_cpu(deep_floats, family):
    """As near to the card's own logits as two devices may be.

    One token is generated of each prompt, since rounding may decide a near tie otherwise.
    """
    layers = LAYERS[family]
    with ExitStack() as stack:
        cpu, card = opened(stack, "cpu", "cuda:0")
        path, parts = deep_floats[family], (range(2), range(2, layers))
        whole = logits_together(path, (card,), (range(layers),), LIMITS, max_tokens=1)
        found = logits_together(path, (cpu, card), parts, LIMITS, max_tokens=1)
        assert nmse(found, whole) <= HIGHEST_NMSE


@pytest.mark.parametrize("gpu_layers", [0, 1, 3, 99])
def test_bytes_are_where_the_plan_says(deep, gpu_layers):
    """With any number of layers on the card, by device and lifetime."""
    options = {"device": "cuda:0", "gpu_layers": gpu_layers, "context": 128}
    planned = {
        (part.device, row.lifetime): row.bytes
        for part in corral.plan(deep["llama"], **options).devices
        for row in part.rows
    }
    with corral.Model.load(deep["llama"], **options) as model:
        answer = model.generate([1, 2, 3], max_tokens=5, ignore_eos=True)
        assert isinstance("".join(answer), str)
        assert len(answer.tokens) == 5
        held = {(row.device, row.lifetime): row.allocated_bytes for row in model.memory().rows}
    assert held
    assert {key: planned.get(key) for key in held} == held


def test_a_hidden_state_is_that_of_the_cpu(deep_floats):
    """Embeddings come from the card, whole or from its last part."""
    limits = replace(LIMITS, embeddings=True)
    found = {}
    with ExitStack() as stack:
        cpu, card, again = opened(stack, "cpu", "cuda:0", "cuda:0")
        for name, devices, runs in (
            ("cpu", (cpu,), (range(4),)),
            ("card", (card,), (range(4),)),
            ("parts", (card, again), (range(1), range(1, 4))),
        ):
            loaded = Loaded(deep_floats["llama"], devices, limits, layers=runs)
            loaded.engine.submit(prompt(40), sampler=None, max_tokens=0, wants_vector=True)
            emissions = []
            while loaded.engine.has_work:
                emissions += loaded.engine.step()
            loaded.close()
            (emission,) = emissions
            found[name] = emission.vector
    assert found["card"].shape == (tiny.WIDTH,)
    assert np.array_equal(found["card"], found["parts"])
    assert nmse(found["card"][None], found["cpu"][None]) <= HIGHEST_NMSE
