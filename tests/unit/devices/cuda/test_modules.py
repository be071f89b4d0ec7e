"""Kernels are loaded once, live in the device's context, and go before their device."""

import pytest

from corral.devices.cuda.compile import Cubin, Usage
from corral.devices.cuda.contexts import Contexts
from corral.devices.cuda.instance import Instance
from corral.devices.cuda.modules import Modules
from corral.errors import Closed, InternalError, OutOfMemory, StaleContext
from fake_driver import FakeDriver

ONE, TWO = Instance.of("one", "one"), Instance.of("two", "two")
CUBINS = {
    ONE: Cubin("_one", Usage(), "", b"code of _one"),
    TWO: Cubin("_two", Usage(), "", b"code of _two"),
}


@pytest.fixture
def driver():
    """Return a played driver, and hold it to having seen nothing wrong."""
    played = FakeDriver()
    yield played
    assert not played.violations


@pytest.fixture
def context(driver):
    return next(iter(Contexts(driver)))


def test_each_kernel_is_loaded_once(driver, context):
    """A second request for it finds it there; all end together, the last first."""
    with Modules(context, driver) as modules:
        modules.load({ONE: CUBINS[ONE]})
        modules.load(CUBINS)
        assert len(modules) == 2
        assert modules.function(ONE) != modules.function(TWO)
        assert context.statistics().owned == {"module": 2}
        first, second = driver._work.codes
        ended = []
        driver.before = lambda call: ended.append(list(driver._work.codes))
    assert driver.calls.count("load_module") == 2
    assert [first] in ended and [second] not in ended
    assert not context.statistics().is_active
    modules.close()


def test_after_close_nothing_is_given(driver, context):
    """Neither loaded nor found."""
    modules = Modules(context, driver)
    modules.load(CUBINS)
    modules.close()
    with pytest.raises(Closed):
        modules.load(CUBINS)
    with pytest.raises(Closed):
        modules.function(ONE)


@pytest.mark.parametrize("call", ["load_module", "function"])
def test_what_fails_leaves_nothing(driver, context, call):
    """The modules before it stay, the one that failed does not."""
    driver.failures[call] = ["", "out of memory"]
    with Modules(context, driver) as modules:
        with pytest.raises(OutOfMemory):
            modules.load(CUBINS)
        assert context.statistics().owned == {"module": 1}
        modules.load(CUBINS)
        assert len(modules) == 2
    assert not driver._work.codes


def test_a_kernel_that_its_code_lacks_is_told(driver, context):
    """A name that NVRTC gave and the driver does not find breaks a promise."""
    wrong = Cubin("_three", Usage(), "", b"code of _one")
    with Modules(context, driver) as modules, pytest.raises(InternalError, match="NOT_FOUND"):
        modules.load({ONE: wrong})
    assert not driver._work.codes


def test_a_context_ended_by_others_is_noticed(driver, context):
    """Functions of before are not given, and not mixed with new ones."""
    with Modules(context, driver) as modules:
        modules.load({ONE: CUBINS[ONE]})
        driver.reset(0)
        with pytest.raises(StaleContext), context.current():
            pass
        context.own("memory", lambda: driver.allocate(8), driver.free)
        with pytest.raises(StaleContext):
            modules.function(ONE)
        with pytest.raises(StaleContext):
            modules.load(CUBINS)


def test_shared_memory_is_allowed_once(driver, context):
    """Only what is more than every kernel has, and more than was allowed before."""
    static = Cubin("_one", Usage(shared_bytes=8 << 10), "", b"_one")
    with Modules(context, driver) as modules:
        modules.load({ONE: static, TWO: CUBINS[TWO]})
        for size in (0, 40 << 10, 41 << 10, 100 << 10, 100 << 10, 50 << 10):
            modules.function(ONE, size)
        modules.function(TWO, 48 << 10)
        assert driver.calls.count("allow_shared") == 2
        with pytest.raises(InternalError):
            modules.function(TWO, 1 << 20)
