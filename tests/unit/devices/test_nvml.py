"""The binding to NVML: structures, statuses and sizes, against a library that is played."""

import ctypes

import pytest

from corral.devices.nvml import (
    AbsentNvml,
    LibraryNvml,
    MigSlice,
    NvmlAbsent,
    NvmlFailure,
    NvmlLost,
    NvmlMemory,
    NvmlNotInstalled,
    NvmlNotSupported,
    NvmlRefused,
)
from fake_nvml import NOT_AVAILABLE, FakeLibrary

MEMORY = "nvmlDeviceGetMemoryInfo_v2"
PROCESSES = "nvmlDeviceGetComputeRunningProcesses_v3"


def started(**options):
    """Return a played library and the binding to it."""
    library = FakeLibrary(**options)
    return library, LibraryNvml(lambda: library)


def test_cards_and_their_memory():
    """Version 2 of the memory structure, whose size is part of its version."""
    _, nvml = started()
    (card,) = nvml.gpus()
    assert (card.uuid, card.name, card.slices, card.is_cut) == ("GPU-1", "A card", (), False)
    assert nvml.memory("GPU-1") == NvmlMemory(100, 10, 60, 30)
    assert nvml.driver_version() == "580.1"


def test_cards_in_slices():
    """Empty places are passed over; a card may be in that mode and have no slice."""
    _, nvml = started(slices=1)
    (card,) = nvml.gpus()
    assert card.slices == (MigSlice("MIG-101", "A card", (7, 0)),)
    library, nvml = started(slices=1)
    library.status["nvmlDeviceGetMigDeviceHandleByIndex"] = 6
    (card,) = nvml.gpus()
    assert (card.slices, card.is_cut) == ((), True)


@pytest.mark.parametrize("status", ["missing", 13, 25, 26])
def test_old_libraries_have_the_first_structure_only(status):
    """Reserved is then unknown."""
    library, nvml = started()
    library.status[MEMORY] = status
    assert nvml.memory("GPU-1") == NvmlMemory(100, None, 60, 30)


def test_what_a_card_does_not_tell_is_asked_once():
    """Not supported is an answer, not a reason to try an older call."""
    library, nvml = started()
    library.status[MEMORY] = 3
    with pytest.raises(NvmlNotSupported):
        nvml.memory("GPU-1")
    assert "nvmlDeviceGetMemoryInfo" not in library.calls


@pytest.mark.parametrize("running", [0, 3, 64, 65, 200])
def test_processes_however_many(running):
    """The list grows until it is large enough; bytes that are not told are None."""
    library, nvml = started()
    told = [(number, NOT_AVAILABLE if number == 0 else number) for number in range(running)]
    library.processes["Compute"] = told
    expected = tuple((number, number or None) for number in range(running))
    assert nvml.processes("GPU-1") == expected


def test_who_computes_and_draws_is_there_once():
    """Both lists tell all that a process holds."""
    library, nvml = started()
    library.processes = {"Compute": [(7, 300), (8, 5)], "Graphics": [(7, 200), (9, 1)]}
    assert nvml.processes("GPU-1") == ((7, 300), (8, 5), (9, 1))


def test_a_list_that_never_fits_ends():
    """A library that always wants more room does not hold us for ever."""
    library, nvml = started()
    library.status[PROCESSES] = 7
    with pytest.raises(NvmlFailure, match="grows and grows"):
        nvml.processes("GPU-1")
    assert library.calls.count(PROCESSES) < 10


KINDS = {
    **dict.fromkeys((1, 9, 12, 18), NvmlAbsent),
    **dict.fromkeys((4, 17), NvmlRefused),
    **dict.fromkeys((15, 16), NvmlLost),
    3: NvmlNotSupported,
}


@pytest.mark.parametrize("status", [*range(1, 31), 999])
@pytest.mark.parametrize("call", ["memory", "processes"])
def test_statuses_become_failures(call, status):
    """Each is told with the call and the status; none that is not about support claims to be."""
    library, nvml = started()
    for name in (MEMORY, "nvmlDeviceGetMemoryInfo", PROCESSES):
        library.status[name] = status
    with pytest.raises(NvmlFailure) as caught:
        getattr(nvml, call)("GPU-1")
    if call == "processes" and status == 7:
        return
    assert f"(status {status})" in str(caught.value)
    expected = KINDS.get(status, NvmlFailure)
    assert isinstance(caught.value, expected)
    if expected is NvmlFailure:
        others = (NvmlAbsent, NvmlNotSupported, NvmlRefused, NvmlLost)
        assert not isinstance(caught.value, others)


def test_no_library_is_said():
    """Absent, or present without a driver: different things to do."""

    def load():
        raise OSError("libnvidia-ml.so.1: no such file")

    with pytest.raises(NvmlNotInstalled, match="not installed"):
        LibraryNvml(load)
    library = FakeLibrary()
    library.status["nvmlInit_v2"] = 9
    with pytest.raises(NvmlAbsent, match="no NVIDIA driver is loaded") as caught:
        LibraryNvml(lambda: library)
    assert not isinstance(caught.value, NvmlNotInstalled)
    with pytest.raises(NvmlAbsent, match="no NVIDIA driver is loaded"):
        AbsentNvml(caught.value).gpus()


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"])
def test_a_lost_card_hides_no_other(call):
    """It keeps its place in the list and says why it cannot be used."""
    library, nvml = started(cards=2)
    library.status[call] = [15]
    lost, well = nvml.gpus()
    assert (lost.uuid, well.uuid) == ("", "GPU-2")
    assert "fell off the bus: restart the machine" in lost.failure


def test_handles_are_kept():
    """After the first reading, a reading is one call."""
    library, nvml = started()
    nvml.memory("GPU-1")
    library.calls.clear()
    for _ in range(5):
        nvml.memory("GPU-1")
    assert library.calls == [MEMORY] * 5


def test_a_stale_handle_is_found_anew():
    """A slice that was made again under its UUID has another handle."""
    library, nvml = started()
    nvml.memory("GPU-1")
    library.stale.add(1)
    assert nvml.memory("GPU-1").free_bytes == 60
    assert library.calls.count("nvmlDeviceGetHandleByUUID") == 2


def test_a_device_that_is_not_there():
    """A UUID that nobody knows is a failure, and no sign of unified memory."""
    _, nvml = started()
    with pytest.raises(NvmlFailure, match="there is no such device") as caught:
        nvml.memory("GPU-elsewhere")
    assert not isinstance(caught.value, NvmlNotSupported)


def test_the_structures_have_the_librarys_layout():
    """Sizes and offsets as in the C header, on a 64-bit machine."""
    from corral.devices import nvml

    assert ctypes.sizeof(nvml._MemoryV2) == 40
    assert nvml._MemoryV2.total.offset == 8
    assert ctypes.sizeof(nvml._MemoryV1) == 24
    assert ctypes.sizeof(nvml._Process) == 24
    offsets = [getattr(nvml._Process, name).offset for name, _ in nvml._Process._fields_]
    assert offsets == [0, 8, 16, 20]
