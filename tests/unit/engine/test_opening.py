"""Devices that open while something else is done: none is left open, held or woken for nothing."""

from contextlib import ExitStack

import pytest

import tiny
from corral.devices import registry
from corral.devices.reference.device import ReferenceDevice
from corral.engine.opened import Sizes, open_by_name
from corral.engine.opening import Opening
from corral.engine.targets import Targets
from corral.errors import DeviceUnavailable, InvalidModelFile, ModelNotFound, OutOfMemory


class Noted(ReferenceDevice):
    """A device that notes how often it is held, and whether it still is."""

    refuses = False

    def __init__(self):
        super().__init__()
        self.holds = self.held = 0

    def hold(self):
        """Note it, or refuse."""
        if self.refuses:
            raise OutOfMemory("no room for a context")
        self.holds += 1
        self.held += 1
        stack = ExitStack()
        stack.callback(self._let_go)
        return stack

    def _let_go(self):
        self.held -= 1


@pytest.fixture
def opened(monkeypatch):
    """Return the devices that are opened; one of the name null is not here."""
    made = []

    def open_device(name, *, threads=None):
        if name == "null":
            raise DeviceUnavailable("it is not here")
        made.append(Noted())
        return made[-1]

    monkeypatch.setattr(registry, "open", open_device)
    yield made
    assert all(device.is_closed and device.held == 0 for device in made)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Return a small model's file."""
    return tiny.write(tmp_path_factory.mktemp("models") / "tiny.gguf")


def test_it_is_held_until_the_model_holds_it(opened, path):
    """Woken early, and held by nobody but the model in the end."""
    with ExitStack() as stack:
        model = open_by_name(path, Targets.of("reference"), Sizes(context=64))
        stack.callback(model.close)
        (device,) = opened
        assert (device.holds, device.held, device.is_closed) == (2, 1, False)


@pytest.mark.parametrize("name", ["missing.gguf", "broken.gguf"])
def test_a_file_at_fault_leaves_nothing_open(opened, tmp_path, name):
    """Whatever the device was about when it was found out."""
    (tmp_path / "broken.gguf").write_bytes(b"GGUF but not for long")
    with pytest.raises((ModelNotFound, InvalidModelFile)):
        open_by_name(tmp_path / name, Targets.of("reference"), Sizes())
    assert len(opened) == 1


def test_a_device_that_is_not_here_is_told_before_anything_is_fetched(opened, monkeypatch):
    """And the one beside it is closed again."""

    def fetch(name, *, progress=None):
        raise AssertionError("a download was begun")

    monkeypatch.setattr("corral.engine.opened.resolve", fetch)
    with pytest.raises(DeviceUnavailable):
        open_by_name("demo", Targets.of(["reference", "null"]), Sizes())
    assert len(opened) == 1


def test_a_device_that_cannot_be_held_is_still_opened(opened, monkeypatch):
    """Its first use will tell why; waiting for nothing ends here."""
    monkeypatch.setattr(Noted, "refuses", True)
    opening = Opening(Targets.of("reference"), threads=None)
    assert opening.devices() == opened
    opening.let_go()
    opening.close()
    opening.close()


def test_cards_without_layers_are_not_woken(opened):
    """All layers are the host's: the card is opened, and its driver makes nothing for it."""
    targets = Targets(("reference", "cuda:0"), (1.0,), gpu_layers=0)
    opening = Opening(targets, threads=None)
    assert [device.holds for device in opening.devices()] == [0, 0]
    opening.close()
