"""`corral plan` and `corral pull`: what they print."""

import json

import pytest

import corral as package
from corral.devices import listing
from corral.engine.planning import DevicePlan, PlanReport, PlanRow
from corral.hub import resolve
from corral.models.fit import DEFAULT_MARGIN
from corral.models.footprint import Limits

MIB = 1 << 20
CPU = DevicePlan(
    "cpu", (PlanRow("weights", 3 * MIB), PlanRow("state", 1024), PlanRow("context", 0)), (0, 3)
)
CARDS = (
    DevicePlan(
        "cuda:0", (PlanRow("weights", 5 * MIB), PlanRow("context", MIB)), (0, 2), False, 8 * MIB
    ),
    DevicePlan("cuda:1", (PlanRow("weights", 2 * MIB), PlanRow("context", MIB)), (3, 3)),
    DevicePlan("host", (PlanRow("staging", 4 * MIB),)),
)


@pytest.fixture
def planned(monkeypatch):
    """Replace the planner; return what it was asked and what it shall answer."""
    asked, devices = [], [CPU]

    def plan(path, **options):
        asked.append((path.name, options))
        limits = Limits(512, 2, options["kv_type"])
        return PlanReport(path.name, limits, tuple(devices), 4)

    monkeypatch.setattr(package, "plan", plan, raising=False)
    return asked, devices


def test_prints_bytes_by_kind(corral, planned):
    """Each kind of memory has a line with its exact bytes; kinds without bytes have none."""
    outcome = corral("plan", "m", "--parallel", 2, "--context", 512, "--kv-type", "q8_0")
    lines = outcome.out.splitlines()
    assert lines[0] == "m.gguf on cpu: context 512 × 2, KV cache q8_0"
    assert lines[2].split()[:4] == ["weights", "3.0", "MiB", "3,145,728"]
    assert lines[-1].split() == ["total", "3.0", "MiB", "3,146,752"]
    assert "context " not in "".join(lines[2:])
    asked, _ = planned
    options = {"context": 512, "parallel": 2, "kv_type": "q8_0", "device": ["auto"]}
    options |= {"split": None, "gpu_layers": None}
    options |= {"fit": False, "memory": None, "margin": DEFAULT_MARGIN}
    assert asked == [("m.gguf", options)]


def test_prints_devices_one_below_the_other(corral, planned):
    """Several devices have their lines, totals and layers; then comes the sum of all."""
    planned[1][:] = CARDS
    lines = corral("plan", "m", "--device", "cuda:0,cuda:1").out.splitlines()
    assert lines[0] == "m.gguf on cuda:0, cuda:1: context 512 × 2, KV cache f16"
    assert lines[2].split()[:5] == ["cuda:0", "weights", "5.0", "MiB", "5,242,880"]
    assert lines[3].endswith("the driver's context (assumed: it was not measured)")
    assert lines[4].split() == ["total", "6.0", "MiB", "6,291,456", "layers", "0", "to", "2"]
    assert lines[5].split() == ["left", "2.0", "MiB", "2,097,152", "beside", "the", "margin"]
    assert lines[6].split()[:2] == ["cuda:1", "weights"]
    assert lines[7].endswith("the driver's context")
    assert lines[8].split()[-2:] == ["layer", "3"]
    assert lines[9].split()[:2] == ["host", "staging"]
    assert lines[-1].split() == ["all", "total", "13.0", "MiB", "13,631,488", "4", "layers"]


def test_passes_on_what_is_to_fit(corral, planned):
    """Sizes and shares are read as they are written."""
    words = ("--fit", "--memory", "24GiB,1.5G", "--margin", "1GB", "--split", "3,0.5")
    assert corral("plan", "m", "--device", "cuda:0,GPU-1234", *words).code == 0
    ((_, options),) = planned[0]
    assert options["device"] == ["cuda:0", "GPU-1234"]
    assert options["memory"] == [24 << 30, 3 << 29]
    assert options["margin"] == 1_000_000_000
    assert options["split"] == [3, 0.5]
    assert options["fit"] is True
    assert options["context"] is None
    corral("plan", "m", "--fit", "--memory", "512")
    assert planned[0][1][1]["memory"] == 512


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--memory", "24Gb"], "'24Gb' is no size such as 24GiB"),
        (["--memory", "24GiB,"], "'' is no size"),
        (["--memory", "-1"], "--memory"),
        (["--margin", "lots"], "'lots' is no size"),
        (["--split", "3,x"], "'x' is no number"),
        (["--split", "3,0"], "'0' is no number"),
        (["--device", "cuda:0,gpu"], "there is no device 'gpu'"),
        (["--device", "cuda:0,"], "there is no device ''"),
    ],
)
def test_refuses_what_it_cannot_read(corral, planned, words, named):
    """A wrong option is named, in one line, before the model is looked for."""
    outcome = corral("plan", "m", *words)
    assert outcome.code == 2
    assert named in outcome.err
    assert outcome.err.count("\n") == 1


def test_prints_json(corral, planned):
    """JSON has every kind and the total in bytes."""
    value = json.loads(corral("plan", "m", "--json").out)
    assert value["bytes"] == {"weights": 3 << 20, "state": 1024, "context": 0}
    assert value["total_bytes"] == (3 << 20) + 1024
    (device,) = value["devices"]
    assert device["bytes"] == value["bytes"]


def test_prints_json_by_device(corral, planned):
    """Each device has its layers and bytes, the sum of all stands above."""
    planned[1][:] = CARDS
    value = json.loads(corral("plan", "m", "--json").out)
    assert value["device"] == "cuda:0,cuda:1"
    assert value["bytes"] == {"weights": 7 * MIB, "context": 2 * MIB, "staging": 4 * MIB}
    first, second, host = value["devices"]
    assert first == {
        "device": "cuda:0",
        "layers": [0, 2],
        "context_is_measured": False,
        "usable_bytes": 8 * MIB,
        "bytes": {"weights": 5 * MIB, "context": MIB},
        "total_bytes": 6 * MIB,
    }
    assert second["context_is_measured"]
    assert host["layers"] is None


def test_pull_prints_the_path(corral, monkeypatch, tmp_path):
    """`pull` prints where the file is, and its size as JSON if asked."""
    path = tmp_path / "demo.gguf"
    path.write_bytes(b"12345")
    monkeypatch.setattr(resolve, "pull", lambda name, *, progress: path)
    assert corral("pull", "demo").out == f"{path}\n"
    value = json.loads(corral("pull", "demo", "--json").out)
    assert value == {"name": "demo", "path": str(path), "size_bytes": 5}


@pytest.mark.parametrize("is_installed", [False, True])
def test_what_would_be_needed_there_is_said(corral, planned, monkeypatch, is_installed):
    """One line where the plan names cards and the means to use them are not installed."""
    monkeypatch.setattr(listing, "has_bindings", lambda: is_installed)
    assert "adds what corral needs" not in corral("plan", "m").err
    planned[1][:] = CARDS
    told = corral("plan", "m", "--device", "cuda:0,cuda:1").err
    assert ("pip install 'corral[cuda]' adds what corral needs" in told) is not is_installed
    assert told.count("\n") == 1 - is_installed
