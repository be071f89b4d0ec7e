"""The played driver computes as strictly as a real one would silently fail."""

import ctypes

import pytest

from corral.devices.cuda.contexts import Contexts
from corral.devices.cuda.driver_execution import Fields, Geometry
from corral.errors import CorralError, InternalError
from fake_driver import FakeDriver

SMALL = Geometry((1, 1, 1), (32, 1, 1))


class Bench:
    """A kernel, a stream and a little memory on a played device."""

    def __init__(self):
        self.driver = driver = FakeDriver()
        self.context = context = next(iter(Contexts(driver)))
        self.stream = context.own("stream", driver.create_stream, driver.destroy_stream).handle
        self.module = context.own(
            "module", lambda: driver.load_module(b"code of _add"), driver.unload_module
        )
        self.memory = context.own("memory", lambda: driver.allocate(64), driver.free).handle
        self.words = (ctypes.c_int64 * 2)(1, 2)

    def prepare(self, geometry=SMALL):
        fields = Fields(ctypes.addressof(self.words), 16)
        function = self.driver.function(self.module.handle, "_add")
        return self.driver.prepare(function, geometry, fields, self.stream)


@pytest.fixture
def bench():
    made = Bench()
    with made.context.current():
        yield made


def test_launches_are_written_down(bench):
    """With the words of their fields at that time."""
    launch = bench.prepare()
    launch()
    bench.words[1] = 5
    launch()
    [first, second] = bench.driver.launches
    assert (first.name, first.geometry, first.stream) == ("_add", SMALL, bench.stream)
    assert (first.fields, second.fields) == ((1, 2), (1, 5))
    assert not bench.driver.violations


def test_graphs_do_again_what_was_captured(bench):
    """With the fields of the capture, but what lies in memory at the time of the launch."""
    driver, stream = bench.driver, bench.stream
    host = (ctypes.c_uint8 * 4)(1, 1, 1, 1)
    out = (ctypes.c_uint8 * 4)()
    driver.begin_capture(stream)
    driver.enqueue_to_device(bench.memory, ctypes.addressof(host), 4, stream)
    driver.enqueue_copy(bench.memory + 8, bench.memory, 4, stream)
    bench.prepare()()
    driver.enqueue_to_host(ctypes.addressof(out), bench.memory + 8, 4, stream)
    graph = driver.end_capture(stream)
    assert not driver.launches
    executable = driver.instantiate(graph)
    driver.destroy_graph(graph)
    driver.upload_executable(executable, stream)
    bench.words[0] = host[0] = 9
    for _ in range(2):
        driver.launch_executable(executable, stream)
    assert [launch.fields for launch in driver.launches] == [(1, 2)] * 2
    assert list(out) == [9, 1, 1, 1]
    driver.enqueue_fill(bench.memory + 8, 4, stream)
    driver.copy_to_host(ctypes.addressof(out), bench.memory + 8, 4)
    assert list(out) == [0] * 4
    driver.destroy_executable(executable)
    assert not driver.violations


def test_kernels_can_be_played(bench):
    """A test may compute what a launch would."""
    seen = []
    bench.driver.executes = seen.append
    bench.prepare()()
    assert seen == bench.driver.launches


def test_events_tell_played_time(bench):
    """A millisecond a kernel, for those that keep time."""
    driver = bench.driver
    begin, end = (driver.create_event(keeps_time=True) for _ in range(2))
    driver.record_event(begin, bench.stream)
    for _ in range(3):
        bench.prepare()()
    driver.record_event(end, bench.stream)
    driver.wait_event(end, bench.stream)
    driver.synchronize_event(end)
    assert driver.elapsed_ms(begin, end) == 3.0
    assert not driver.violations
    with pytest.raises(InternalError):
        driver.elapsed_ms(begin, driver.create_event(keeps_time=True))


@pytest.mark.parametrize(
    "geometry",
    [
        Geometry((1, 1, 1), (32, 64, 1)),
        Geometry((0, 1, 1), (32, 1, 1)),
        Geometry((1, 1, 1), (32, 1, 1), shared_bytes=64 << 10),
        Geometry((3, 1, 1), (32, 1, 1), cluster=2),
    ],
)
def test_impossible_launches_are_violations(bench, geometry):
    """Too many threads or none, memory that was not allowed, clusters that are not full."""
    bench.prepare(geometry)
    assert len(bench.driver.violations) == 1


def misuse_unloaded(bench):
    launch = bench.prepare()
    bench.module.close()
    launch()


def misuse_reset(bench):
    launch = bench.prepare()
    bench.driver.reset(0)
    launch()


def misuse_graph(bench):
    bench.driver.begin_capture(bench.stream)
    graph = bench.driver.end_capture(bench.stream)
    bench.driver.launch_executable(graph, bench.stream)


def misuse_default_stream(bench):
    bench.driver.enqueue_fill(bench.memory, 4, 0)


def misuse_wait_while_capturing(bench):
    bench.driver.begin_capture(bench.stream)
    bench.driver.synchronize_stream(bench.stream)


def misuse_wait_for_all_while_capturing(bench):
    bench.driver.begin_capture(bench.stream)
    bench.driver.synchronize()


def misuse_end_of_no_capture(bench):
    bench.driver.end_capture(bench.stream)


def misuse_copy_outside(bench):
    bench.driver.enqueue_copy(bench.memory + 60, bench.memory, 8, bench.stream)


@pytest.mark.parametrize(
    "misuse", [value for name, value in globals().items() if name.startswith("misuse_")]
)
def test_misuse_is_told(misuse):
    """What a real driver may do anything with raises, and is remembered."""
    bench = Bench()
    bench.driver.push(1)
    with pytest.raises(CorralError):
        misuse(bench)
    assert bench.driver.violations
