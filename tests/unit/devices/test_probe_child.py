"""The child of a probe, on a driver that is played call by call."""

import ctypes
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from corral.devices import probe_child
from corral.devices.probe_child import (
    TAG,
    CallFailed,
    Library,
    MemoryV1,
    MemoryV2,
    Nvml,
    context_bytes,
    driver_version,
    load,
    read,
)

UUID = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
MIB = 1 << 20
INIT, CONTEXT, FREE, TOTAL = 3 * MIB, 523 * MIB, 6000 * MIB, 8000 * MIB


class Card:
    """A device, and what of it is free as calls come and go."""

    def __init__(self):
        self.free = FREE
        self.users = 0
        self.current = []
        self.count = 1
        self.calls = []
        self.failures = {}
        """Status by call."""
        self.on = {}
        """What else happens at a call."""


def driver(card, *, without=()):
    """Return libcuda of a machine with this card."""

    def init(flags):
        card.free -= INIT

    def count(pointer):
        pointer._obj.value = card.count

    def get(pointer, ordinal):
        pointer._obj.value = 0

    def uuid(pointer, device):
        pointer._obj[:] = range(16)

    def name(buffer, size, device):
        buffer.value = b"Played card"

    def retain(pointer, device):
        card.users += 1
        card.free -= CONTEXT
        pointer._obj.value = 77

    def push(context):
        card.current.append(context.value)

    def memory(free, total):
        assert card.current == [77]
        free._obj.value, total._obj.value = card.free, TOTAL

    def pop(pointer):
        pointer._obj.value = card.current.pop()

    def release(device):
        card.users -= 1
        card.free += CONTEXT

    def version(pointer):
        pointer._obj.value = 13020

    functions = {
        "cuInit": init,
        "cuDeviceGetCount": count,
        "cuDeviceGet": get,
        "cuDeviceGetUuid_v2": uuid,
        "cuDeviceGetUuid": uuid,
        "cuDeviceGetName": name,
        "cuDevicePrimaryCtxRetain": retain,
        "cuDevicePrimaryCtxRelease_v2": release,
        "cuCtxPushCurrent_v2": push,
        "cuCtxPopCurrent_v2": pop,
        "cuMemGetInfo_v2": memory,
        "cuDriverGetVersion": version,
    }
    kept = {key: function for key, function in functions.items() if key not in without}
    return Library(played(card, kept))


def nvml(card, *, uuid=UUID, without=(), version="580.159.04"):
    """Return NVML of the same machine."""

    def find(asked, pointer):
        if asked.decode() != UUID:
            return 6
        pointer._obj.value = 88
        return 0

    def memory_v2(handle, pointer):
        memory = pointer._obj
        assert isinstance(memory, MemoryV2)
        assert memory.version == 0x02000028
        memory.total, memory.reserved, memory.free = TOTAL + 615 * MIB, 615 * MIB, card.free

    def memory_v1(handle, pointer):
        assert isinstance(pointer._obj, MemoryV1)
        pointer._obj.free = card.free

    def tell_version(buffer, size):
        buffer.value = version.encode()

    functions = {
        "nvmlInit_v2": lambda: None,
        "nvmlDeviceGetHandleByUUID": find,
        "nvmlDeviceGetMemoryInfo_v2": memory_v2,
        "nvmlDeviceGetMemoryInfo": memory_v1,
        "nvmlSystemGetDriverVersion": tell_version,
    }
    kept = {key: function for key, function in functions.items() if key not in without}
    return Nvml(Library(played(card, kept)), uuid)


def played(card, functions):
    """Return a library of these functions, which note their calls and fail when told to."""

    def wrap(name, function):
        def call(*arguments):
            card.calls.append(name)
            if name in card.failures:
                return card.failures[name]
            card.on.get(name, lambda: None)()
            return function(*arguments) or 0

        return call

    return SimpleNamespace(**{name: wrap(name, f) for name, f in functions.items()})


NO_NVML = Nvml(None, UUID)


def test_a_report():
    """It tells the device, what the driver says is free, and what driver and context took."""
    card = Card()
    told = read(UUID, driver(card), nvml(card))
    assert told == {
        "uuid": UUID,
        "name": "Played card",
        "driver_version": "580.159.04",
        "total_bytes": TOTAL,
        "free_bytes": FREE - INIT - CONTEXT,
        "context_bytes": INIT + CONTEXT,
    }
    assert (card.users, card.current) == (0, [])


def test_without_nvml():
    """What the context took is not known then; the rest is."""
    card = Card()
    told = read(UUID, driver(card), NO_NVML)
    assert told["context_bytes"] is None
    assert told["free_bytes"] == FREE - INIT - CONTEXT


@pytest.mark.parametrize("without", ["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"])
def test_either_form_of_nvml_memory(without):
    """An old driver knows the first form only."""
    card = Card()
    assert read(UUID, driver(card), nvml(card, without=(without,)))["context_bytes"]


@pytest.mark.parametrize(
    "call", ["nvmlInit_v2", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetMemoryInfo_v2"]
)
def test_what_nvml_refuses(call):
    """A refusal, as for a slice without privilege, leaves the cost unknown and no more."""
    card = Card()
    card.failures = {call: 4, "nvmlDeviceGetMemoryInfo": 3}
    told = read(UUID, driver(card), nvml(card))
    assert told["context_bytes"] is None
    assert told["driver_version"] == "580.159.04"


CUDA_CALLS = (
    *("cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetUuid_v2", "cuDeviceGetName"),
    *("cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuMemGetInfo_v2", "cuCtxPopCurrent_v2"),
    "cuDevicePrimaryCtxRelease_v2",
)


@pytest.mark.parametrize("call", CUDA_CALLS)
def test_every_status_is_checked(call):
    """A refused call ends the reading and is named; whatever was retained is released, once."""
    card = Card()
    card.failures = {call: 2}
    with pytest.raises(CallFailed, match=rf"^{call} said 2$"):
        read(UUID, driver(card), NO_NVML)
    counts = [card.calls.count(f"cuDevicePrimaryCtx{name}") for name in ("Retain", "Release_v2")]
    if call != "cuDevicePrimaryCtxRetain":
        assert counts[0] == counts[1]


@pytest.mark.parametrize("call", [c for c in CUDA_CALLS if c != "cuDeviceGetUuid_v2"])
def test_a_driver_without_a_function(call):
    """It is named, too."""
    card = Card()
    with pytest.raises(CallFailed, match=f"has no {call}"):
        read(UUID, driver(card, without=(call,)), NO_NVML)


def test_errors_have_names():
    """The driver's own name of a status stands in the message."""

    def name(status, pointer):
        pointer._obj.value = b"CUDA_ERROR_OUT_OF_MEMORY"

    library = Library(SimpleNamespace(cuInit=lambda flags: 2, cuGetErrorName=name))
    with pytest.raises(CallFailed, match=r"cuInit said CUDA_ERROR_OUT_OF_MEMORY \(2\)"):
        library.call("cuInit", 0)


@pytest.mark.parametrize("count", [0, 2])
def test_one_device_is_visible(count):
    """With none the UUID is unknown here; with two something ignored it."""
    card = Card()
    card.count = count
    with pytest.raises(CallFailed, match=f"{count} devices are visible"):
        read(UUID, driver(card), NO_NVML)
    assert "cuDevicePrimaryCtxRetain" not in card.calls


def test_another_device_is_visible():
    """No context is made on a device that was not asked for."""
    card = Card()
    with pytest.raises(CallFailed, match=f"visible device is {UUID}"):
        read("GPU-" + "0" * 8 + UUID[12:], driver(card), NO_NVML)
    assert "cuDevicePrimaryCtxRetain" not in card.calls


def test_a_slice():
    """A slice has a UUID of its own, which only the newer call tells."""
    card = Card()
    mig = UUID.replace("GPU", "MIG")
    assert read(mig, driver(card), NO_NVML)["uuid"] == mig
    assert "cuDeviceGetUuid" not in card.calls
    old = driver(card, without=("cuDeviceGetUuid_v2",))
    assert read(UUID, old, NO_NVML)["uuid"] == UUID


@pytest.mark.parametrize(
    "call", ["cuInit", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2"]
)
@pytest.mark.parametrize("change", [-70 * MIB, 70 * MIB])
def test_others_change_the_device_meanwhile(call, change):
    """A cost that others may have had a part in is not told."""
    card = Card()

    def others():
        card.free += change

    card.on = {call: others}
    assert read(UUID, driver(card), nvml(card))["context_bytes"] is None


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ((100, 97, 40, 97), 60),
        ((100, 100, 40, 99), 60),
        ((100, 97, 40, 94), None),
        ((100, 101, 40, 101), None),
        ((100, 97, 98, 97), None),
        ((1000, 900, 400, 900), None),
        ((None, 97, 40, 97), None),
        ((100, 97, None, 97), None),
        ((100, 97, 40, None), None),
    ],
)
def test_what_a_context_took(readings, expected):
    """From before the driver's start to inside the context, if all was quiet."""
    scaled = [None if value is None else value * MIB for value in readings]
    assert context_bytes(*scaled) == (expected and expected * MIB)


def test_versions_of_the_driver(tmp_path):
    """NVML's text, else the kernel module's, which is the same; else that of its CUDA."""
    file = tmp_path / "version"
    library = driver(Card())
    assert driver_version(library, str(file)) == "CUDA 13.2"
    file.write_text("")
    assert driver_version(library, str(file)) == "CUDA 13.2"
    file.write_text("580.159.04\n")
    assert driver_version(library, str(file)) == "580.159.04"


def test_a_library_that_is_missing():
    """It is named."""
    with pytest.raises(CallFailed, match=r"libnothing\.so cannot be loaded"):
        load("libnothing.so")


@pytest.mark.parametrize("is_good", [True, False])
def test_what_is_printed(monkeypatch, capsys, is_good):
    """One tagged line, also after somebody's unfinished one; the exit status says if it failed."""
    card = Card()
    card.failures = {} if is_good else {"cuInit": 100}
    monkeypatch.setattr(probe_child, "load", lambda name: driver(card))
    monkeypatch.setattr(probe_child, "find_nvml", lambda uuid: NO_NVML)
    monkeypatch.setattr(probe_child.signal, "setitimer", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["probe_child.py", UUID, "10"])
    print("half a line", end="")
    status = probe_child.main()
    line = capsys.readouterr().out.splitlines()[-1]
    told = json.loads(line.removeprefix(f"{TAG} "))
    assert status == (0 if is_good else 1)
    assert told.get("error") == (None if is_good else "cuInit said 100")


def test_it_ends_itself(tmp_path):
    """Left alone by a caller that died, it ends a little after its time."""
    code = (
        "import sys, time; sys.path.insert(0, sys.argv.pop(1)); import probe_child\n"
        "probe_child._EXTRA_SECONDS = 0.1; probe_child.report = lambda uuid: time.sleep(60)\n"
        "probe_child.main()"
    )
    folder = str(probe_child.__file__).rpartition("/")[0]
    command = [sys.executable, "-I", "-S", "-c", code, folder, UUID, "0.1"]
    assert subprocess.run(command, timeout=30, check=False).returncode == -14


def test_it_loads_little():
    """It runs by its path in an isolated interpreter, and imports nothing of corral."""
    code = (
        "import sys; text = open(sys.argv[1]).read()\n"
        "exec(compile(text, 'child', 'exec'), {'__name__': 'child'}); print(*sys.modules)"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(probe_child.__file__)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    heavy = {"corral", "numpy", "cuda", "pathlib", "typing", "dataclasses", "subprocess"}
    assert not heavy & set(result.stdout.split())


def test_the_structures_are_of_nvmls_sizes():
    """Their sizes are part of the call."""
    assert (ctypes.sizeof(MemoryV1), ctypes.sizeof(MemoryV2)) == (24, 40)
