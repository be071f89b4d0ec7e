"""From readings of devices to memories and devices to place on."""

from corral.devices.listing import Listing
from corral.devices.nvml import Gpu
from corral.devices.reading import DeviceReading, ProcessUse
from corral.devices.visible import Visible
from corral.router import machine as module
from corral.router.config import RouterConfig
from corral.router.entry import HOST
from corral.router.machine import machine_of, machine_readings, used_by_processes
from corral.router.placing import Room, Site


def reading(name, uuid=None, **changes):
    known = {"total_bytes": 100, "free_bytes": 60, "reserved_bytes": 1, "foreign_bytes": 40}
    return DeviceReading(name, uuid, "a device", source="somebody", **(known | changes))


def machine(*readings, **config):
    return machine_of(readings, RouterConfig(**config), lambda uuid: 7)


def test_each_memory_has_its_margin_and_budget():
    """By the name of the device or its UUID; main memory is called host or cpu."""
    found = machine(
        reading("cpu", is_on_host=True),
        reading("cuda:0", "GPU-a"),
        reading("cuda:1", "GPU-b", margin_bytes=5),
        margins={"default": 1, "host": 2, "GPU-b": 3},
        budgets={"cuda:0": 50, "cpu": 80},
    )
    assert found.rooms == (
        Room(HOST, "cpu", 100, 60, 2, 80, "somebody"),
        Room("GPU-a", "cuda:0", 100, 60, 1, 50, "somebody"),
        Room("GPU-b", "cuda:1", 100, 60, 8, None, "somebody"),
    )
    assert found.sites == (
        Site("cpu", "cpu"),
        Site("cuda:0", "cuda", "GPU-a", "GPU-a", 7),
        Site("cuda:1", "cuda", "GPU-b", "GPU-b", 7),
    )


def test_a_card_with_the_hosts_memory_has_none_of_its_own():
    """Its bytes count where they lie."""
    found = machine(reading("cpu", is_on_host=True), reading("cuda:0", "GPU-a", is_on_host=True))
    assert [room.memory for room in found.rooms] == [HOST]
    assert found.sites[1] == Site("cuda:0", "cuda", HOST, "GPU-a", 7)


def test_unknown_stays_unknown():
    """And says why."""
    lost = reading("cuda:0", "GPU-a", free_bytes=None, note="nobody answers")
    (room,) = machine(lost).rooms
    assert room.free_bytes is None
    assert room.note == "nobody answers"


def test_processes_are_told_where_the_driver_names_them():
    """A card without a list is left out."""
    uses = (ProcessUse(3, 10), ProcessUse(4, None))
    cards = [reading("cuda:0", "GPU-a", processes=uses), reading("cuda:1", "GPU-b")]
    assert used_by_processes([reading("cpu"), *cards]) == {"GPU-a": {3: 10, 4: None}}


def test_cards_that_nothing_runs_on_are_no_devices(monkeypatch):
    """Too old, or without what corral needs to use them."""
    cards = [Gpu("GPU-old", "old", capability=(7, 5)), Gpu("GPU-new", "new", capability=(9, 0))]
    cards.append(Gpu("GPU-quiet", "quiet"))
    readings = [reading("cpu"), *(reading(f"cuda:{n}", c.uuid) for n, c in enumerate(cards))]
    monkeypatch.setattr(module, "machine_listing", lambda: Listing(tuple(readings)))
    monkeypatch.setattr(module, "machine_visible", lambda: Visible(tuple(cards)))
    monkeypatch.setattr(module, "has_bindings", lambda: True)
    assert [one.uuid for one in machine_readings()] == [None, "GPU-new", "GPU-quiet"]
    monkeypatch.setattr(module, "has_bindings", lambda: False)
    assert [one.name for one in machine_readings()] == ["cpu"]


def test_this_machine_has_main_memory():
    """Read without anything heavy, and known."""
    (cpu,) = [one for one in machine_readings() if one.name == "cpu"]
    (site, *_), (room, *_) = (lambda m: (m.sites, m.rooms))(machine(cpu))
    assert site == Site("cpu", "cpu")
    assert room.memory == HOST
    assert 0 < room.free_bytes <= room.total_bytes
