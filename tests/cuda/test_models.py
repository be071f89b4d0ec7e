"""Golden models on a card: as near to the exact logits as they must be, however they are run."""

import numpy as np
import pytest

from corral.devices import registry
from corral.engine.engine import Engine
from corral.engine.runner import Runner
from corral.memory.ledger import Ledger
from corral.models.footprint import Limits
from golden import (
    FAMILIES,
    GOLDEN,
    HIGHEST_FLOAT_NMSE,
    TWINS,
    needs_golden,
    nmse,
    write_architecture,
)
from loaded import load_model

pytestmark = needs_golden


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("archs")


def score(path, golden, *, kv_type="f16", chunk=64):
    """Return the logits of a golden prompt, and those that are right."""
    with np.load(golden) as data:
        tokens, expected = data["tokens"].tolist(), data["logits"]
    with registry.open("cuda:0") as device:
        ledger = Ledger()
        limits = Limits(128, 2, kv_type, chunk, min(32, chunk))
        loaded = load_model(path, limits, device, ledger)
        planned = loaded.parts[0].plan.footprint()
        assert device.allocated_bytes + device.context_bytes == sum(planned.values())
        groups = loaded.design.kv.groups
        runner = Runner(loaded.parts, groups)
        logits = np.empty_like(expected)
        Engine(runner, groups, context=128).score(tokens, logits)
        loaded.close()
        assert (device.allocated_bytes, ledger.statistics()) == (0, ())
    return logits, expected


@pytest.mark.parametrize("chunk", [1, 7, 64, 96])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_float_weights(folder, name, dtype, chunk):
    """Float weights with float math, whole, in chunks and token by token."""
    path = write_architecture(name, folder, dtype)
    logits, expected = score(path, GOLDEN / "archs" / f"{name}.npz", chunk=chunk)
    assert nmse(logits, expected) <= HIGHEST_FLOAT_NMSE


@pytest.mark.parametrize("chunk", [1, 7, 64, 96])
@pytest.mark.parametrize("name", TWINS)
def test_quantized_weights(name, chunk):
    """The int8 activations cost no more than they may."""
    path, golden = GOLDEN / "archs" / f"{name}.Q4_K_M.gguf", f"{name}.Q4_K_M.npz"
    logits, expected = score(path, GOLDEN / "archs" / golden, chunk=chunk)
    assert nmse(logits, expected) <= TWINS[name]
