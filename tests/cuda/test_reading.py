"""What reading says of a real card, and that it leaves nothing behind. Ran on an H200 only."""

import ctypes
import json
import os
import subprocess
import sys
import time

import pytest

from corral.devices.listing import machine_listing, machine_sources
from corral.devices.nvml import LibraryNvml, NvmlFailure
from corral.devices.visible import visible_devices

MIB = 1 << 20


def _nvml():
    try:
        nvml = LibraryNvml()
        return nvml if nvml.gpus() else None
    except NvmlFailure:
        return None


NVML = _nvml()
pytestmark = pytest.mark.skipif(NVML is None, reason="needs an NVIDIA card and its NVML")

COUNT = """
import ctypes
driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
uuids = []
if driver.cuInit(0) == 0:
    driver.cuDeviceGetCount(ctypes.byref(count))
    for n in range(count.value):
        raw = (ctypes.c_ubyte * 16)()
        driver.cuDeviceGetUuid_v2(ctypes.byref(raw), n)
        uuids.append(bytes(raw).hex())
print(*uuids)
"""
READ = """
import corral, ctypes, json, sys
corral.devices()
readings = corral.devices()
driver = ctypes.CDLL("libcuda.so.1")
driver.cuInit(0)
flags, active = ctypes.c_uint(), ctypes.c_int()
driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active))
print(json.dumps([active.value, readings[1].foreign_bytes, readings[1].source]))
"""
HOLD = """
import ctypes, sys
driver, context, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
driver.cuCtxPushCurrent_v2(context)
driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 30))
print("held", flush=True)
sys.stdin.readline()
"""


def run(code, **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_VISIBLE")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()


def card():
    return machine_listing().devices[1]


def test_reading_leaves_no_context():
    """After it the primary context is inactive, and no byte more is held."""
    before = NVML.memory(NVML.gpus()[0].uuid).free_bytes
    active, foreign, source = json.loads(run(READ))
    assert (active, source) == (0, "NVML")
    assert foreign < 16 * MIB
    assert abs(NVML.memory(NVML.gpus()[0].uuid).free_bytes - before) <= 2 * MIB


def test_the_numbers_add_up():
    """Of an idle card all but what is reserved is free, and nothing is foreign."""
    reading = card()
    assert reading.total_bytes + reading.reserved_bytes > reading.free_bytes > 0
    assert reading.foreign_bytes == reading.total_bytes - reading.free_bytes


def test_nvml_does_not_start_cuda():
    """Some drivers load libcuda with NVML; this process still holds nothing."""
    code = "import corral; corral.devices(); from corral.devices import own_use; "
    assert run(code + "print(own_use.cuda_is_started())") == "False"


def test_what_another_process_holds_is_foreign():
    """It is listed with its bytes, and gone with it."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline() == "held\n"
        reading = card()
        held = {process.pid: process.used_bytes for process in reading.processes}
        assert reading.foreign_bytes >= 1 << 30
        assert held.get(child.pid, 1 << 30) >= 1 << 30
    finally:
        child.communicate("\n")
    assert card().foreign_bytes < 1 << 30


def test_what_this_process_holds_is_not_foreign():
    """A context of our own is told apart, but for the driver's own few MiB a process."""
    code = HOLD.replace("sys.stdin.readline()", "") + (
        "import corral; d = corral.devices()[1]; print(d.foreign_bytes, d.note)"
    )
    said = run(code).splitlines()[-1]
    if said.startswith("None"):
        pytest.skip("in a container the driver counts processes otherwise")
    assert int(said.split()[0]) < 16 * MIB


def test_a_reading_takes_a_millisecond_at_most():
    """The median, after the first."""
    machine_listing()
    sources, uuid = machine_sources(), NVML.gpus()[0].uuid
    times = []
    for _ in range(101):
        begin = time.perf_counter()
        sources.nvml.memory(uuid)
        sources.nvml.processes(uuid)
        times.append(time.perf_counter() - begin)
    assert sorted(times)[50] <= 1e-3
    begin = time.perf_counter()
    machine_listing()
    print(
        f"memory and processes {sorted(times)[50] * 1e3:.3f} ms, "
        f"a listing {(time.perf_counter() - begin) * 1e3:.3f} ms"
    )


FORMS = (
    *("", " ", "0", "0,0", "-1", "0,-1", "0,1", "1,0", " 0", "08", "0x1", "0gpu", "0,,0", "+-0"),
    *("{uuid}", "{uuid},{uuid}", "{uuid},0", "0,{uuid}", "{beginning}", " {uuid}", "{uuid}x"),
    *("{beginning}z", "GPU-zz", "MIG-{digits}", "MIG-{uuid}/0/0", "4294967296", "2147483648"),
)


@pytest.mark.parametrize("form", FORMS)
def test_the_driver_agrees_on_what_is_visible(form):
    """Every form is shown to the driver, in a process of its own."""
    gpus = NVML.gpus()
    uuid = gpus[0].uuid
    variable = form.format(uuid=uuid, beginning=uuid[:12], digits=uuid[4:])
    order = os.environ.get("CUDA_DEVICE_ORDER")
    seen = visible_devices(gpus, variable, order).devices
    expected = [device.uuid[4:].replace("-", "") for device in seen]
    assert run(COUNT, CUDA_VISIBLE_DEVICES=variable).split() == expected


@pytest.mark.parametrize("order", ["", "x", "PCI_BUS_ID", "FASTEST_FIRST"])
def test_the_driver_agrees_on_the_order(order):
    """An order it does not know keeps it from starting."""
    expected = len(visible_devices(NVML.gpus(), None, order).devices)
    assert len(run(COUNT, CUDA_DEVICE_ORDER=order).split()) == expected


def test_the_library_has_the_calls():
    """Each real call that is used is exercised once."""
    uuid = NVML.gpus()[0].uuid
    assert uuid.startswith("GPU-")
    assert NVML.memory(uuid).reserved_bytes is not None
    assert isinstance(NVML.processes(uuid), tuple)
    assert NVML.driver_version()[0].isdigit()
    with pytest.raises(NvmlFailure, match="no such device"):
        NVML.memory("GPU-00000000-0000-0000-0000-000000000000")
    assert ctypes.sizeof(ctypes.c_void_p) == 8
