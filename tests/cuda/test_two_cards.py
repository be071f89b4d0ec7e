"""One model over two cards, and the life of two contexts in one process. Skips with one card."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import corral
import tiny
from card_sight import Card, visible_cards
from corral.devices import registry
from corral.devices.nvml import process_nvml
from corral.models.footprint import Limits
from corral.quant.types import DType
from golden import FAMILIES, GOLDEN, HIGHEST_FLOAT_NMSE, needs_golden, nmse, write_architecture
from loaded import logits_together
from running_fleet import fleets
from served import until
from smollm2 import HIGHEST_KL, cases, demo_path, mean_kl, needs_demo
from source_tree import SOURCE

MIB = 1 << 20
CARDS = ("cuda:0", "cuda:1")
LAYERS = 4
UNPLANNED = 12 * MIB
"""What starting the driver, kernels and graphs take at most on a card, which no plan counts yet."""


@pytest.fixture(scope="module", autouse=True)
def uuids(card):
    """Return the UUIDs of two cards, or skip."""
    found = {device.name: device.uuid for device in corral.devices()}
    if any(name not in found for name in CARDS):
        pytest.skip(f"needs two NVIDIA cards; there are {len(process_nvml().gpus())}")
    return tuple(found[name] for name in CARDS)


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """Return a file with several layers."""
    path = tmp_path_factory.mktemp("deep") / "llama.gguf"
    table = tiny.tensors("llama", LAYERS, DType.Q8_0)
    return tiny.write(path, table=table, block_count=LAYERS)


def test_two_cards_compute_what_one_does(deep):
    """To the bit, in chunks and batches; rows cross from card to card."""
    limits = Limits(context=128, parallel=3, chunk=16, outputs=4)

    with registry.open(CARDS[0]) as first, registry.open(CARDS[1]) as second:
        whole = logits_together(deep, (first,), (range(LAYERS),), limits)
        for cut in range(1, LAYERS):
            runs = (range(cut), range(cut, LAYERS))
            parts = logits_together(deep, (first, second), runs, limits)
            assert np.array_equal(parts, whole)


@needs_golden
@pytest.mark.parametrize("name", FAMILIES)
def test_golden_models(tmp_path, name):
    """As near to the exact logits as on one card."""
    path = write_architecture(name, tmp_path, "f16")
    with np.load(GOLDEN / "archs" / f"{name}.npz") as data:
        tokens, expected = data["tokens"].tolist(), data["logits"]
    with corral.Model.load(path, device=CARDS, context=128) as model:
        assert nmse(model.logits(tokens), expected) <= HIGHEST_FLOAT_NMSE


@needs_golden
@needs_demo
def test_the_demo_model():
    """Its distributions are as near to the exact ones as they must be."""
    with corral.Model.load(demo_path(), device=CARDS, context=512) as model:
        assert model.device == ",".join(CARDS)
        found = {case.name: mean_kl(case, model.logits(case.all_tokens)) for case in cases()}
    assert all(found[name] <= highest for name, highest in HIGHEST_KL.items()), found


PRELUDE = """
import json, sys, threading, time
sys.path.insert(0, {source!r})
import corral
from corral.devices.cuda.contexts import process_contexts
from corral.devices.nvml import process_nvml
from corral.errors import CorralError
nvml, uuids, out = process_nvml(), {uuids!r}, {{}}
def used():
    return [nvml.memory(uuid).used_bytes for uuid in uuids]
def since(start):
    return [now - then for now, then in zip(used(), start)]
before = used()
contexts = process_contexts()
by_uuid = {{context.facts.uuid: context for context in contexts}}
one, two = (by_uuid[uuid] for uuid in uuids)
driver = contexts.driver
loaded = used()
def memory(context, size=4 << 20):
    return context.own("memory", lambda: driver.allocate(size), driver.free)
"""


def run(uuids, code, seconds=120):
    """Run code in a fresh process and return what it put into `out`."""
    script = PRELUDE.format(source=str(SOURCE), uuids=uuids) + code + "\nprint(json.dumps(out))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_each_card_holds_what_was_planned_for_it(uuids, deep):
    """By lifetime to the byte, by NVML nearly so; after the exit both are as they were."""
    nvml = process_nvml()
    before = [nvml.memory(uuid).used_bytes for uuid in uuids]
    out = run(
        uuids,
        f"""
with corral.Model.load({str(deep)!r}, device={CARDS!r}, split=(3, 1), context=128) as model:
    out["rows"] = [[r.device, r.lifetime, r.planned_bytes, r.allocated_bytes]
                   for r in model.memory().rows]
    for _ in model.generate([1, 2, 3], max_tokens=20, ignore_eos=True):
        pass
    out["held"] = since(before)
""",
    )
    assert all(planned == allocated for _, _, planned, allocated in out["rows"])
    for name, held in zip(CARDS, out["held"], strict=True):
        on_card = sum(size for device, _, _, size in out["rows"] if device == name)
        assert on_card > 0
        assert abs(held - on_card) <= on_card / 100 + 2 * MIB + UNPLANNED
    assert [nvml.memory(uuid).used_bytes for uuid in uuids] == before


def test_reading_one_leaves_nothing_beside_the_context_of_the_other(uuids):
    """Whichever is held; nor does it disturb what is held."""
    out = run(
        uuids,
        """
out["left"], out["active"] = [], []
for held, other in ((one, two), (two, one)):
    owned = memory(held)
    start = used()
    for _ in range(20):
        other.read()
        corral.devices()
    out["left"].append(since(start))
    out["active"].append(driver.primary_is_active(other.facts.ordinal))
    with held.current():
        driver.fill(owned.handle, 1 << 20)
    owned.close()
out["end"] = since(loaded)
""",
    )
    assert out == {"left": [[0, 0], [0, 0]], "active": [False, False], "end": [0, 0]}


def test_pinned_memory_is_of_the_card_it_was_asked_of(uuids):
    """Even where the asking thread works on the other card."""
    out = run(
        uuids,
        """
keep = [memory(one), memory(two)]
api, found = driver._api, []
def context_of(address):
    kind = api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_CONTEXT
    return int(api.cuPointerGetAttribute(kind, address)[1])
for asked, current in ((one, two), (two, one)):
    with asked.current():
        expected = int(api.cuCtxGetCurrent()[1])
    with current.current():
        pinned = asked.own("pinned memory", lambda: driver.allocate_host(1 << 20), driver.free_host)
        found.append(context_of(pinned.handle) == expected)
    pinned.close()
for each in keep: each.close()
out["found"], out["end"] = found, since(loaded)
""",
    )
    assert out == {"found": [True, True], "end": [0, 0]}


RACE = """
stop, broken, counts = time.monotonic() + {seconds}, [], [0] * 8
def work(number):
    context = (one, two)[number // 2 % 2]
    while time.monotonic() < stop:
        try:
            if number % 2:
                context.read()
            else:
                owned = memory(context, (number + 2) << 20)
                with context.current():
                    driver.fill(owned.handle, 1 << 20)
                owned.close()
            counts[number] += 1
        except CorralError as error:
            broken.append(str(error))
threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
out["broken"], out["counts"], out["end"] = broken[:3], counts, since(loaded)
"""


def test_threads_race_on_both_and_lose_nothing(uuids, request):
    """Eight threads read, create and destroy, while contexts of both begin and end."""
    seconds = 30 if request.config.getoption("--soak") else 3
    out = run(uuids, RACE.format(seconds=seconds), seconds + 120)
    assert (out["broken"], out["end"]) == ([], [0, 0])
    assert min(out["counts"]) > 0


CONFIG = """
[server]
models = ['{folder}']
min_residency = 0
[models.'*']
context = 128
[models.first]
device = 'cuda:0'
[models.second]
device = 'cuda:1'
[models.both]
device = ['cuda:0', 'cuda:1']
"""


def test_a_worker_sees_its_cards_and_no_other(uuids, deep, tmp_path):
    """By UUID, in the order of their layers; when all are unloaded both cards are as they were."""
    names = {"first": uuids[:1], "second": uuids[1:], "both": uuids}
    for name in names:
        (tmp_path / f"{name}.gguf").hardlink_to(deep)
    (tmp_path / "corral.toml").write_text(CONFIG.format(folder=tmp_path))
    cards = [Card(name) for name in CARDS]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with fleets(environment) as start:
        before = [card.used_bytes() for card in cards]
        server = start("--config", tmp_path / "corral.toml")
        for name, expected in names.items():
            assert server.complete(name).status_code == 200
            (there,) = [one for one in server.fleet()["models"] if one["name"] == name]
            assert visible_cards(there["pid"]) == expected
            server.post("/models/unload", model=name)
            until(lambda: not any(one["pid"] for one in server.fleet()["models"]))
        assert [card.used_bytes() for card in cards] == before
