"""Measuring in child processes: what comes back, and what is said of a child that dies."""

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks"

CHILD = f"""
import os, signal, sys
sys.path.insert(0, {str(FOLDER)!r})
from children import serve

def double(number):
    print("noise of native code")
    return {{"result": 2 * number}}

def crash():
    print("last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGILL)

def fail():
    return {{"error": "no memory"}}

serve({{"version": "1"}}, {{"double": double, "crash": crash, "fail": fail}})
"""


@pytest.fixture(scope="module")
def children():
    spec = importlib.util.spec_from_file_location("children", FOLDER / "children.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def child(children):
    with children.Child("engine", [sys.executable, "-c", CHILD]) as started:
        yield started


def test_replies_come_back(child):
    """A child says what it is, then answers; what it prints stays out of the replies."""
    assert child.description == {"version": "1"}
    assert [child.measure(test="double", number=n)["result"] for n in (1, 2)] == [2, 4]


def test_death_is_explained(children, child):
    """A crash becomes an error with the signal, the request and the child's last words."""
    with pytest.raises(children.ChildDied, match=r"engine died of SIGILL while crash.*last words"):
        child.measure(test="crash")


def test_no_request_after_death(children, child):
    """A dead child refuses every further request."""
    with pytest.raises(children.ChildDied):
        child.measure(test="crash")
    with pytest.raises(children.ChildDied, match="SIGILL"):
        child.measure(test="double", number=1)


def test_failure_is_explained(children, child):
    """A test that fails is an error, and the child lives on."""
    with pytest.raises(children.ChildDied, match="no memory"):
        child.measure(test="fail")
    assert child.measure(test="double", number=3) == {"result": 6}


def test_child_that_does_not_start(children):
    """A child that ends before it is ready is an error too."""
    with pytest.raises(children.ChildDied, match="exit code 3 while starting"):
        children.Child("engine", [sys.executable, "-c", "raise SystemExit(3)"])
