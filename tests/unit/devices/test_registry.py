"""Devices by name."""

import pytest

from corral.devices import listing, registry
from corral.devices.null.device import NullDevice
from corral.devices.reference.device import ReferenceDevice
from corral.devices.visible import Visible
from corral.errors import DeviceUnavailable, InvalidArgument
from fake_nvml import gpu


@pytest.mark.parametrize(("name", "kind"), [("reference", ReferenceDevice), ("null", NullDevice)])
def test_open(name, kind):
    """A name opens its device, and the device knows the name."""
    with registry.open(name) as device:
        assert isinstance(device, kind)
        assert device.name == name


OLD, NEW = gpu(1, capability=(7, 5)), gpu(2, capability=(8, 6))


@pytest.mark.parametrize(
    ("cards", "is_installed", "expected"),
    [
        ((), True, "cpu"),
        ((NEW,), True, "cuda:0"),
        ((NEW,), False, "cpu"),
        ((OLD,), True, "cpu"),
        ((OLD, NEW), True, "cuda:1"),
        ((gpu(3, capability=None),), True, "cuda:0"),
        (gpu(4, slices=1).slices, True, "cuda:0"),
    ],
)
def test_auto_is_a_card_that_can_be_used_or_the_cpu(cards, is_installed, expected, monkeypatch):
    """The first on which kernels run, if what they need is installed."""
    monkeypatch.setattr(listing, "machine_visible", lambda: Visible(tuple(cards)))
    monkeypatch.setattr(listing, "has_bindings", lambda: is_installed)
    assert registry.resolve("auto") == expected


@pytest.mark.parametrize("name", registry.NAMES)
def test_traits_without_opening(name):
    """Planning gets the traits that the device will have."""
    traits = registry.traits(name)
    if name != "cpu":
        with registry.open(name) as device:
            assert device.traits == traits


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cpus", "did you mean 'cpu'"),
        ("CPU", "did you mean 'cpu'"),
        ("referense", "did you mean 'reference'"),
        ("cuda0", "did you mean 'cuda:0'"),
        ("cuda:x", "did you mean 'cuda:0'"),
        ("cuda:00", "did you mean 'cuda:0'"),
        ("cuda:٣", "did you mean 'cuda:0'"),
        ("GPU-zzz", "use one of auto, cpu"),
        ("GPU-12/0/1", "use one of auto, cpu"),
        ("MIG-GPU-12/0", "use one of auto, cpu"),
        ("", "use one of auto, cpu"),
        ("x" * 10_000, "use one of"),
    ],
)
def test_unknown_names(name, hint):
    """The refusal names the nearest device, or all of them, and stays short."""
    with pytest.raises(DeviceUnavailable, match=hint) as refusal:
        registry.open(name)
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize("name", [None, 3, b"cpu", ["cpu"]])
def test_names_that_are_no_text(name):
    """A device is asked for by a str."""
    with pytest.raises(InvalidArgument, match=r"the device is of type .*; expected a name"):
        registry.resolve(name)


@pytest.mark.parametrize("name", ["cuda:0", "GPU-6f85", "MIG-6F85ab3c-0000"])
def test_names_of_cards(name):
    """Numbers, and beginnings of UUIDs of cards and slices."""
    assert registry.resolve(name) == name
