"""What this process holds, to know what is foreign."""

import os

import pytest

from corral.devices import own_use
from corral.devices.own_use import cuda_is_started, own_bytes, own_number


class Driver:
    """A driver that is loaded; its status is what every call says before cuInit."""

    def __init__(self, status):
        self.status = status

    def cuDeviceGetCount(self, count):  # noqa: N802
        return self.status


@pytest.fixture
def started(monkeypatch):
    """Play a driver that is loaded and started, in the driver's own namespace."""
    monkeypatch.setattr(own_use, "_loaded_driver", lambda: Driver(0))
    monkeypatch.setattr(own_use, "own_number", os.getpid)


@pytest.mark.parametrize(
    ("driver", "expected"),
    [(None, False), (Driver(3), False), (Driver(0), True), (Driver(1), True)],
)
def test_a_loaded_driver_is_not_a_started_one(monkeypatch, driver, expected):
    """NVML loads the driver's library by itself; only cuInit starts it."""
    monkeypatch.setattr(own_use, "_loaded_driver", lambda: driver)
    assert cuda_is_started() is expected


def test_who_did_not_start_cuda_holds_nothing(monkeypatch):
    """Whatever the list of processes says, and in any container."""
    monkeypatch.setattr(own_use, "_loaded_driver", lambda: None)
    assert own_bytes("GPU-1", None) == own_bytes("GPU-1", ((os.getpid(), 5),)) == 0


def test_the_list_tells_what_this_process_holds(started):
    """Its own entry, or nothing without one; unknown where the driver does not tell bytes."""
    assert own_bytes("GPU-1", ((1, 7), (os.getpid(), 5))) == 5
    assert own_bytes("GPU-1", ((1, 7),)) == 0
    assert own_bytes("GPU-1", ((os.getpid(), None),)) is None
    assert own_bytes("GPU-1", None) is None


def test_in_a_container_the_list_speaks_of_others(monkeypatch, started):
    """Its numbers are those of the host, so none of them is known to be ours."""
    monkeypatch.setattr(own_use, "own_number", lambda: None)
    assert own_bytes("GPU-1", ((os.getpid(), 5),)) is None


def test_this_process_is_asked_for_real():
    """No CUDA is started in the tests; the number is that of this process, or none."""
    assert not cuda_is_started()
    assert own_number() in (os.getpid(), None)
