"""A model whose layers lie on several devices: the same answers, each byte where it was planned."""

import re
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest

import corral
import tiny
from corral.devices import registry
from corral.devices.reference.device import ReferenceDevice
from corral.engine.targets import Targets
from corral.errors import InvalidArgument, OutOfMemory
from corral.gguf import open_model
from corral.memory.ledger import Ledger
from corral.memory.traits import HOST
from corral.models.footprint import Limits, write_graph
from corral.models.split import design_split
from loaded import Loaded, load_parts, logits_together, prompt

LIMITS = Limits(context=96, parallel=3, chunk=16, outputs=4)
LAYERS = {"llama": 4, "gemma3": 7}


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """Return files with several layers, by family."""
    folder = tmp_path_factory.mktemp("deep")
    return {
        family: tiny.write(
            folder / f"{family}.gguf",
            family,
            table=tiny.tensors(family, count),
            block_count=count,
        )
        for family, count in LAYERS.items()
    }


def logits(path, devices, layers):
    """Return the logits of three answers whose tokens depend on every logit."""
    return logits_together(path, devices, layers, LIMITS, temperature=1.0)


@pytest.mark.parametrize(
    ("family", "runs"),
    [
        ("llama", (range(1), range(1, 4))),
        ("llama", tuple(range(n, n + 1) for n in range(4))),
        ("gemma3", (range(3), range(3, 7))),
    ],
    ids=["two", "a layer each", "windowed"],
)
def test_answers_are_those_of_the_whole(deep, family, runs):
    """Through the engine, in chunks and batches, to the bit."""
    with ExitStack() as stack:
        devices = [stack.enter_context(ReferenceDevice()) for _ in runs]
        whole = logits(deep[family], devices[:1], (range(LAYERS[family]),))
        assert np.array_equal(logits(deep[family], devices, runs), whole)


def test_one_of_them_may_be_another_kind_of_device(deep):
    """The reference computes the first layers, the CPU the others."""
    runs = (range(2), range(2, 4))
    with ReferenceDevice() as plain, registry.open("cpu", threads=1) as cpu:
        whole = logits(deep["llama"], (plain,), (range(4),))
        assert np.allclose(logits(deep["llama"], (plain, cpu), runs), whole, atol=0.02)


def test_each_device_holds_what_was_planned_for_it(deep):
    """By lifetime, to the byte; nothing twice, nothing elsewhere."""
    runs, ledger = (range(1), range(1, 4)), Ledger()
    with ReferenceDevice() as plain, registry.open("cpu", threads=1) as cpu:
        loaded = load_parts(deep["llama"], LIMITS, (plain, cpu), runs, ledger)
        with open_model(deep["llama"]) as file:
            design = write_graph(file.metadata, file.tensors, LIMITS)
        plans = design_split(design, (plain.traits, cpu.traits), runs).plans
        for device, plan in zip((plain, cpu), plans, strict=True):
            held = {e.lifetime: e.allocated_bytes for e in ledger.statistics() if _on(e, device)}
            assert held == plan.footprint()
            assert device.allocated_bytes == sum(held.values())
        assert loaded.layers == runs
        loaded.close()
        assert ledger.statistics() == ()


def test_a_hidden_state_comes_from_the_last_device(deep):
    """It is read where the logits are, and is what one device alone gives."""
    limits = replace(LIMITS, embeddings=True)
    found = []
    for runs in ((range(4),), (range(1), range(1, 4))):
        with ExitStack() as stack:
            devices = [stack.enter_context(ReferenceDevice()) for _ in runs]
            loaded = Loaded(deep["llama"], devices, limits, layers=runs)
            stack.callback(loaded.close)
            loaded.engine.submit(prompt(40), sampler=None, max_tokens=0, wants_vector=True)
            emissions = []
            while loaded.engine.has_work:
                emissions += loaded.engine.step()
            (emission,) = emissions
            found.append(emission.vector)
    assert found[0].shape == (tiny.WIDTH,)
    assert np.array_equal(*found)


def _on(entry, device):
    return entry.device == device.name


def test_nothing_is_left_if_the_last_device_is_too_small(deep, monkeypatch):
    """What the first had reserved is given back; nothing was allocated anywhere."""
    monkeypatch.setattr("corral.devices.cpu.device.host_memory", lambda: (1 << 30, 1 << 12))
    ledger = Ledger()
    with ReferenceDevice() as plain, registry.open("cpu", threads=1) as cpu:
        made = []
        monkeypatch.setattr(plain, "allocate", lambda *given: made.append(given))
        with pytest.raises(OutOfMemory, match="on cpu"):
            load_parts(deep["llama"], LIMITS, (plain, cpu), (range(1), range(1, 4)), ledger)
        assert (made, ledger.statistics()) == ([], ())


def test_nothing_is_left_if_the_last_device_refuses(deep, monkeypatch):
    """The first part's buffers and backend go too."""
    ledger = Ledger()
    with ReferenceDevice() as plain, registry.open("cpu", threads=1) as cpu:

        def refuse(size, lifetime):
            raise OutOfMemory("none left")

        monkeypatch.setattr(cpu, "allocate", refuse)
        with pytest.raises(OutOfMemory, match="none left"):
            load_parts(deep["llama"], LIMITS, (plain, cpu), (range(1), range(1, 4)), ledger)
        assert (plain.allocated_bytes, cpu.allocated_bytes, ledger.statistics()) == (0, 0, ())


def test_a_model_lies_where_its_user_said(deep):
    """Names, shares, memory by device, and the plan that was shown before."""
    options = {"device": ["reference", "cpu"], "split": [1, 3], "context": 64}
    with corral.Model.load(deep["llama"], threads=1, **options) as model:
        assert model.device == "reference,cpu"
        text = "".join(model.generate([1, 2, 3], max_tokens=3, ignore_eos=True))
        held = {(row.device, row.lifetime): row.allocated_bytes for row in model.memory().rows}
    assert isinstance(text, str)
    planned = corral.plan(deep["llama"], **options)
    layers = [part.layers for part in planned.devices if part.device != HOST]
    assert layers == [(0, 0), (1, 3)]
    for name in ("weights", "state"):
        for part in planned.devices:
            (row,) = (row for row in part.rows if row.lifetime == name)
            assert held[part.device, name] == row.bytes > 0


@pytest.mark.parametrize(
    ("gpu_layers", "expected"),
    [(0, [(0, 3)]), (1, [(0, 2), (3, 3)]), (3, [(0, 0), (1, 3)]), (4, [(0, 3)]), (99, [(0, 3)])],
)
def test_the_last_layers_are_on_the_card(deep, gpu_layers, expected):
    """The others are on the CPU; a device without layers is not planned for."""
    planned = corral.plan(deep["llama"], device="cuda:0", gpu_layers=gpu_layers, context=64)
    parts = [part for part in planned.devices if part.device != HOST]
    names = ["cpu", "cuda:0"] if len(parts) == 2 else ["cpu" if gpu_layers == 0 else "cuda:0"]
    assert [part.device for part in parts] == names
    assert [part.layers for part in parts] == expected


def test_cards_share_their_layers(deep):
    """With a number of layers on cards, the split is that of the cards."""
    planned = corral.plan(
        deep["gemma3"], device=["cuda:0", "cuda:1"], split=[1, 2], gpu_layers=3, context=64
    )
    parts = [part for part in planned.devices if part.device != HOST]
    assert [(part.device, part.layers) for part in parts] == [
        ("cpu", (0, 3)),
        ("cuda:0", (4, 4)),
        ("cuda:1", (5, 6)),
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"device": ["cpu", "cpu"]}, "cpu is named twice"),
        ({"device": []}, "device is a list of 0"),
        ({"device": ["cpu", "reference"], "split": [1]}, "split has 1 numbers, there are 2"),
        ({"device": ["cpu", "reference"], "split": [1, 0]}, "split[1] is 0"),
        ({"device": "cpu", "gpu_layers": 2}, "the device is cpu: name a card"),
        ({"device": "cuda:0", "gpu_layers": -1}, "gpu_layers is -1"),
        ({"device": "cuda:0", "gpu_layers": "all"}, "gpu_layers is 'all'"),
    ],
)
def test_wishes_that_cannot_be(given, words):
    """Each is refused before anything is opened, with what is wrong."""
    with pytest.raises(InvalidArgument, match=re.escape(words)):
        Targets.of(given["device"], given.get("split"), given.get("gpu_layers"))
    with pytest.raises(InvalidArgument, match=re.escape(words)):
        corral.Model.load("nowhere.gguf", **given)


def test_more_devices_than_layers(deep):
    """There is a layer for each, or the load is refused."""
    with pytest.raises(InvalidArgument, match="4 layers, which cannot be split over 5"):
        corral.plan(deep["llama"], device=[f"cuda:{n}" for n in range(5)])
