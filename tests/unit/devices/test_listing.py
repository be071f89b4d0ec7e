"""All devices at once: who is asked how often, and what is said where there is nothing."""

import subprocess
import sys

import pytest

import corral
from corral.devices import listing as module
from corral.devices.host_reading import HostReading
from corral.devices.listing import FILES_ONLY, NO_DRIVER, find_cards, is_wsl, list_devices
from corral.devices.nvml import AbsentNvml, Gpu, NvmlAbsent, NvmlNotInstalled, NvmlRefused
from corral.devices.probe import ProbeReading
from corral.devices.reading import Sources
from fake_nvml import MIB, FakeNvml, gpu

HOST = HostReading(64_000 * MIB, 50_000 * MIB, 0, 100 * MIB)


def sources(nvml, **others):
    return Sources(lambda: HOST, nvml, own_bytes=lambda uuid, processes: 0, **others)


def none():
    return ()


def test_a_listing_reads_each_device_once():
    """One snapshot: eight cards cost eight readings, however often they are looked at after."""
    nvml = FakeNvml(*(gpu(number) for number in range(8)))
    listing = list_devices(sources(nvml))
    assert [device.name for device in listing.devices] == ["cpu", *(f"cuda:{n}" for n in range(8))]
    assert nvml.calls == ["gpus", *["memory", "processes"] * 8]
    cpu = listing.devices[0]
    assert (cpu.total_bytes, cpu.free_bytes) == (HOST.total_bytes, HOST.free_bytes)
    assert (cpu.source, cpu.foreign_bytes) == ("/proc/meminfo", 13_900 * MIB)
    assert listing.notes == ()


def test_variables_choose_and_number_the_cards():
    """CUDA_VISIBLE_DEVICES=1,0: cuda:0 is the second card; hidden cards are not read."""
    cards = [gpu(0), gpu(1), gpu(2)]
    nvml = FakeNvml(*cards)
    listing = list_devices(sources(nvml), visible="1,0")
    assert [d.uuid for d in listing.devices[1:]] == [cards[1].uuid, cards[0].uuid]
    assert nvml.asked == [cards[1].uuid, cards[0].uuid]
    assert listing.notes == ("CUDA_VISIBLE_DEVICES='1,0' hides 1 of 3 cards",)
    hidden = list_devices(sources(FakeNvml(*cards)), visible="")
    assert len(hidden.devices) == 1
    assert "unset it" in hidden.notes[0]


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (NvmlNotInstalled("NVML is not installed"), NO_DRIVER),
        (NvmlRefused("this user may not ask"), "cannot be listed: this user may not ask"),
        (NvmlAbsent("no driver is loaded: load it"), "cannot be listed: no driver is loaded"),
    ],
)
def test_machines_without_cards_are_no_error(failure, said):
    """No driver, no library or no permission: the CPU is listed, and a line says why."""
    listing = list_devices(sources(AbsentNvml(failure)), in_files=none)
    assert [device.name for device in listing.devices] == ["cpu"]
    assert len(listing.notes) == 1
    assert said in listing.notes[0]


def test_a_driver_without_nvml():
    """The kernel module lists the cards, and a probe reads them."""
    nvml = AbsentNvml(NvmlNotInstalled("NVML is not installed"))

    def probed(uuid):
        return ProbeReading(uuid, "x", "580", 7400 * MIB, 6000 * MIB, 500 * MIB, True)

    listing = list_devices(sources(nvml, probe=probed), in_files=lambda: (gpu(0), gpu(1)))
    assert [device.source for device in listing.devices] == ["/proc/meminfo", "probe", "probe"]
    assert listing.notes == (f"NVML is not installed: {FILES_ONLY}",)


def test_a_driver_without_cards():
    """A line says it."""
    assert find_cards(FakeNvml()).notes == ("the NVIDIA driver has no card",)


def test_lost_and_cut_cards_are_said():
    """They are no devices, and not forgotten either."""
    lost = Gpu("", "card 0", failure="it fell off the bus: restart the machine")
    cut = gpu(1, is_cut=True)
    listing = list_devices(sources(FakeNvml(lost, cut, gpu(2))))
    assert [device.uuid for device in listing.devices[1:]] == [gpu(2).uuid]
    assert listing.notes[0] == "card 0 is left out: it fell off the bus: restart the machine"
    assert "MIG mode without a slice" in listing.notes[1]


def test_a_host_that_does_not_tell_its_memory():
    """It is unknown, and the listing goes on."""
    silent = Sources(lambda: None, FakeNvml())
    (cpu,) = list_devices(silent).devices
    assert (cpu.free_bytes, cpu.source, cpu.usable_bytes) == (None, "unknown", 0)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("Linux version 5.15.167.4-microsoft-standard-WSL2 (root@…) #1 SMP", True),
        ("Linux version 6.8.0-45-generic (buildd@lcy02-amd64-115)", False),
    ],
)
def test_linux_in_windows_is_known_by_its_kernel(tmp_path, version, expected):
    """As /proc/version names it; where there is no such file, it is no Linux in Windows."""
    (tmp_path / "version").write_text(version)
    assert is_wsl(tmp_path / "version") is expected
    assert not is_wsl(tmp_path / "missing")


def test_the_bindings_are_missed_only_where_there_are_cards(monkeypatch):
    """With cards and without cuda.bindings, a line says how to get them."""
    monkeypatch.setattr(module, "has_bindings", lambda: False)
    monkeypatch.setattr(module, "machine_sources", lambda: sources(FakeNvml(gpu(0))))
    monkeypatch.setattr(module, "settings", lambda: _Unset)
    assert "pip install 'corral[cuda]'" in module.machine_listing().notes[-1]
    monkeypatch.setattr(module, "has_bindings", lambda: True)
    assert module.machine_listing().notes == ()
    assert module.machine_visible().devices == (gpu(0),)


class _Unset:
    cuda_visible = cuda_order = None


def test_the_package_is_called(monkeypatch):
    """`corral.devices()` reads, and `corral.devices` is the package all the same."""
    monkeypatch.setattr(module, "machine_sources", lambda: sources(FakeNvml(gpu(0))))
    monkeypatch.setattr(module, "settings", lambda: _Unset)
    readings = corral.devices()
    assert [reading.name for reading in readings] == ["cpu", "cuda:0"]
    assert all(isinstance(reading, corral.DeviceReading) for reading in readings)
    assert corral.devices.registry.NAMES


def test_reading_loads_no_arrays_and_no_bindings():
    """What a router does all the time loads nothing heavy, and no CUDA."""
    code = (
        "import corral, sys; corral.devices(); "
        "print(*({'numpy', 'psutil', 'llvmlite', 'cuda'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.split() == []
