"""`corral devices`: what it prints."""

import json

import pytest

from corral.devices import listing as module
from corral.devices.listing import NO_DRIVER, Listing
from corral.devices.reading import DeviceReading, ProcessUse

GIB = 1 << 30


@pytest.fixture
def listed(monkeypatch):
    """Replace the machine's devices."""

    def replace(*devices, notes=()):
        monkeypatch.setattr(module, "machine_listing", lambda: Listing(devices, notes))

    return replace


CARD = DeviceReading(
    *("cuda:0", "GPU-6bd0145e", "NVIDIA H200", 139 * GIB, 138 * GIB, 615 << 20, GIB, "NVML"),
    foreign_source="NVML, without this process",
    processes=(ProcessUse(531, GIB), ProcessUse(532, None)),
)
UNKNOWN = DeviceReading(
    *("cuda:1", "GPU-0bae265c", "Card", None, None, None, None, "unknown"), note="it is lost"
)


def test_every_device_has_a_line_with_its_source(corral, listed):
    """Numbers that nobody knows are unknown, and the note says why."""
    listed(CARD, UNKNOWN)
    outcome = corral("devices")
    lines = outcome.out.splitlines()
    assert lines[0].split() == [
        *("device", "total", "free", "reserved", "foreign", "source", "name", "uuid")
    ]
    assert " ".join(lines[1].split()) == (
        "cuda:0 139.0 GiB 138.0 GiB 615.0 MiB 1.0 GiB NVML NVIDIA H200 GPU-6bd0145e"
    )
    assert lines[2].split()[1:5] == ["unknown"] * 4
    assert (outcome.code, outcome.err) == (0, "corral: cuda:1: it is lost\n")


def test_other_processes_are_shown(corral, listed):
    """Each by its number, with what it holds where that is told."""
    listed(CARD)
    *_, first, second = corral("devices").out.splitlines()
    assert first.split() == ["cuda:0", "process", "531", "1.0", "GiB"]
    assert second.split() == ["cuda:0", "process", "532", "unknown"]


def test_json_tells_the_source_of_each_number(corral, listed):
    """By the number's name; what is unknown has none."""
    listed(CARD, UNKNOWN, notes=("a note",))
    value = json.loads(corral("devices", "--json").out)
    card, unknown = value["devices"]
    assert card["sources"] == {
        "total_bytes": "NVML",
        "free_bytes": "NVML",
        "reserved_bytes": "NVML",
        "foreign_bytes": "NVML, without this process",
    }
    assert card["processes"][0] == {"pid": 531, "used_bytes": GIB}
    assert (unknown["sources"], unknown["free_bytes"]) == ({}, None)
    assert value["notes"] == ["a note"]


def test_without_cuda_a_line_says_what_the_extra_adds(corral, listed):
    """It is no error."""
    listed(DeviceReading("cpu", None, "CPU", 8, 4, 0, 1, "/proc/meminfo"), notes=(NO_DRIVER,))
    outcome = corral("devices")
    assert outcome.code == 0
    assert outcome.err == f"corral: {NO_DRIVER}\n"
    assert "pip install 'corral[cuda]'" in outcome.err
