"""Each source answers in its turn, with its name; what nobody tells is unknown."""

import dataclasses

import pytest

from corral.devices.listing import NO_NVML, list_devices
from corral.devices.nvml import (
    NvmlAbsent,
    NvmlFailure,
    NvmlMemory,
    NvmlNotSupported,
    NvmlRefused,
)
from corral.devices.probe import ProbeFailure, ProbeReading
from corral.devices.reading import UPPER_BOUND, Sources, read_device
from fake_nvml import MIB, FakeNvml, gpu

HOST = (64_000 * MIB, 50_000 * MIB)


def sources(nvml=None, **others):
    return Sources(host=lambda: HOST, nvml=nvml, **others)


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


def test_nvml_tells_without_a_context():
    """The total leaves out what is reserved; others hold what this process does not."""
    card = gpu(0)
    reading = read_device("cuda:0", card, sources(FakeNvml(card), own_bytes=lambda uuid: 150 * MIB))
    assert numbers(reading) == (7400, 7000, 600, 250)
    assert (reading.source, reading.uuid, reading.note) == ("NVML", card.uuid, "")


def test_old_libraries_do_not_tell_what_is_reserved():
    """The first version of the structure: reserved is unknown and not 0."""
    card = gpu(0)
    nvml = FakeNvml(card)
    nvml.memory_of[card.uuid] = NvmlMemory(8000 * MIB, None, 7000 * MIB, 1000 * MIB)
    assert numbers(read_device("cuda:0", card, sources(nvml))) == (8000, 7000, None, 1000)


def test_a_slice_is_read_by_its_own_handle():
    """A slice of a card never shows the whole card's numbers."""
    card = gpu(0, slices=1)
    nvml = FakeNvml(card)
    nvml.memory_of[card.slices[0].uuid] = NvmlMemory(1000 * MIB, 0, 900 * MIB, 100 * MIB)
    assert numbers(read_device("cuda:0", card.slices[0], sources(nvml))) == (1000, 900, 0, 100)


@pytest.mark.parametrize("failure", [NvmlRefused("refused"), NvmlNotSupported("not told")])
def test_a_slice_that_may_not_be_read_is_probed(failure):
    """Never the parent's aggregate, and never the host's memory."""
    card = gpu(0, slices=1)
    nvml = FakeNvml(card)
    nvml.failures["memory"] = failure
    reading = read_device("cuda:0", card.slices[0], sources(nvml, probe=probed))
    assert (reading.source, numbers(reading)) == ("probe", (7400, 6000, None, None))


@pytest.mark.parametrize("name", ["NVIDIA GB10", "Orin (nvgpu)"])
def test_unified_memory_is_known_before_anything_is_asked(name):
    """Asking such a device for its memory fails on some systems, so nobody does."""
    card = gpu(0, name)
    nvml = FakeNvml(card)
    reading = read_device("cuda:0", card, sources(nvml))
    assert (reading.source, numbers(reading)) == ("unified memory", (64_000, 50_000, None, None))
    assert nvml.calls == []


@pytest.mark.parametrize("how", ["not supported", "total of 0"])
def test_a_card_without_memory_of_its_own_uses_the_hosts(how):
    """Neither is "no card", and neither is "0 bytes free"."""
    card = gpu(0)
    nvml = FakeNvml(card)
    if how == "not supported":
        nvml.failures["memory"] = NvmlNotSupported("the device does not tell it")
    else:
        nvml.memory_of[card.uuid] = NvmlMemory(0, 0, 0, 0)
    reading = read_device("cuda:0", card, sources(nvml))
    assert (reading.source, reading.free_bytes) == ("unified memory", HOST[1])


def test_this_process_is_asked_before_a_probe():
    """Its driver costs nothing where the context is alive; elsewhere it may decline."""
    card = gpu(0)
    nvml = FakeNvml(card)
    nvml.failures["memory"] = NvmlRefused("refused")
    both = sources(nvml, in_process=lambda uuid: (5000 * MIB, 7400 * MIB), probe=probed)
    assert read_device("cuda:0", card, both).source == "driver"
    silent = dataclasses.replace(both, in_process=lambda uuid: None)
    assert read_device("cuda:0", card, silent).source == "probe"


def test_what_nobody_tells_is_unknown():
    """A busy or broken device has no old number to be taken for its free memory."""
    card = gpu(0)
    nvml = FakeNvml(card)
    told = read_device("cuda:0", card, sources(nvml, probe=probed))
    assert told.free_bytes == 7000 * MIB
    nvml.failures["memory"] = NvmlFailure("the device fell off the bus")
    failing = sources(nvml, probe=lambda uuid: ProbeFailure("the probe took too long"))
    reading = read_device("cuda:0", card, failing)
    assert (reading.source, numbers(reading)) == ("unknown", (None,) * 4)
    assert reading.note == "the device fell off the bus; the probe took too long"


def test_a_probe_that_does_not_know_its_own_cost_says_so():
    """Its number is a lower bound."""
    card = gpu(0)
    bound = ProbeReading(card.uuid, "x", "580", 7400 * MIB, 6000 * MIB, None, False)
    reading = read_device("cuda:0", card, sources(probe=lambda uuid: bound))
    assert reading.note == "a little more may be free"


def test_numbers_under_windows_are_upper_bounds():
    """WDDM and WSL hand out less than NVML shows."""
    card = gpu(0)
    assert (
        read_device("cuda:0", card, sources(FakeNvml(card), is_shared_out=True)).note == UPPER_BOUND
    )


def test_a_listing_reads_each_device_once():
    """One snapshot: eight cards cost eight readings, however often they are looked at after."""
    nvml = FakeNvml(*(gpu(number) for number in range(8)))
    listing = list_devices(sources(nvml))
    assert [device.name for device in listing.devices] == ["cpu", *(f"cuda:{n}" for n in range(8))]
    assert nvml.calls == ["gpus", *["memory"] * 8]
    cpu = listing.devices[0]
    assert (cpu.total_bytes, cpu.free_bytes, cpu.source) == (*HOST, "host")


def test_variables_choose_and_number_the_cards():
    """CUDA_VISIBLE_DEVICES=1,0: cuda:0 is the second card."""
    cards = [gpu(0), gpu(1)]
    listing = list_devices(sources(FakeNvml(*cards)), visible="1,0")
    assert [d.uuid for d in listing.devices[1:]] == [cards[1].uuid, cards[0].uuid]
    assert len(list_devices(sources(FakeNvml(*cards)), visible="").devices) == 1


@pytest.mark.parametrize(
    ("nvml", "said"),
    [(None, NO_NVML), (NvmlRefused("this user may not ask"), "this user may not ask")],
)
def test_machines_without_cards_are_no_error(nvml, said):
    """No driver, no library or no permission: the CPU is listed, and a line says why."""
    if nvml is not None:
        nvml, failure = FakeNvml(), nvml
        nvml.failures["gpus"] = failure
    listing = list_devices(sources(nvml))
    assert len(listing.devices) == 1
    assert said in listing.note


def test_absent_is_a_failure_like_others():
    """Whoever catches failures of the library catches its absence."""
    assert issubclass(NvmlAbsent, NvmlFailure)
