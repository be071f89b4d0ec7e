"""What benchmarks/gpu.py reckons with: figures, floors, tables, verdicts, children with a limit."""

import importlib
import sys
import time
from pathlib import Path

import pytest

import tiny
from corral.devices.cuda.instance import Instance
from corral.devices.cuda.launch import Launch
from corral.devices.cuda.traits import cuda_traits
from corral.models.footprint import Limits, design_model
from corral.quant.types import DType

FOLDER = Path(__file__).parents[3] / "benchmarks"
MODULES = (
    *("gpu_figures", "gpu_passes", "gpu_session", "gpu_parts", "gpu_memory", "gpu_child"),
    *("machine", "startup"),
)


@pytest.fixture
def load(monkeypatch):
    """Import modules of the benchmarks, for this test only."""
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def figures(load):
    return load("gpu_figures")


@pytest.fixture
def passes(load):
    return load("gpu_passes")


@pytest.fixture
def plan():
    """Plan a tiny model for a card."""
    metadata, infos = tiny.header(dtype=DType.Q8_0)
    return design_model(metadata, infos, Limits(64, 2), cuda_traits(0)).plan


def test_more_is_better_of_rates_and_less_of_times(figures):
    """Ratios are how many times better than llama.cpp; goals are reached accordingly."""
    rate, seconds = figures.Figure(llama_cpp=100, goal=200), figures.Figure("s", 2.0, 1.5)
    assert (rate.ratio(250), seconds.ratio(1.0)) == (2.5, 2.0)
    assert (rate.is_reached(199), rate.is_reached(200)) == (False, True)
    assert (seconds.is_reached(1.6), seconds.is_reached(1.5)) == (False, True)
    assert figures.Figure().ratio(1) is None
    assert figures.Figure().is_reached(1) is None


def test_the_median_of_medians_counts(figures):
    """Each process counts once, however often it measured; those without the value do not."""
    replies = [{"decode": [1.0, 3.0, 100.0]}, {"decode": 5.0}, {"decode": []}, {}]
    (result,) = figures.gathered("decode", replies, "decode", floor=8.0)
    assert (result.values, result.median) == ((3.0, 5.0), 4.0)
    assert result.row()["ratio"] == 4 / 276
    assert "50% of the floor" in result.line()
    assert "goal 550 missed" in result.line()
    assert figures.gathered("decode", [{}], "decode") == []


def test_the_tighter_floor_holds(figures):
    """A step takes as long as its bytes or its operations do, whichever is longer."""
    assert figures.floor_s(4.3e12, 0) == figures.floor_s(0, 790e12) == 1.0
    assert figures.floor_s(4.3e12, 1580e12) == 2.0


def test_tables_list_the_slowest_first(figures):
    """A kernel without bytes has no floor."""
    row = {"launches": 2, "alone_us": 4.0, "floor_us": 1.0}
    rows = [
        row | {"kernel": "quick", "left_out_us": 1.0, "floor_us": 0.0},
        row | {"kernel": "slow", "left_out_us": 5.0},
    ]
    head, first, second = figures.kernel_lines(rows, 10.0)
    assert first.split() == ["slow", "2", "4.0", "2.00", "5.0", "50.0%", "25%"]
    assert second.split() == ["quick", "2", "4.0", "2.00", "1.0", "10.0%"]
    assert len({len(line) for line in (head, first, second)}) == 1


def test_the_card_may_differ_by_what_is_allowed(figures):
    """One percent and 2 MiB, either way."""
    planned = 100 * figures.MIB
    assert figures.account_is_close(103 * figures.MIB, planned)
    assert figures.account_is_close(97 * figures.MIB, planned)
    assert not figures.account_is_close(103 * figures.MIB + 1, planned)


def test_json_is_rounded(figures):
    """Five digits tell all that a figure means; whole numbers stay."""
    assert figures.rounded({"a": (1.23456789, 12_345_678)}) == {"a": [1.2346, 12_345_678]}


def test_inputs_of_a_batch(passes):
    """Each sequence has its rows, blocks and one output; positions begin behind its context."""
    inputs = passes.inputs_of(passes.Batch(2, rows=3, depth=40), ["tables"], 2, 10)
    assert inputs["positions"].tolist() == [40, 41, 42] * 2
    assert inputs["sequences"].tolist() == [0, 0, 0, 1, 1, 1]
    assert inputs["output_rows"].tolist() == [2, 5]
    assert inputs["tables"].tolist() == [[0, 1], [2, 3]]
    assert len(inputs["tokens"]) == 6
    assert 0 <= inputs["tokens"].min() <= inputs["tokens"].max() < 10
    assert {array.dtype.name for array in inputs.values()} == {"int32"}


def test_the_least_work_of_a_step(passes, plan):
    """Every matrix but the embeddings once, two operations a weight, and the cache."""
    slots = plan.weights.slots
    matrices = [s for name, s in slots.items() if s.form.layout and "embd" not in name]
    weights = sum(slot.form.size_bytes for slot in matrices)
    elements = sum(slot.tensor.rows * slot.tensor.columns for slot in matrices)
    token_bytes = tiny.LAYERS["llama"] * 2 * tiny.KV_HEADS * tiny.HEAD_DIM * 2
    attention = tiny.LAYERS["llama"] * 4 * tiny.HEADS * tiny.HEAD_DIM
    bytes_read, flops = passes.least_work(plan, passes.Batch(2, depth=9))
    assert bytes_read == weights + 2 * 10 * token_bytes
    assert flops == 2 * 2 * elements + 2 * 10 * attention


def test_rows_without_logits_are_left_early(passes, plan):
    """In a prompt, what follows attention in the last layer counts once a sequence."""
    last = ("output.weight", *(f"blk.1.{n}.weight" for n in ("ffn_gate", "ffn_up", "ffn_down")))
    tensors = [plan.weights.slots[name].tensor for name in last]
    size = sum(tensor.rows * tensor.columns for tensor in tensors)
    _, one = passes.least_work(plan, passes.Batch(1))
    _, four = passes.least_work(plan, passes.Batch(1, rows=4))
    attention = tiny.LAYERS["llama"] * 4 * tiny.HEADS * tiny.HEAD_DIM
    assert four - 10 * attention == 4 * (one - attention) - 3 * 2 * size


def test_launches_are_named_by_what_they_read(passes, plan):
    """Matrices by their short names; products of two factors by their size."""
    names, sizes = passes.matrix_names(plan, 1000)
    slots = plan.weights.slots
    addresses = {n: 1000 + slots[f"blk.1.ffn_{n}.weight"].offset for n in ("gate", "up")}

    def launch(**fields):
        return Launch(Instance.of("stem", "kernel", 8), (1, 1, 1), (1, 1, 1), fields)

    gated = launch(weights0=addresses["gate"], weights1=addresses["up"], weights2=0)
    assert passes.label(gated, names) == "kernel ffn_gate + ffn_up"
    assert passes.label(launch(weights=7, tiles=2, columns=96), names) == "kernel 96 × 128"
    assert passes.label(launch(x=1), names) == "kernel"
    work = passes.group_work([gated], sizes, plan, passes.Batch(1))
    assert work["bytes"] == sum(slots[f"blk.1.ffn_{n}.weight"].form.size_bytes for n in addresses)


def test_verdicts_about_memory(load):
    """What was kept is told apart from what was not."""
    parts, still = load("gpu_parts"), {"samples": 3, "buffers_bytes": 0, "card_bytes": 0}
    reply = {
        "ledger_is_exact": True,
        "plan_is_exact": True,
        "rows_stay": True,
        "held_on_card_bytes": 1000,
        "planned_on_card_bytes": 1000,
        "decode": still,
        "requests": still,
        "context_bytes": 500,
        "held_after_close_bytes": 500,
    }
    assert all(parts.memory_verdicts(reply, 0).values())
    grown = reply | {"requests": still | {"card_bytes": 1}}
    assert [n for n, so in parts.memory_verdicts(grown, 1).items() if not so] == [
        "constant over requests",
        "nothing after exit",
    ]


def test_every_part_has_its_measurements(load):
    """What parts ask for by name is there."""
    child = dict(load("gpu_child").measurements())
    assert set(child) >= {"single", "deep", "batches", "kernels", "start", "stages", "memory"}
    assert all(part.__doc__ for part in load("gpu_parts").PARTS.values())


def run(load, code, tmp_path, limit_s=30.0):
    session = load("gpu_session")
    return session, lambda: session.run_child([sys.executable, "-c", code], tmp_path, limit_s)


def test_a_child_answers_in_its_last_line(load, tmp_path):
    """What it says before is not the answer; the cache is the one it was given."""
    code = "import os; print('noise'); print('{\"cache\": \"' + os.environ['CORRAL_CACHE'] + '\"}')"
    _, act = run(load, code, tmp_path)
    assert act() == {"cache": str(tmp_path)}


def test_a_child_that_fails_says_why(load, tmp_path):
    """With its exit code and its last words."""
    session, act = run(load, "raise SystemExit('no card')", tmp_path)
    with pytest.raises(session.ChildFailed, match="exit code 1; no card"):
        act()


def test_a_child_that_takes_too_long_is_ended_with_its_own_children(load, tmp_path):
    """Nothing of it goes on."""
    mark = tmp_path / "mark"
    inner = f"import time; time.sleep(3); open({str(mark)!r}, 'w')"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    session, act = run(load, code, tmp_path, 1.0)
    with pytest.raises(session.ChildFailed, match="took more than 1 s"):
        act()
    time.sleep(3)
    assert not mark.exists()


def test_what_fails_is_noted_and_the_rest_goes_on(load, tmp_path, capsys):
    """Without time left nothing is begun."""
    session = load("gpu_session").Session(
        tmp_path, tmp_path, tmp_path, owns_cache=True, is_quick=False, ends_at=time.monotonic()
    )
    assert session.repeated("single", Path("m.gguf"), 1) == []
    assert session.failures == ["single m: no time was left"] * 3
    assert "FAILED" in capsys.readouterr().out
