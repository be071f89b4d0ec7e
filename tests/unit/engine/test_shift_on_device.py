"""Shifted contexts with real models: logits are those of what is left, as if it had stood there."""

import numpy as np
import pytest

import tiny
from corral.devices import registry
from corral.devices.null.device import NullDevice
from corral.errors import InvalidArgument
from corral.models.footprint import Limits
from golden import nmse
from loaded import Loaded, prompt

FAMILIES = pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
COMPUTING = pytest.mark.parametrize("device", ["reference", "cpu"])
TOLERANCES = {"f32": 1e-9, "f16": 1e-5, "bf16": 1e-3}
"""Of logits beside those of the same tokens computed afresh; keys were rounded twice or more."""


@pytest.fixture(scope="module")
def shallow(tmp_path_factory):
    """Return the file of each family with one layer, whose keys depend on their own token only.

    What is left after a shift is then what computing it afresh would give.
    """
    folder = tmp_path_factory.mktemp("shallow")
    return {
        family: tiny.write(
            folder / f"{family}.gguf", family, table=tiny.tensors(family, 1), block_count=1
        )
        for family in ("llama", "qwen2", "qwen3")
    }


def next_logits(loaded, tokens):
    """Return the logits behind some tokens, computed afresh."""
    into = np.empty((len(tokens), tiny.VOCABULARY), np.float32)
    loaded.engine.score(tokens, into)
    return into[-1]


@COMPUTING
@FAMILIES
@pytest.mark.parametrize("kv_type", TOLERANCES)
def test_what_is_left_is_as_if_it_had_stood_there(load, shallow, family, device, kv_type):
    """Over several shifts, beside another sequence, with a kept beginning."""
    loaded = load(shallow[family], device=registry.open(device), keep=5, kv_type=kv_type)
    seen, finish = [], loaded.runner.finish

    def recorded():
        logits = finish()
        seen.append(logits.copy())
        return logits

    loaded.runner.finish = recorded
    sequence, other = loaded.submit(prompt(90), 200), loaded.submit(prompt(60, seed=1), 150)
    worst, checked = 0.0, 0
    while sequence.finish_reason is None:
        seen.clear()
        had = list(sequence.tokens)
        emissions = loaded.engine.step()
        if sequence.num_dropped and other.finish_reason is not None and len(had) % 7 == 0:
            assert [one.sequence for one in emissions] == [sequence]
            row = seen[-1][0]
            held = sequence.tokens[:-1]
            worst = max(worst, nmse(row, next_logits(loaded, held)))
            checked += 1
    assert sequence.num_dropped >= 2 * 32
    assert checked > 5
    assert worst <= TOLERANCES[kv_type]
    assert loaded.is_empty


@FAMILIES
def test_devices_go_on_alike(load, family):
    """The CPU answers what the reference does, many contexts long, of several layers."""
    answers = []
    for device in ("reference", "cpu"):
        loaded = load(family, device=registry.open(device), keep=0, kv_type="f32")
        sequence = loaded.submit(prompt(40), 300, temperature=0)
        answer = []
        while sequence.finish_reason is None:
            answer += [emission.token for emission in loaded.engine.step()]
        answers.append(answer)
        assert sequence.num_dropped >= 192
    assert answers[0] == answers[1]


def test_layers_on_several_devices(load, paths):
    """Each device turns the keys of its own layers; the answer is that of one device."""
    whole = load("llama", device=registry.open("cpu"), keep=0)
    expected = whole.answer(prompt(40), 150, temperature=0)
    limits = Limits(128, 3, chunk=32, context_shift=True)
    with registry.open("cpu") as first, registry.open("cpu") as second:
        runs = (range(1), range(1, 2))
        parts = Loaded(paths["llama"], (first, second), limits, layers=runs, keep=0)
        assert parts.answer(prompt(40), 150, temperature=0) == expected
        parts.close()


def test_what_is_planned_is_allocated(load):
    """The records of the second program are counted before they exist, and nothing else is added.

    `Loaded` checks that the ledger agrees.
    """
    plain = load("llama", device=registry.open("cpu")).ledger.statistics()
    shifting = load("llama", device=registry.open("cpu"), keep=0).ledger.statistics()
    without, allocated = (sum(e.allocated_bytes for e in one) for one in (plain, shifting))
    assert without <= allocated <= without + (64 << 10)
    assert sum(entry.planned_bytes for entry in shifting) == allocated


def test_windows_are_refused_before_anything_is_loaded(load):
    """The reason says what it is about the model, and nothing is left on the device."""
    with pytest.raises(InvalidArgument, match="window of 20 tokens"):
        load("gemma3", keep=0)


def test_null_device_counts_what_moves(paths):
    """Devices that compute nothing shift too."""
    with registry.open("cpu") as cpu, NullDevice(cpu.traits) as device:
        limits = Limits(128, 1, chunk=32, context_shift=True)
        loaded = Loaded(paths["llama"], device, limits, keep=0)
        backend = loaded.loaded.parts[0].backend
        sequence = loaded.submit(prompt(120), 30, temperature=0)
        while not sequence.num_dropped:
            before = backend.statistics()
            loaded.engine.step()
        after = backend.statistics()
        assert after.runs == before.runs + 2
        loaded.finish(sequence)
        loaded.close()
