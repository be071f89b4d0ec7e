"""Each source answers in its turn, with its name; what nobody tells is unknown."""

import dataclasses

import pytest

from corral.devices.host_reading import HostReading
from corral.devices.nvml import (
    NvmlAbsent,
    NvmlFailure,
    NvmlLost,
    NvmlMemory,
    NvmlNotSupported,
    NvmlRefused,
)
from corral.devices.probe import ProbeFailure, ProbeReading
from corral.devices.reading import UPPER_BOUND, ProcessUse, Sources, is_unified, read_device
from corral.errors import DeviceFault, OutOfMemory
from fake_nvml import MIB, FakeNvml, gpu

HOST = HostReading(64_000 * MIB, 50_000 * MIB, 0, 100 * MIB)
ME = 77


def sources(nvml=None, **others):
    """Return sources in which this process holds nothing, unless it is told otherwise."""
    options = {"own_bytes": lambda uuid, processes: 0, "own_number": lambda: ME} | others
    return Sources(lambda: HOST, nvml or FakeNvml(), **options)


def probed(uuid):
    return ProbeReading(uuid, "Played card", "580.0", 7400 * MIB, 6000 * MIB, 500 * MIB, True)


def numbers(reading):
    fields = (
        reading.total_bytes,
        reading.free_bytes,
        reading.reserved_bytes,
        reading.foreign_bytes,
    )
    return tuple(None if field is None else field // MIB for field in fields)


def read(card, nvml, **others):
    return read_device("cuda:0", card, sources(nvml, **others))


def test_nvml_tells_without_a_context():
    """The total leaves out what is reserved; others hold what this process does not."""
    card = gpu(0)
    reading = read(card, FakeNvml(card), own_bytes=lambda uuid, processes: 150 * MIB)
    assert numbers(reading) == (7400, 7000, 600, 250)
    assert (reading.source, reading.uuid, reading.note) == ("NVML", card.uuid, "")
    assert reading.foreign_source == "NVML, without this process"
    assert reading.usable_bytes == reading.free_bytes


def test_other_processes_are_listed():
    """Each with its bytes where the driver tells them; this process is none of them."""
    card = gpu(0)
    nvml = FakeNvml(card)
    nvml.processes_of[card.uuid] = ((5, 100 * MIB), (ME, 50 * MIB), (99, None))
    told = []

    def own(uuid, processes):
        told.append((uuid, dict(processes)[ME]))
        return dict(processes)[ME]

    reading = read(card, nvml, own_bytes=own)
    assert reading.processes == (ProcessUse(5, 100 * MIB), ProcessUse(99, None))
    assert reading.foreign_bytes == 350 * MIB
    assert told == [(card.uuid, 50 * MIB)]


def test_processes_that_are_not_told_are_no_zero():
    """Under WDDM the bytes of a process are unknown, and so is what is left for others."""
    card = gpu(0)
    nvml = FakeNvml(card)
    nvml.failures["processes"] = NvmlNotSupported("the device does not tell it")
    reading = read(card, nvml, own_bytes=lambda uuid, processes: processes)
    assert numbers(reading) == (7400, 7000, 600, None)
    assert reading.foreign_source == "unknown"
    assert "what this process holds is not known" in reading.note


def test_old_libraries_do_not_tell_what_is_reserved():
    """The first version of the structure: reserved is unknown and not 0, and so is foreign."""
    card = gpu(0)
    nvml = FakeNvml(card)
    nvml.memory_of[card.uuid] = NvmlMemory(8000 * MIB, None, 7000 * MIB)
    reading = read(card, nvml)
    assert numbers(reading) == (8000, 7000, None, None)
    assert "does not tell what it reserves" in reading.note


def test_a_slice_is_read_by_its_own_handle():
    """A slice of a card never shows the whole card's numbers."""
    card = gpu(0, slices=1)
    nvml = FakeNvml(card)
    nvml.memory_of[card.slices[0].uuid] = NvmlMemory(1000 * MIB, 0, 900 * MIB)
    reading = read(card.slices[0], nvml)
    assert (reading.source, numbers(reading)) == ("NVML, of the slice", (1000, 900, 0, 100))
    assert nvml.asked == [card.slices[0].uuid]


@pytest.mark.parametrize("failure", [NvmlRefused("refused"), NvmlNotSupported("not told")])
def test_a_slice_that_may_not_be_read_is_probed(failure):
    """Never the parent's aggregate, and never the host's memory."""
    card = gpu(0, slices=1)
    nvml = FakeNvml(card)
    nvml.failures["memory"] = failure
    reading = read(card.slices[0], nvml, probe=probed)
    assert (reading.source, numbers(reading)) == ("probe", (7400, 6000, None, None))
    assert (reading.note, reading.uuid) == (str(failure), card.slices[0].uuid)
    assert nvml.asked == [card.slices[0].uuid]


@pytest.mark.parametrize("name", ["NVIDIA GB10", "Orin (nvgpu)", "NVIDIA Thor"])
def test_unified_memory_is_known_before_anything_is_asked(name):
    """Asking such a device for its memory fails on some systems, so nobody does."""
    card = gpu(0, name)
    nvml = FakeNvml(card)
    reading = read(card, nvml, in_process=pytest.fail, probe=pytest.fail)
    assert reading.source == "/proc/meminfo, unified memory"
    assert numbers(reading) == (64_000, 50_000, 0, 13_900)
    assert (reading.uuid, reading.title) == (card.uuid, name)
    assert nvml.calls == []


def test_who_knows_better_decides_what_is_unified():
    """A process that holds the driver knows; its word goes before the card's name."""
    card = gpu(0, "Some card")
    assert read(card, FakeNvml(card), is_unified=lambda title: True).source.startswith("/proc")
    nvml = FakeNvml(card)
    nvml.failures["memory"] = NvmlNotSupported("not told")
    reading = read(card, nvml, is_unified=lambda title: False, probe=probed)
    assert reading.source == "probe"


@pytest.mark.parametrize(
    "title", ["NVIDIA GB100", "NVIDIA GB200", "NVIDIA GH200 480GB", "NVIDIA H200", "Thorough"]
)
def test_cards_with_memory_of_their_own(title):
    """Names that look alike."""
    assert is_unified(title) is None


def test_a_card_without_memory_of_its_own_uses_the_hosts():
    """Not supported is neither "no card", nor "0 bytes free"."""
    card = gpu(0)
    nvml = FakeNvml(card)
    nvml.failures["memory"] = NvmlNotSupported("the device does not tell it")
    reading = read(card, nvml)
    assert reading.free_bytes == HOST.free_bytes
    assert reading.note == "its memory is the host's: the device does not tell it"
    silent = dataclasses.replace(sources(nvml), host=lambda: None)
    assert read_device("cuda:0", card, silent).source == "unknown"


@pytest.mark.parametrize(
    "told",
    [NvmlMemory(0, 0, 0), NvmlMemory(100, 10, 95), NvmlMemory(100, 200, 0), NvmlMemory(1, None, 2)],
)
def test_numbers_that_cannot_be_are_not_used(told):
    """A total of 0, or more free than there is: the next source is asked."""
    card = gpu(0)
    nvml = FakeNvml(card)
    nvml.memory_of[card.uuid] = told
    assert read(card, nvml, probe=probed).source == "probe"
    reading = read(card, nvml)
    assert (reading.source, numbers(reading)) == ("unknown", (None,) * 4)
    assert "NVML tells numbers that cannot be" in reading.note


def test_this_process_is_asked_before_a_probe():
    """Its driver costs nothing where the context is alive; elsewhere it may decline."""
    card = gpu(0)
    nvml = FakeNvml(card)
    nvml.failures["memory"] = NvmlRefused("refused")
    both = sources(nvml, in_process=lambda uuid: (5000 * MIB, 7400 * MIB), probe=probed)
    reading = read_device("cuda:0", card, both)
    assert (reading.source, numbers(reading)) == ("driver", (7400, 5000, None, None))
    silent = dataclasses.replace(both, in_process=lambda uuid: None)
    assert read_device("cuda:0", card, silent).source == "probe"


@pytest.mark.parametrize("error", [OutOfMemory("no memory for a context"), DeviceFault("a fault")])
def test_a_reading_that_fails_harms_nobody(error):
    """A full card cannot even make the context that reading takes: others are asked."""

    def fail(uuid):
        raise error

    card = gpu(0)
    nvml = FakeNvml(card)
    nvml.failures["memory"] = NvmlAbsent("no NVML")
    assert read(card, nvml, in_process=fail, probe=probed).source == "probe"
    reading = read(card, nvml, in_process=fail)
    assert reading.source == "unknown"
    assert reading.note.startswith(f"no NVML; {error}; no model is placed there")


@pytest.mark.parametrize(
    "failure",
    [NvmlFailure("the device is busy"), NvmlRefused("this user may not ask"), NvmlAbsent("none")],
)
def test_what_nobody_tells_is_unknown(failure):
    """A busy or broken device has no old number to be taken for its free memory."""
    card = gpu(0)
    nvml = FakeNvml(card)
    assert read(card, nvml, probe=probed).free_bytes == 7000 * MIB
    nvml.failures["memory"] = failure
    reading = read(card, nvml, probe=lambda uuid: ProbeFailure("the probe took too long"))
    assert (reading.source, numbers(reading)) == ("unknown", (None,) * 4)
    assert reading.usable_bytes == 0
    assert reading.note.startswith(f"{failure}; the probe took too long; no model is placed")
    nvml.failures.clear()
    assert read(card, nvml).free_bytes == 7000 * MIB


def test_a_lost_card_is_left_alone():
    """Asking it in other ways may hang."""
    card = gpu(0)
    nvml = FakeNvml(card)
    nvml.failures["memory"] = NvmlLost("the device fell off the bus: restart the machine")
    reading = read(card, nvml, in_process=pytest.fail, probe=pytest.fail)
    assert reading.source == "unknown"
    assert "restart the machine" in reading.note


def test_a_probe_that_does_not_know_its_own_cost_says_so():
    """Its number is a lower bound."""
    card = gpu(0)
    nvml = FakeNvml(card)
    nvml.failures["memory"] = NvmlAbsent("no NVML")
    bound = ProbeReading(card.uuid, "x", "580", 7400 * MIB, 6000 * MIB, None, False)
    reading = read(card, nvml, probe=lambda uuid: bound)
    assert reading.note.startswith("no NVML; a little more may be free")


def test_numbers_under_windows_are_upper_bounds():
    """WDDM and WSL hand out less than NVML shows: 2 GiB or a tenth is left."""
    card = gpu(0)
    nvml = FakeNvml(card)
    reading = read(card, nvml, is_shared_out=True)
    assert (reading.note, reading.margin_bytes) == (UPPER_BOUND, 2 << 30)
    assert reading.usable_bytes == reading.free_bytes - (2 << 30)
    nvml.memory_of[card.uuid] = NvmlMemory(80_000 * MIB, 0, 1000 * MIB)
    reading = read(card, nvml, is_shared_out=True)
    assert (reading.margin_bytes, reading.usable_bytes) == (8000 * MIB, 0)
