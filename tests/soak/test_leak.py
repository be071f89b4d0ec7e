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


OF_ONE_PROCESS = (
    *("load and unload", "evaluate", "abort", "open and close"),
    *("fail: corrupt file", "fail: does not fit", "fail: allocation refused"),
)
OF_THE_PRODUCT = (
    *("endless answers", "swap adapters", "merge adapters"),
    *("serve requests", "clients that leave", "worker killed"),
)


def run(works, *arguments, part=5):
    """Return the exit code, and each work's result by its name and device."""
    command = [sys.executable, str(SCRIPT), "--part", str(part), "--only", *works, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert not done.stderr, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    print(done.stdout)
    return done.returncode, {(r["work"], r["device"]): r for r in last["leak"]}


@pytest.mark.parametrize(
    ("works", "part"),
    [(OF_ONE_PROCESS, 5), *(((name,), 50) for name in OF_THE_PRODUCT)],
    ids=["one-process", *(name.replace(" ", "-") for name in OF_THE_PRODUCT)],
)
def test_nothing_leaks(works, part):
    """Loads, steps, answers without end, adapters, a server and its workers leave nothing."""
    code, results = run(works, part=part)
    assert {name for name, device in results if device == "cpu"} == set(works)
    leaks = {
        (*key, name): measure
        for key, result in results.items()
        for name, measure in result["growth"].items()
        if measure["is_leak"]
    }
    assert leaks == {}
    assert code == 0
    assert all(result["growth"].keys() == MEASURES for result in results.values())
    assert all(len(result["samples"]["work"]) > 9 for result in results.values())


def test_a_record_that_each_step_keeps_is_found():
    """One small record an evaluation, kept for good, is a leak of memory and of objects."""
    code, results = run(["evaluate"], "--leak")
    assert code == 1
    growth = results["evaluate", "cpu"]["growth"]
    assert growth["blocks"]["is_leak"]
    assert growth["blocks"]["value"] == pytest.approx(2, rel=0.2)
    assert growth["host"]["is_leak"]
    assert not growth["device"]["is_leak"]


def test_the_same_record_is_found_in_answers_without_end():
    """Eight answers share a step, so that it is an eighth of two pieces a token."""
    code, results = run(["endless answers"], "--leak", part=50)
    assert code == 1
    growth = results["endless answers", "cpu"]["growth"]
    assert growth["blocks"]["is_leak"]
    assert growth["blocks"]["value"] == pytest.approx(0.25, rel=0.2)
    assert not growth["ledger"]["is_leak"]
