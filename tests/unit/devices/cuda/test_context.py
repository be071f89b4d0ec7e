"""Contexts begin with their first owner and end with the last, or with the process."""

import os
import signal
import threading
from contextlib import suppress

import pytest

from corral.devices.cuda.context import ContextStatistics
from corral.devices.cuda.contexts import Contexts
from corral.errors import (
    Closed,
    CorralError,
    DeviceFault,
    DeviceUnavailable,
    InternalError,
    OutOfMemory,
    StaleContext,
)
from fake_driver import CONTEXT_BYTES, MIB, TOTAL_BYTES, FakeDriver, uuid_of
from forked import in_child


@pytest.fixture
def driver():
    """Return a driver that must see nothing wrong."""
    played = FakeDriver(2)
    yield played
    assert not played.violations


@pytest.fixture
def context(driver):
    """Return the context of the first device."""
    return next(iter(Contexts(driver)))


def memory(context, driver, size=2 * MIB):
    return context.own("memory", lambda: driver.allocate(size), driver.free)


def test_loading_the_driver_makes_no_context(driver):
    """Only owners need a context."""
    Contexts(driver)
    assert driver.users == [0, 0]
    assert "primary_retain" not in driver.calls


def test_the_first_owner_begins_it_and_the_last_ends_it(driver, context):
    """One user however many owners; not a byte stays."""
    owned = [memory(context, driver) for _ in range(3)]
    stream = context.own("stream", driver.create_stream, driver.destroy_stream)
    assert driver.users == [1, 0]
    assert context.statistics() == ContextStatistics(True, False, 1, {"memory": 3, "stream": 1})
    for each in (stream, *owned):
        assert driver.users == [1, 0]
        each.close()
    assert (driver.users, driver.used(0)) == ([0, 0], 0)
    assert context.statistics() == ContextStatistics(False, False, 1, {})


def test_a_context_that_ran_work_is_kept(driver, context):
    """After a launch only the end of the process ends it, and reading it stays cheap."""
    owned = memory(context, driver)
    context.keep()
    owned.close()
    assert driver.users == [1, 0]
    assert driver.used(0) == CONTEXT_BYTES
    again = memory(context, driver)
    assert again.generation == owned.generation == 1
    again.close()
    assert context.read() == (TOTAL_BYTES - CONTEXT_BYTES, TOTAL_BYTES)


def test_work_is_awaited_before_memory_goes(driver, context):
    """What still runs may use it; the wait is over before the lock is taken."""
    owned = memory(context, driver)
    context.keep()
    driver.calls.clear()
    owned.close()
    assert driver.calls.index("synchronize") < driver.calls.index("free")


def test_reading_leaves_nothing(driver, context):
    """A device that was never used is read, and is as it was."""
    assert context.read() == (TOTAL_BYTES - CONTEXT_BYTES, TOTAL_BYTES)
    assert (driver.users, driver.used(0)) == ([0, 0], 0)


@pytest.mark.parametrize("reads", [1, 100])
def test_buffers_survive_reading(driver, context, reads):
    """Reading where something lives takes nothing away."""
    owned = memory(context, driver)
    for _ in range(reads):
        assert context.read() == (TOTAL_BYTES - CONTEXT_BYTES - 2 * MIB, TOTAL_BYTES)
    assert owned.handle in driver.memory_of[0]
    assert driver.users == [1, 0]
    owned.close()


def test_reading_beside_other_code_does_not_disturb_it(driver, context):
    """A context that another library made stays, with its memory."""
    handle = driver.primary_retain(0)
    driver.push(handle)
    foreign = driver.allocate(MIB)
    driver.pop()
    context.read()
    owned = memory(context, driver)
    owned.close()
    assert context.read() is not None
    assert driver.users == [1, 0]
    assert foreign in driver.memory_of[0]


def test_a_device_once_used_is_not_read_anew(driver, context):
    """Its context has ended: beginning one again only to look is left to a probe process."""
    memory(context, driver).close()
    driver.calls.clear()
    assert context.read() is None
    assert "primary_retain" not in driver.calls


def lose_by_reset(driver):
    driver.reset(0)


def lose_by_release(driver):
    driver.primary_release(0)
    driver.violations.clear()  # the memory in it is the point


@pytest.mark.parametrize("lose", [lose_by_reset, lose_by_release])
def test_a_context_ended_by_others_is_noticed(driver, context, lose):
    """Owners are stale, not used; the next one begins a new context, which ends in its turn."""
    lost = [memory(context, driver) for _ in range(2)]
    lose(driver)
    with pytest.raises(StaleContext, match=r"'memory': 2"):
        memory(context, driver)
    for each in lost:
        with pytest.raises(StaleContext, match="context 1, which has ended"):
            _ = each.handle
    new = memory(context, driver)
    assert new.generation == 2
    for each in lost:
        each.close()
    assert new.handle in driver.memory_of[0]
    new.close()
    driver.violations = [
        text for text in driver.violations if text != "primary_release without a user"
    ]
    assert (driver.users, driver.used(0)) == ([0, 0], 0)


def test_a_new_context_with_the_old_handle_is_noticed(driver, context):
    """Others reset the device and use it again: the handle is the same, the context is not."""
    owned = memory(context, driver)
    driver.reset(0)
    theirs = driver.primary_retain(0)
    driver.push(theirs)
    address = driver.allocate(MIB)
    driver.pop()
    with pytest.raises(StaleContext), context.current():
        pass
    with pytest.raises(StaleContext):
        _ = owned.handle
    owned.close()
    assert address in driver.memory_of[0]


def test_copying_and_launching_need_a_context(driver, context):
    """Without owners there is nothing to copy to."""
    for use in (context.current, context.keep):
        with pytest.raises(StaleContext):
            use().__enter__()


def test_closing_is_once_and_quiet(driver, context):
    """A second close does nothing, and what is closed is not handed out."""
    owned = memory(context, driver)
    owned.close()
    owned.close()
    assert driver.calls.count("free") == 1
    with pytest.raises(Closed):
        _ = owned.handle


def test_a_fault_while_closing_is_logged(driver, context, caplog):
    """Closing never raises; the log says what is left."""
    owned = memory(context, driver)
    driver.failures["free"] = ["illegal address"]
    owned.close()
    assert "illegal address" in caplog.text
    assert driver.calls[-1] == "primary_release"
    driver.violations.clear()  # the memory that could not be freed went with its context


@pytest.mark.parametrize("call", ["primary_retain", "context_id", "push", "allocate"])
def test_nothing_stays_of_what_failed(driver, context, call):
    """Whatever call of the driver fails, no user and no byte is left, and it works next time."""
    driver.failures[call] = ["out of memory"]
    with pytest.raises(OutOfMemory):
        memory(context, driver)
    assert (driver.users, driver.used(0)) == ([0, 0], 0)
    memory(context, driver).close()


def test_a_failed_allocation_harms_no_other(driver, context):
    """What lives already stays."""
    owned = memory(context, driver)
    with pytest.raises(OutOfMemory):
        memory(context, driver, 2 * TOTAL_BYTES)
    assert owned.handle in driver.memory_of[0]
    owned.close()


def test_devices_are_apart(driver):
    """Each has its context; using one begins no other."""
    first, second = Contexts(driver)
    pinned = second.own("pinned memory", lambda: driver.allocate_host(64), driver.free_host)
    assert driver.users == [0, 1]
    assert first.read() is not None
    assert driver.users == [0, 1]
    pinned.close()


def test_collected_objects_may_close_within(driver, context):
    """An owner closed by the garbage collector in the middle of a call ends nothing early."""
    old = memory(context, driver)

    def make():
        old.close()
        return driver.allocate(MIB)

    new = context.own("memory", make, driver.free)
    assert driver.users == [1, 0]
    new.close()
    assert driver.users == [0, 0]


def test_what_is_made_in_no_context_of_ours_is_refused(driver, context):
    """Others reset and begin anew while something is made; a close within notices."""
    old = memory(context, driver)

    def make():
        driver.reset(0)
        driver.primary_retain(0)
        old.close()
        return driver.allocate(MIB)

    with pytest.raises(StaleContext, match="ended while memory was made"):
        context.own("memory", make, driver.free)
    assert context.statistics().owned == {}


def test_what_nobody_gets_is_ended(driver, context):
    """The last call of a creation fails: there is nobody who could close what was made."""
    driver.failures["pop"] = ["out of memory"]
    with pytest.raises(OutOfMemory):
        memory(context, driver)
    assert context.statistics().owned == {}
    assert (driver.users, driver.used(0)) == ([0, 0], 0)


def test_an_address_of_an_earlier_context_is_not_used(driver, context):
    """The context that is there now may have given it to somebody else."""
    old = memory(context, driver)
    driver.reset(0)
    with pytest.raises(StaleContext):
        memory(context, driver)
    new = memory(context, driver)
    with pytest.raises(StaleContext), context.current(old):
        pass
    new.close()


@pytest.mark.parametrize("call", ["primary_retain", "memory"])
def test_a_reading_that_fails_is_unknown(driver, call):
    """Out of memory while looking, as on a full device: no value, and no harm."""
    contexts = Contexts(driver)
    driver.failures[call] = ["out of memory"]
    assert contexts.read(uuid_of(0)) is None
    assert driver.users == [0, 0]
    assert contexts.read("GPU-unknown") is None
    assert contexts.read(uuid_of(0)) == (TOTAL_BYTES - CONTEXT_BYTES, TOTAL_BYTES)


def use(context, driver, made):
    """Read, create, read, copy, close: every way into a context."""
    context.read()
    made.append(memory(context, driver))
    context.read()
    with context.current(made[-1]):
        driver.fill(made[-1].handle, MIB)
    made[-1].close()


def launch(context, driver, made):
    """Work, so that the context is kept."""
    made.append(memory(context, driver))
    context.keep()
    made[-1].close()


@pytest.mark.parametrize(("deed", "kept"), [(use, 0), (launch, 1)])
@pytest.mark.parametrize("kind", ["interrupt", "out of memory"])
def test_any_call_may_be_interrupted_or_fail(deed, kept, kind):
    """Whichever call of the driver it hits: closing again leaves no user, no byte, no context."""
    calls = number = 0
    while number <= calls:
        driver, made = FakeDriver(), []
        context = next(iter(Contexts(driver)))
        start = len(driver.calls)

        def before(call, driver=driver, at=start + number):
            if len(driver.calls) >= at:
                driver.before = lambda call: None
                if kind == "interrupt":
                    signal.raise_signal(signal.SIGINT)
                else:
                    driver.failures[call] = [kind]

        if number:
            driver.before = before
        with suppress(KeyboardInterrupt, OutOfMemory):
            deed(context, driver, made)
        calls = calls or len(driver.calls) - start
        driver.before = lambda call: None
        driver.failures.clear()
        for owned in made:
            owned.close()
        if kind != "interrupt":  # a context that could not be released is, after its next use
            memory(context, driver).close()
        is_left = context.statistics().is_kept
        assert driver.users == [int(is_left)], number
        assert sum(driver.memory_of[0].values()) == 0 or kind != "interrupt"
        assert driver._stack() == [] or kind != "interrupt"
        assert is_left <= kept
        number += 1
    assert calls > 8


def test_an_interrupt_takes_nobody_elses_user(driver, context):
    """A call that took effect is not repeated: another library's context lives on."""
    theirs = driver.primary_retain(0)
    driver.push(theirs)
    address = driver.allocate(MIB)
    owned = memory(context, driver)
    release = driver.primary_release

    def interrupted(ordinal):
        release(ordinal)
        signal.raise_signal(signal.SIGINT)

    driver.primary_release = interrupted
    with pytest.raises(KeyboardInterrupt):
        owned.close()
    assert (driver.users, address in driver.memory_of[0]) == ([1, 0], True)
    assert owned.is_closed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_is_refused_and_does_not_wait(driver, context):
    """Another thread may hold the lock at the fork; the child has no such thread."""
    owned = memory(context, driver)
    held, done = threading.Event(), threading.Event()

    def hold():
        with context._lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        code = in_child(lambda: owned.close() is None and _is_refused(context))
    finally:
        done.set()
        thread.join()
    assert code == 0
    assert owned.handle in driver.memory_of[0]
    owned.close()


def _is_refused(context):
    for call in (context.read, context.hold, context.statistics, context.is_active):
        with pytest.raises(DeviceUnavailable, match="spawn"):
            call()
    return True


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("out of memory", OutOfMemory),
        ("invalid value", InternalError),
        ("destroyed", StaleContext),
        ("no device", DeviceUnavailable),
        ("illegal address", DeviceFault),
        ("contained", DeviceFault),
    ],
)
def test_statuses_become_errors(driver, context, kind, error):
    """Each keeps the call and the driver's own name of the status."""
    driver.failures["allocate"] = [kind]
    with pytest.raises(error, match=r"allocate said CUDA_ERROR_\w+ \(\d+\)") as caught:
        memory(context, driver)
    assert isinstance(caught.value, CorralError)
