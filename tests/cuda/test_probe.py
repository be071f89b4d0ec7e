"""The probe on a real device: what it tells agrees with NVML, and it leaves nothing behind."""

import ctypes
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import pytest

from corral.devices.bounded_process import run_bounded
from corral.devices.context_cost import ContextCosts
from corral.devices.probe import Probe, ProbeFailure
from corral.devices.probe_child import CallFailed, Library, MemoryV2, load
from source_tree import SOURCE

MIB = 1 << 20
SAME_BYTES = 2 * MIB


@dataclass(frozen=True)
class Card:
    """One device, as NVML tells it."""

    uuid: str
    nvml: Library
    handle: ctypes.c_void_p

    def memory(self):
        """Return NVML's figures now."""
        memory = MemoryV2(version=ctypes.sizeof(MemoryV2) | 2 << 24)
        self.nvml.call("nvmlDeviceGetMemoryInfo_v2", self.handle, ctypes.byref(memory))
        return memory

    def settles_at(self, free_bytes):
        """Say whether as much is free, now or within some seconds: the driver clears up late."""
        deadline = time.monotonic() + 10
        while abs(self.memory().free - free_bytes) > SAME_BYTES:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


@pytest.fixture(scope="module")
def card():
    """Return the first device, or skip."""
    handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(96)
    try:
        load("libcuda.so.1")
        nvml = load("libnvidia-ml.so.1")
        nvml.call("nvmlInit_v2")
        nvml.call("nvmlDeviceGetHandleByIndex_v2", 0, ctypes.byref(handle))
        nvml.call("nvmlDeviceGetUUID", handle, text, len(text))
    except CallFailed as error:
        pytest.skip(f"no NVIDIA device: {error}")
    return Card(text.value.decode(), nvml, handle)


def test_it_agrees_with_nvml(card):
    """Total and free are NVML's: nothing of the probe's own context is missing from them."""
    before = card.memory()
    reading = Probe().read(card.uuid)
    assert reading is not None
    assert reading.context_is_measured
    usable = before.total - before.reserved
    assert abs(reading.total_bytes - usable) <= usable // 100 + SAME_BYTES
    assert abs(reading.free_bytes - before.free) <= before.free // 100 + SAME_BYTES


def test_what_its_context_took(card):
    """It is what contexts take on cards of the last ten years."""
    reading = Probe().read(card.uuid)
    assert reading is not None
    assert reading.context_bytes is not None
    assert 50 * MIB < reading.context_bytes < 1024 * MIB


def test_it_leaves_nothing(card):
    """After some probes the device has what it had."""
    before = card.memory().free
    probe = Probe(interval_seconds=0.0)
    for _ in range(3):
        assert probe.read(card.uuid) is not None
    assert card.settles_at(before)


def test_the_asker_loads_no_driver(card):
    """A process that asks has no library of the driver in it afterwards."""
    code = (
        f"import sys; sys.path.insert(0, {str(SOURCE)!r})\n"
        "from corral.devices.probe import Probe\n"
        f"assert Probe().read({card.uuid!r}) is not None\n"
        "maps = open('/proc/self/maps').read()\n"
        "print([name for name in ('libcuda', 'libnvidia', 'numpy') if name in maps])"
    )
    command = [sys.executable, "-I", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout == "[]\n"


def test_a_device_that_is_not_here(card):
    """The child sees no device, and says so."""
    outcome = Probe().attempt("GPU-00000000-0000-0000-0000-000000000000")
    assert isinstance(outcome, ProbeFailure)
    assert "cuInit" in outcome.reason or "0 devices are visible" in outcome.reason


def test_callers_at_once(card):
    """Eight callers get one child's answer."""
    commands, outcomes = [], []
    come = threading.Barrier(8)

    def run(command, environment, *, seconds):
        commands.append(command)
        return run_bounded(command, environment, seconds=seconds)

    def call(probe):
        come.wait()
        outcomes.append(probe.read(card.uuid))

    probe = Probe(run=run)
    threads = [threading.Thread(target=call, args=(probe,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert None not in outcomes
    assert len(commands) == 1
    assert all(outcome is outcomes[0] for outcome in outcomes)


@pytest.mark.parametrize("seconds", [0.05, 0.15, 0.25, 0.35])
def test_a_child_that_is_killed(card, seconds):
    """Wherever it is in making its context, its end gives everything back."""
    before = card.memory().free
    outcome = Probe(seconds=seconds).attempt(card.uuid)
    if isinstance(outcome, ProbeFailure):
        assert "took too long" in outcome.reason
    assert card.settles_at(before)


def test_costs_are_remembered(card, tmp_path):
    """A measured cost is found again by the name and driver that NVML tells."""
    name, version = ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
    card.nvml.call("nvmlDeviceGetName", card.handle, name, len(name))
    card.nvml.call("nvmlSystemGetDriverVersion", version, len(version))
    costs = ContextCosts(tmp_path / "contexts.json")
    measured = costs.measure(Probe(), card.uuid)
    assert measured is not None
    planned = costs.planned(name.value.decode(), version.value.decode())
    assert (planned.size_bytes, planned.is_measured) == (measured, True)
