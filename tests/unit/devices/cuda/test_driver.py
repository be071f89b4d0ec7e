"""The calls through cuda.bindings: handles become integers, statuses errors, forks are refused."""

import os
import sys
from enum import IntEnum
from types import ModuleType, SimpleNamespace

import pytest

from corral.devices.cuda.contexts import Contexts
from corral.devices.cuda.driver import LibraryDriver, format_uuid
from corral.devices.cuda.driver_errors import EXTRA, failure
from corral.errors import (
    DeviceFault,
    DeviceUnavailable,
    InternalError,
    OutOfMemory,
    StaleContext,
)


class Status(IntEnum):
    """A few of the driver's."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100


def bindings(**changed):
    """Return a module like cuda.bindings.driver, for one device."""
    attributes = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_INTEGRATED=18,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=75,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=76,
    )
    calls = {
        "cuInit": lambda flags: (Status.CUDA_SUCCESS,),
        "cuDeviceGetCount": lambda: (Status.CUDA_SUCCESS, 1),
        "cuDeviceGetUuid": lambda n: (Status.CUDA_SUCCESS, SimpleNamespace(bytes=bytes(range(16)))),
        "cuDeviceGetName": lambda size, n: (Status.CUDA_SUCCESS, b"A card\0\0"),
        "cuDeviceTotalMem": lambda n: (Status.CUDA_SUCCESS, 1000),
        "cuDeviceGetAttribute": lambda which, n: (Status.CUDA_SUCCESS, which % 10),
        "cuMemAlloc": lambda size: (Status.CUDA_SUCCESS, 4096 + size),
        "cuMemGetInfo": lambda: (Status.CUDA_SUCCESS, 10, 20),
        "cuDevicePrimaryCtxGetState": lambda n: (Status.CUDA_SUCCESS, 7, 0),
    } | changed
    for name, call in calls.items():
        call.__name__ = name
    return SimpleNamespace(CUresult=Status, CUdevice_attribute=attributes, **calls)


@pytest.fixture
def install(monkeypatch):
    """Return a function that puts played bindings in the place of the real ones."""

    def put(**changed):
        package = ModuleType("cuda.bindings")
        package.driver = bindings(**changed)
        monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
        monkeypatch.setitem(sys.modules, "cuda.bindings", package)
        return LibraryDriver()

    return put


def test_values_are_plain(install):
    """What a call returns beside its status, alone or several."""
    driver = install()
    (facts,) = driver.devices()
    assert (facts.uuid, facts.name) == ("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", "A card")
    assert (facts.total_bytes, facts.is_integrated, facts.capability) == (1000, True, (5, 6))
    assert driver.allocate(4) == 4100
    assert driver.memory() == (10, 20)
    assert driver.primary_is_active(0) is False


def test_statuses_are_never_overlooked(install):
    """Any status but success raises, with the call's name and the status's own."""
    driver = install(cuMemAlloc=lambda size: (Status.CUDA_ERROR_OUT_OF_MEMORY, None))
    with pytest.raises(OutOfMemory, match=r"cuMemAlloc said CUDA_ERROR_OUT_OF_MEMORY \(2\)"):
        driver.allocate(4)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((2, OutOfMemory), (100, DeviceUnavailable), (46, DeviceUnavailable)),
        *((201, StaleContext), (709, StaleContext), (1, InternalError)),
        *((700, DeviceFault), (719, DeviceFault), (214, DeviceFault), (999, DeviceFault)),
    ],
)
def test_every_status_has_an_error(status, kind):
    """Those that poison the context say that a new process is needed."""
    error = failure("cuCall", status, "CUDA_ERROR_X")
    assert type(error) is kind
    assert ("start a new one" in str(error)) == (kind is DeviceFault)


def test_a_machine_without_cards(install):
    """Loading says so, and what to look at."""
    driver = install(cuInit=lambda flags: (Status.CUDA_ERROR_NO_DEVICE,))
    with pytest.raises(DeviceUnavailable, match="CUDA_VISIBLE_DEVICES"):
        Contexts(driver)


def test_a_machine_without_a_driver(install):
    """The bindings raise where they find no library."""

    def missing(flags):
        raise RuntimeError("no libcuda")

    with pytest.raises(DeviceUnavailable, match="no NVIDIA driver"):
        install(cuInit=missing).initialize()


def test_bindings_that_are_not_installed(monkeypatch):
    """The message is how to get them."""
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setitem(sys.modules, "cuda", None)
    with pytest.raises(DeviceUnavailable) as refusal:
        LibraryDriver()
    assert EXTRA in str(refusal.value)


def test_a_forked_child_is_refused(install, monkeypatch):
    """CUDA does not survive a fork: the child is told, and makes no call."""
    driver = install()
    driver.initialize()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(DeviceUnavailable, match="spawn"):
        driver.allocate(4)


def test_uuids_are_written_as_tools_write_them():
    """Sixteen bytes in groups of 8, 4, 4, 4 and 12 digits."""
    assert format_uuid(bytes(16)) == "GPU-00000000-0000-0000-0000-000000000000"
