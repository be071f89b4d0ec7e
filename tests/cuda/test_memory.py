"""A model on a real card: what it holds is what was planned, from the load to the exit.

Each case is a process of its own, which had not touched the card.
"""

import json
import subprocess
import sys

import pytest

import tiny
from corral.devices.nvml import process_nvml
from corral.quant.types import DType
from source_tree import SOURCE

MIB = 1 << 20
UNPLANNED = 12 * MIB
"""What starting the driver, kernels and graphs take at most, which no plan counts yet."""
PRELUDE = """
import json, sys
sys.path.insert(0, {source!r})
import numpy as np
import corral
from corral.devices.nvml import process_nvml
nvml = process_nvml()
uuid = next(device.uuid for device in corral.devices() if device.name == "cuda:0")
def used():
    return nvml.memory(uuid).used_bytes
before, path, settings = used(), {path!r}, dict(device="cuda:0", context=256, parallel=4)
greedy = corral.SamplingParams(temperature=0.0)
random = np.random.default_rng(0)
def request(prompt, count, sampling=greedy):
    tokens = random.integers(0, model.vocabulary_size, prompt).tolist()
    return model.generate(tokens, max_tokens=count, ignore_eos=True, sampling=sampling)
def finish(*answers):
    for answer in answers:
        for _ in answer:
            pass
def held():
    return [model._opened.allocated_bytes, used()]
out = {{}}
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Return the file of a small model."""
    path = tmp_path_factory.mktemp("memory") / "tiny.gguf"
    return tiny.write(path, table=tiny.tensors(dtype=DType.Q8_0))


def run(path, code):
    """Run code in a fresh process and return what it put into `out`."""
    script = PRELUDE.format(source=str(SOURCE), path=str(path)) + code + "\nprint(json.dumps(out))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_what_is_planned_is_allocated_and_held(path):
    """In every lifetime to the byte, and on the card nearly so."""
    out = run(
        path,
        """
with corral.Model.load(path, **settings) as model:
    rows = model.memory().rows
    out["held"] = used() - before
    finish(request(20, 4))
    assert model.memory().rows == rows
out["rows"] = [[r.device, r.lifetime, r.planned_bytes, r.allocated_bytes] for r in rows]
plan = corral.plan(path, **settings)
out["plan"] = [[p.device, row.lifetime, row.bytes] for p in plan.devices for row in p.rows]
""",
    )
    assert all(planned == allocated for _, _, planned, allocated in out["rows"])
    sizes = {(device, life): size for device, life, _, size in out["rows"] if size}
    assert sizes == {(device, life): size for device, life, size in out["plan"] if size}
    on_card = sum(size for (device, _), size in sizes.items() if device == "cuda:0")
    assert abs(out["held"] - on_card) <= on_card / 100 + 2 * MIB + UNPLANNED


@pytest.mark.parametrize("sampling", ["greedy", "corral.SamplingParams(seed=1)"])
def test_steps_take_nothing(path, sampling):
    """Over 300 of them neither the buffers nor the card change by a byte."""
    out = run(
        path,
        f"""
samples = []
with corral.Model.load(path, **settings) as model:
    finish(request(1, 4, {sampling}))
    for _ in range(2):
        for number, _ in enumerate(request(1, 150, {sampling})):
            if number % 10 == 0:
                samples.append(held())
    samples.append(held())
out["samples"] = samples
""",
    )
    assert len(out["samples"]) > 20
    assert all(sample == out["samples"][0] for sample in out["samples"])


def test_requests_take_nothing(path):
    """Over 20 of mixed lengths, up to four at once, some of them given up."""
    out = run(
        path,
        """
samples = []
with corral.Model.load(path, **settings) as model:
    finish(request(1, 4))
    for _ in range(5):
        answers = [request(int(random.integers(1, 200)), int(random.integers(1, 50)))
                   for _ in range(4)]
        next(answers[0], None)
        answers[1].cancel()
        finish(*answers)
        samples.append(held())
out["samples"] = samples
""",
    )
    assert all(sample == out["samples"][0] for sample in out["samples"])


def test_only_the_context_stays_after_close(path):
    """Until the process ends; a second load finds the same room, and leaves the same."""
    out = run(
        path,
        """
closed = []
for _ in range(3):
    with corral.Model.load(path, **settings) as model:
        finish(request(40, 4))
        context = model._opened.devices[0].context_bytes
    closed.append(used() - before)
out["closed"], out["context"] = closed, context
""",
    )
    assert abs(out["closed"][0] - out["context"]) <= 2 * MIB + UNPLANNED
    assert all(size == out["closed"][0] for size in out["closed"])


@pytest.mark.parametrize(
    "end", ["model.close()", "pass", "import os; os._exit(0)", "raise SystemExit(0)"]
)
def test_nothing_stays_after_exit(card, path, end):
    """However the process ends: closed, left open, or cut off."""
    nvml = process_nvml()
    before = nvml.memory(card.uuid).used_bytes
    code = f"""
model = corral.Model.load(path, **settings)
finish(request(40, 4))
print(json.dumps([used() - before]), flush=True)
{end}
"""
    script = PRELUDE.format(source=str(SOURCE), path=str(path)) + code
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])[0] > 0
    assert nvml.memory(card.uuid).used_bytes == before
