"""The binding to NVML: structures, statuses and sizes, against a library that is played."""

import ctypes

import pytest

from corral.devices.nvml import (
    LibraryNvml,
    MigSlice,
    NvmlAbsent,
    NvmlFailure,
    NvmlMemory,
    NvmlNotSupported,
    NvmlRefused,
)

UUIDS = {1: "GPU-one", 2: "MIG-two"}


class Library:
    """Answers as NVML does, through pointers."""

    def __init__(self):
        self.status = {}
        self.mig, self.running = 0, 3

    def __getattr__(self, name):
        if not name.startswith("nvml") or self.status.get(name) == "missing":
            raise AttributeError(name)

        def call(*arguments):
            status = self.status.get(name, 0)
            return status or self.answer(name, arguments) or 0

        return call

    def answer(self, name, arguments):
        arguments = arguments or (None,)
        texts = {
            "nvmlDeviceGetName": "A card",
            "nvmlSystemGetDriverVersion": "580.1",
            "nvmlDeviceGetUUID": UUIDS.get(getattr(arguments[0], "value", None), "")
            if arguments
            else "",
        }
        numbers = {
            "nvmlDeviceGetCount_v2": 1,
            "nvmlDeviceGetMaxMigDeviceCount": 2,
            "nvmlDeviceGetGpuInstanceId": 7,
            "nvmlDeviceGetComputeInstanceId": 0,
        }
        if name in texts:
            arguments[-2].value = texts[name].encode()
        elif name in numbers:
            arguments[-1]._obj.value = numbers[name]
        elif name == "nvmlDeviceGetMigMode":
            arguments[1]._obj.value = self.mig
        elif name == "nvmlDeviceGetHandleByIndex_v2":
            arguments[1]._obj.value = 1
        elif name == "nvmlDeviceGetMigDeviceHandleByIndex":
            if arguments[1].value:
                return 6
            arguments[2]._obj.value = 2
        elif name == "nvmlDeviceGetHandleByUUID":
            arguments[1]._obj.value = 1
        elif name.startswith("nvmlDeviceGetMemoryInfo"):
            told = arguments[1]._obj
            told.total, told.free, told.used = 100, 60, 30
            if name.endswith("_v2"):
                assert told.version == ctypes.sizeof(told) | 2 << 24 == 40 | 2 << 24
                told.reserved = 10
        elif name == "nvmlDeviceGetComputeRunningProcesses_v3":
            count, told = arguments[1]._obj, arguments[2]
            if count.value < self.running:
                return 7
            count.value = self.running
            for number in range(self.running):
                told[number].pid = number
                told[number].used = 2**64 - 1 if number == 0 else number
        return 0


@pytest.fixture
def library():
    """Return a played library."""
    return Library()


def test_cards_and_their_memory(library):
    """Version 2 of the memory structure, whose size is part of its version."""
    nvml = LibraryNvml(lambda: library)
    (card,) = nvml.gpus()
    assert (card.uuid, card.name, card.slices) == ("GPU-one", "A card", ())
    assert nvml.memory("GPU-one") == NvmlMemory(100, 10, 60, 30)
    assert nvml.driver_version() == "580.1"


def test_cards_in_slices(library):
    """Empty places are passed over."""
    library.mig = 1
    (card,) = LibraryNvml(lambda: library).gpus()
    assert card.slices == (MigSlice("MIG-two", "A card", (7, 0)),)


def test_old_libraries_have_the_first_structure_only(library):
    """Reserved is then unknown."""
    library.status["nvmlDeviceGetMemoryInfo_v2"] = "missing"
    assert LibraryNvml(lambda: library).memory("GPU-one") == NvmlMemory(100, None, 60, 30)


@pytest.mark.parametrize("running", [0, 3, 64, 65, 200])
def test_processes_however_many(library, running):
    """The list grows until it is large enough; bytes that are not told are None."""
    library.running = running
    expected = tuple((number, number or None) for number in range(running))
    assert LibraryNvml(lambda: library).processes("GPU-one") == expected


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (3, NvmlNotSupported),
        (4, NvmlRefused),
        (9, NvmlAbsent),
        (15, NvmlFailure),
        (18, NvmlAbsent),
        (999, NvmlFailure),
    ],
)
@pytest.mark.parametrize("call", ["memory", "processes"])
def test_statuses_become_failures(library, call, status, kind):
    """Each is told with the call and the status."""
    nvml = LibraryNvml(lambda: library)
    for name in (
        *("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"),
        "nvmlDeviceGetComputeRunningProcesses_v3",
    ):
        library.status[name] = status
    with pytest.raises(kind, match=rf"NVML does not answer nvmlDevice\w+: .* \(status {status}\)"):
        getattr(nvml, call)("GPU-one")


def test_no_library_is_said(library):
    """Absent, or present without a driver."""

    def load():
        raise OSError("libnvidia-ml.so.1: no such file")

    with pytest.raises(NvmlAbsent, match="not installed"):
        LibraryNvml(load)
    library.status["nvmlInit_v2"] = 9
    with pytest.raises(NvmlAbsent, match="no NVIDIA driver is loaded"):
        LibraryNvml(lambda: library)


def test_a_lost_card_hides_no_other(library, caplog):
    """It is left out, and the log says why."""
    library.status["nvmlDeviceGetHandleByIndex_v2"] = 15
    assert LibraryNvml(lambda: library).gpus() == ()
    assert "fell off the bus" in caplog.text
