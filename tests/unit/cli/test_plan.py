"""`corral plan` and `corral pull`: what they print."""

import json
from types import SimpleNamespace

import pytest

import corral as package
from corral.engine.planning import PlanRow
from corral.hub import resolve


@pytest.fixture
def planned(monkeypatch):
    """Replace the planner; return what it was asked."""
    asked = []

    def plan(path, **options):
        asked.append((path.name, options))
        rows = (PlanRow("weights", 3 << 20), PlanRow("state", 1024), PlanRow("context", 0))
        return SimpleNamespace(
            rows=rows, total_bytes=(3 << 20) + 1024, device="cpu", context=512, parallel=2
        )

    monkeypatch.setattr(package, "plan", plan, raising=False)
    return asked


def test_prints_bytes_by_kind(corral, planned):
    """Each kind of memory has a line with its exact bytes; kinds without bytes have none."""
    outcome = corral("plan", "m", "--parallel", 2, "--context", 512, "--kv-type", "q8_0")
    lines = outcome.out.splitlines()
    assert lines[0] == "m.gguf on cpu: context 512 × 2, KV cache q8_0"
    assert lines[2].split()[:4] == ["weights", "3.0", "MiB", "3,145,728"]
    assert lines[-1].split() == ["total", "3.0", "MiB", "3,146,752"]
    assert "context " not in "".join(lines[2:])
    options = {"context": 512, "parallel": 2, "kv_type": "q8_0", "device": "auto"}
    assert planned == [("m.gguf", options)]


def test_prints_json(corral, planned):
    """JSON has every kind and the total in bytes."""
    value = json.loads(corral("plan", "m", "--json").out)
    assert value["bytes"] == {"weights": 3 << 20, "state": 1024, "context": 0}
    assert value["total_bytes"] == (3 << 20) + 1024


def test_pull_prints_the_path(corral, monkeypatch, tmp_path):
    """`pull` prints where the file is, and its size as JSON if asked."""
    path = tmp_path / "demo.gguf"
    path.write_bytes(b"12345")
    monkeypatch.setattr(resolve, "pull", lambda name, *, progress: path)
    assert corral("pull", "demo").out == f"{path}\n"
    value = json.loads(corral("pull", "demo", "--json").out)
    assert value == {"name": "demo", "path": str(path), "size_bytes": 5}
