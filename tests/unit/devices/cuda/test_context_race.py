"""One lock makes reading, creating and destroying safe side by side; a counter does not.

A thread is stopped before one of its driver calls while another does something whole, or waits at
the lock. Every call of the first is tried with every deed of the second, so what could go wrong
goes wrong each time: with the lock nothing does, without it something must.
"""

import ctypes
import threading
from contextlib import nullcontext, suppress

import pytest

from corral.devices.cuda.context import DeviceContext
from corral.errors import CorralError
from fake_driver import MIB, FakeDriver

PATIENCE_S = 0.05
"""How long the second may take: far longer than its deed, unless it waits at the lock."""


class NoLock(nullcontext):
    """Stands in for the lock, so that only the counts guard."""


class CountingContext:
    """What llama.cpp merged in 2026: count owners, and reset after a reading when none is seen."""

    def __init__(self, facts, driver, lock):
        self.driver, self.count = driver, 0

    def own(self, kind, make, destroy):
        self.count += 1
        context = self.driver.primary_retain(0)
        self.driver.push(context)
        handle = make()
        self.driver.pop()
        return _Counted(self, handle, destroy)

    def read(self):
        self.driver.push(self.driver.primary_retain(0))
        reading = self.driver.memory()
        self.driver.pop()
        if self.count == 0:
            self.driver.before("reset")
            self.driver.reset(0)
        return reading


class _Counted:
    def __init__(self, context, handle, destroy):
        self.context, self._handle, self.destroy = context, handle, destroy

    def close(self):
        self.context.driver.push(1)
        self.destroy(self._handle)
        self.context.driver.pop()
        self.context.count -= 1


def read(context, driver):
    context.read()


def create(context, driver):
    return context.own("memory", lambda: driver.allocate(MIB), driver.free)


def create_and_close(context, driver):
    create(context, driver).close()


DEEDS = (read, create, create_and_close)


def calls_of(kind, lock, deed):
    """Return the calls at which a deed can be stopped."""
    driver = FakeDriver()
    calls = []
    context = kind(driver.facts[0], driver, lock)
    driver.before = calls.append
    deed(context, driver)
    return len(calls)


def harm(kind, lock, first, second, stop_at):
    """Stop `first` before its call number `stop_at`, let `second` run, and return what broke."""
    driver = FakeDriver()
    context = kind(driver.facts[0], driver, lock)
    broken, made = [], []
    count, is_done = [0], threading.Event()

    def act(deed):
        try:
            if owned := deed(context, driver):
                made.append(owned)
        except (CorralError, AssertionError) as error:
            broken.append(f"{deed.__name__}: {error!r}")

    def other():
        act(second)
        is_done.set()

    thread = threading.Thread(target=other)
    own = threading.get_ident()

    def before(call):
        if threading.get_ident() == own:
            count[0] += 1
            if count[0] == stop_at:
                thread.start()
                is_done.wait(PATIENCE_S)

    driver.before = before
    act(first)
    thread.join()
    driver.before = lambda call: None
    gone = [owned for owned in made if owned._handle not in driver.memory_of[0]]
    broken += ["memory is gone while its owner lives"] * len(gone)
    for owned in made:
        with suppress(CorralError):
            owned.close()
    if driver.users != [0] or driver.used(0):
        broken.append(f"{driver.users[0]} users and {driver.used(0)} bytes are left")
    return broken + driver.violations


def all_harm(kind, make_lock, first, second):
    """Return what broke, over every place to stop at."""
    places = range(1, calls_of(kind, make_lock(), first) + 1)
    return [text for at in places for text in harm(kind, make_lock(), first, second, at)]


@pytest.mark.parametrize("second", DEEDS)
@pytest.mark.parametrize("first", DEEDS)
def test_nothing_breaks_under_the_lock(first, second):
    """No invalid context, no lost byte, wherever one thread meets another."""
    assert all_harm(DeviceContext, threading.RLock, first, second) == []


@pytest.mark.parametrize("first", [read, create_and_close])
def test_the_same_code_breaks_without_it(first):
    """Counting owners is not enough: the test would see it if the lock were left out."""
    assert all_harm(DeviceContext, NoLock, first, create) != []


def test_counting_and_resetting_kills_a_buffer():
    """Between seeing no owner and resetting a buffer was made; it is gone, its owner is not."""
    broken = all_harm(CountingContext, NoLock, read, create)
    assert "memory is gone while its owner lives" in broken


def test_many_threads_lose_nothing():
    """Eight threads read, create and destroy at will; in the end the device is as it was."""
    driver = FakeDriver()
    context = DeviceContext(driver.facts[0], driver, threading.RLock())
    start, broken = threading.Barrier(8), []
    data = (ctypes.c_uint8 * 64)()
    source = ctypes.addressof(data)

    def work(number):
        start.wait()
        for turn in range(60):
            try:
                if (turn + number) % 3:
                    owned = create(context, driver)
                    with context.current():
                        driver.copy_to_device(owned.handle, source, len(data))
                    owned.close()
                else:
                    context.read()
            except CorralError as error:
                broken.append(str(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (broken, driver.violations) == ([], [])
    assert (driver.users, driver.used(0)) == ([0], 0)
