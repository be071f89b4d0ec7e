"""A router with its models on a card: it holds nothing there, and in the end nobody does."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from card_sight import Card, flaws_of_router, visible_cards
from running_fleet import fleets
from served import until

TOOLS = Path(__file__).parents[2] / "tools"
MIB = 1 << 20
CONFIG = """
[server]
models = ['{folder}']
min_residency = 0
sessions = '{folder}/sessions'
[models.'*']
device = 'cuda:0'
context = 256
parallel = 2
"""


LOOK = """
import ctypes
from corral.router.config import RouterConfig
from corral.router.machine import card_context_bytes, machine_of, machine_readings
assert len(machine_of(machine_readings(), RouterConfig(), card_context_bytes).sites) > 1
driver, flags, active = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint(), ctypes.c_int()
driver.cuInit(0)
driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active))
print(active.value)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder of two small models."""
    folder = tmp_path_factory.mktemp("models")
    sys.path.insert(0, str(TOOLS))
    try:
        import make_model
    finally:
        sys.path.remove(str(TOOLS))
    for name in "ab":
        make_model.write(folder / f"{name}.gguf", "tiny", "Q4_K_M")
    (folder / "corral.toml").write_text(CONFIG.format(folder=folder))
    return folder


@pytest.fixture
def server(folder):
    """Serve them; kernels are kept in the machine's cache."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with fleets(environment) as start:
        yield start("--config", folder / "corral.toml")


@pytest.fixture
def eye():
    """Look at the card from a process that holds none of it."""
    return Card("cuda:0")


def models(server):
    """Return what the router tells of models that have a process."""
    return {one["name"]: one for one in server.fleet()["models"] if one["pid"]}


def test_a_router_holds_nothing_of_a_card(folder, eye):
    """Not a byte, however often it looks; in a process that did all of it no context is active."""
    before = eye.used_bytes()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with fleets(environment) as start:
        server = start("--config", folder / "corral.toml")
        for _ in range(5):
            assert server.fleet()["devices"]
            server.post("/plan", model="a")
        assert eye.used_bytes() == before
    looked = subprocess.run(
        [sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True, check=True
    )
    assert looked.stdout.split() == ["0"]


def test_workers_see_their_card_and_the_router_none(server, eye):
    """By UUID; what a process says it allocated is what was planned, and NVML names no router."""
    before = eye.used_bytes()
    for name in "ab":
        assert server.complete(name).status_code == 200
    there = models(server)
    planned = 0
    for name in "ab":
        assert visible_cards(there[name]["pid"]) == (eye.uuid,)
        (held,) = [one for one in there[name]["held"] if one["device"] == eye.uuid]
        assert 0 < held["measured_bytes"] <= held["planned_bytes"]
        planned += held["planned_bytes"]
    assert eye.used_bytes() - before <= planned + 48 * MIB
    assert flaws_of_router(server.process.pid) == []
    assert not eye.names(server.process.pid)


def test_nothing_is_held_when_all_are_unloaded(server, eye):
    """The router lives on, and the card holds what it held before it came."""
    before = eye.used_bytes()
    for name in "ab":
        assert server.complete(name).status_code == 200
    workers = [one["pid"] for one in models(server).values()]
    for name in "ab":
        server.post("/models/unload", model=name)
    until(lambda: not models(server))
    assert not any(map(psutil.pid_exists, workers))
    assert eye.used_bytes() - before <= 2 * MIB
    assert server.complete("a").status_code == 200


def test_nothing_is_held_when_the_router_is_killed(server, eye):
    """Workers die with it."""
    before = eye.used_bytes()
    assert server.complete("a").status_code == 200
    workers = server.workers()
    assert server.end(signal.SIGKILL) == -signal.SIGKILL
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive
    until(lambda: eye.used_bytes() - before <= 2 * MIB)
