"""benchmarks/leak.py at short counts: nothing leaks, and what is made to leak is found."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "leak.py"
MEASURES = {
    *("host", "heap", "objects", "blocks", "files", "threads", "device", "used", "ledger"),
}


def run(*arguments):
    """Return the exit code, and each work's result by its name and device."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--short", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert not done.stderr, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    print(done.stdout)
    return done.returncode, {(r["work"], r["device"]): r for r in last["leak"]}


def test_nothing_leaks():
    """Loads, steps, aborted requests, openings and failures of every kind leave nothing."""
    code, results = run()
    assert {name for name, device in results if device == "cpu"} == {
        *("load and unload", "evaluate", "abort", "open and close"),
        *("fail: corrupt file", "fail: does not fit", "fail: allocation refused"),
    }
    leaks = {
        (*key, name): measure
        for key, result in results.items()
        for name, measure in result["growth"].items()
        if measure["is_leak"]
    }
    assert leaks == {}
    assert code == 0
    assert all(result["growth"].keys() == MEASURES for result in results.values())


def test_a_record_that_each_step_keeps_is_found():
    """One small record an evaluation, kept for good, is a leak of memory and of objects."""
    code, results = run("--leak", "--only", "evaluate")
    assert code == 1
    growth = results["evaluate", "cpu"]["growth"]
    assert growth["blocks"]["is_leak"]
    assert growth["blocks"]["value"] == pytest.approx(2, rel=0.2)
    assert growth["host"]["is_leak"]
    assert not growth["device"]["is_leak"]
