"""What benchmarks/leak.py does on a GPU, on a played one: all memory it takes it gives back."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import tiny
from corral.devices import registry
from corral.devices.base import MemoryReading
from corral.devices.cpu.traits import cpu_traits
from corral.devices.cuda.compile import Compiler
from corral.devices.cuda.contexts import Contexts
from corral.devices.cuda.device import CudaDevice
from fake_driver import FakeDriver

FOLDER = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def leak_work(monkeypatch):
    """Import the benchmark's module, for this test only."""
    monkeypatch.syspath_prepend(FOLDER)
    yield pytest.importorskip("leak_work")
    for name in ("leak_work", "held"):
        sys.modules.pop(name, None)


@pytest.fixture
def driver(monkeypatch):
    """Play a card that every name opens."""
    played = FakeDriver()
    (context,) = Contexts(played)
    total = played.facts[0].total_bytes

    def opened(name, *, threads=None):
        return CudaDevice(
            name,
            context,
            played,
            replace(cpu_traits(1), granularity=512),
            compiler=Compiler(),
            read=lambda: MemoryReading(total, total - played.used(0), "played"),
        )

    monkeypatch.setattr(registry, "open", opened)
    return played


@pytest.mark.parametrize("name", ["upload and free", "open and close"])
def test_all_is_given_back(name, leak_work, driver, tmp_path):
    """Each round uses the card, and leaves neither memory nor a context on it."""
    (work,) = (work for work in leak_work.ON_GPU if work.name == name)
    setting = leak_work.Setting(tiny.write(tmp_path / "tiny.gguf"), work.device, tmp_path)
    with work.start(setting) as act:
        for number in range(3):
            driver.calls.clear()
            act(number)
            assert "allocate" in driver.calls
            assert ("copy_to_device" in driver.calls) == (name == "upload and free")
            assert driver.used(0) == 0
    assert driver.violations == []


def test_what_a_card_uses_is_read(leak_work, driver):
    """Bytes that are in use on a card are part of what is held."""
    from held import held

    driver.foreign[0] = 1 << 20
    assert held(leak_work.GPU).used == 1 << 20
    assert held().used == 0
