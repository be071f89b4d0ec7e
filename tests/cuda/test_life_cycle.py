"""The life of contexts on a real card; each case is a process of its own, which touched nothing."""

import json
import subprocess
import sys

import pytest

from source_tree import SOURCE

MIB = 1 << 20
INIT_BYTES = 16 * MIB
"""What loading the driver may hold until the process ends; a context is far larger."""

PRELUDE = """
import json, sys, threading, time
sys.path.insert(0, {source!r})
from corral.devices.cuda.contexts import process_contexts
from corral.devices.nvml import process_nvml
from corral.errors import CorralError, StaleContext
nvml = process_nvml()
uuid = nvml.gpus()[0].uuid
def used():
    return nvml.memory(uuid).used_bytes
before = used()
contexts = process_contexts()
context = next(iter(contexts))
driver = contexts.driver
loaded = used()
def memory(size=4 << 20):
    return context.own("memory", lambda: driver.allocate(size), driver.free)
out = {{}}
"""


def run(code, seconds=120):
    """Run code in a fresh process and return what it put into `out`."""
    script = PRELUDE.format(source=str(SOURCE)) + code + "\nprint(json.dumps(out))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_reading_leaves_no_context():
    """An unused device is read, and the primary context is inactive after it."""
    out = run("""
out["read"] = context.read()
out["is_active"] = driver.primary_is_active(0)
out["left"] = used() - loaded
out["init"] = loaded - before
""")
    free, total = out["read"]
    assert 0 < free < total
    assert (out["is_active"], out["left"]) == (False, 0)
    assert out["init"] < INIT_BYTES


def test_the_last_owner_takes_everything_along():
    """Memory, pinned memory, a stream, an event, copies: then the card is as it was."""
    out = run("""
owned = [
    memory(256 << 20),
    context.own("pinned memory", lambda: driver.allocate_host(8 << 20), driver.free_host),
    context.own("stream", driver.create_stream, driver.destroy_stream),
    context.own("event", driver.create_event, driver.destroy_event),
]
with context.current():
    driver.fill(owned[0].handle, 256 << 20)
    driver.copy_to_device(owned[0].handle, owned[1].handle, 8 << 20)
    driver.copy_to_host(owned[1].handle, owned[0].handle, 8 << 20)
    driver.synchronize_stream(owned[2].handle)
out["read"] = context.read()
out["held"] = used() - loaded
for each in owned:
    each.close()
out["is_active"] = driver.primary_is_active(0)
out["left"] = used() - loaded
""")
    assert out["held"] > 256 * MIB
    assert (out["is_active"], out["left"]) == (False, 0)


def test_allocations_cost_what_was_asked():
    """To the byte by NVML, for multiples of the granularity."""
    out = run("""
first = memory(2 << 20)
sizes, out["delta"] = [2 << 20, 4 << 20, 6 << 20, 1 << 30, (1 << 30) + (2 << 20)], []
for size in sizes:
    start = used()
    owned = memory(size)
    out["delta"].append([size, used() - start])
    owned.close()
first.close()
""")
    assert all(size == delta for size, delta in out["delta"])


@pytest.mark.parametrize("how", ["reset", "release"])
def test_a_context_ended_by_others_is_noticed(how):
    """Its owners are stale; the next context begins, and ends, as if nothing had been."""
    out = run(f"""
owned = memory()
api = driver._api
out["status"] = int((api.cuDevicePrimaryCtxReset if {how!r} == "reset" else
                     api.cuDevicePrimaryCtxRelease)(0)[0])
try:
    memory()
    out["noticed"] = False
except StaleContext:
    out["noticed"] = True
try:
    owned.handle
    out["stale"] = False
except StaleContext:
    out["stale"] = True
owned.close()
again = memory()
out["generation"] = again.generation
again.close()
out["is_active"] = driver.primary_is_active(0)
out["left"] = used() - loaded
""")
    assert out == {
        "status": 0,
        "noticed": True,
        "stale": True,
        "generation": 2,
        "is_active": False,
        "left": 0,
    }


def test_reading_does_not_disturb_other_code():
    """A context and memory that other code made survive readings and owners of ours."""
    out = run("""
api = driver._api
handle = driver.primary_retain(0)
driver.push(handle)
address = driver.allocate(4 << 20)
driver.fill(address, 4 << 20)
driver.pop()
for _ in range(50):
    context.read()
memory().close()
driver.push(handle)
driver.fill(address, 4 << 20)
driver.free(address)
driver.pop()
out["is_active"] = driver.primary_is_active(0)
driver.primary_release(0)
out["left"] = used() - loaded
""")
    assert out == {"is_active": True, "left": 0}


def test_too_large_an_allocation_is_an_error_and_leaves_nothing():
    """The driver's refusal becomes OutOfMemory; the context ends again."""
    out = run("""
try:
    memory(1 << 45)
except CorralError as error:
    out["error"] = type(error).__name__
out["is_active"] = driver.primary_is_active(0)
out["left"] = used() - loaded
""")
    assert out == {"error": "OutOfMemory", "is_active": False, "left": 0}


RACE = """
stop, broken, counts = time.monotonic() + {seconds}, [], [0] * 6
keeper = memory() if {keeps} else None
def work(number):
    while time.monotonic() < stop:
        try:
            if number % 2:
                context.read()
            else:
                owned = memory((number + 2) << 20)
                with context.current():
                    driver.fill(owned.handle, 1 << 20)
                owned.close()
            counts[number] += 1
        except CorralError as error:
            broken.append(str(error))
threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
if keeper: keeper.close()
out["broken"], out["counts"] = broken[:3], counts
out["is_active"], out["left"] = driver.primary_is_active(0), used() - loaded
"""


@pytest.mark.parametrize("keeps", [False, True])
def test_threads_race_and_lose_nothing(keeps, request):
    """Six threads read, create and destroy; contexts begin and end meanwhile, or one is kept."""
    seconds = 30 if request.config.getoption("--soak") else 3
    out = run(RACE.format(seconds=seconds, keeps=keeps), seconds + 120)
    assert out["broken"] == []
    assert min(out["counts"]) > 0
    assert (out["is_active"], out["left"]) == (False, 0)
