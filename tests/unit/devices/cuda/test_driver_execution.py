"""Launches through cuda.bindings: prepared once, made of plain numbers, never silent."""

import ctypes
import gc
import sys
from enum import IntEnum
from types import ModuleType, SimpleNamespace

import pytest

from corral.devices.cuda.driver import LibraryDriver
from corral.devices.cuda.driver_execution import DeviceLimits, Fields, Geometry
from corral.errors import DeviceFault, InternalError

STREAM, FUNCTION = 0x1000, 0x2000


class Status(IntEnum):
    """A few of the driver's."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


class Names:
    """An enumeration that has every name, as the name itself."""

    def __getattr__(self, name):
        return name


class PlayedBindings:
    """Bindings that have every call and note what it was given; results are scripted by name."""

    CUresult = Status
    CUdevice_attribute = CUfunction_attribute = CUlaunchAttributeID = Names()
    CUstreamCaptureMode = Names()
    CUevent_flags = SimpleNamespace(CU_EVENT_DEFAULT=0, CU_EVENT_DISABLE_TIMING=2)
    CUlaunchConfig = CUlaunchAttribute = SimpleNamespace
    CUfunction = CUstream = staticmethod(lambda handle: ("wrapped", handle))

    def __init__(self):
        self.calls = []
        self.results = {}

    @staticmethod
    def CUlaunchAttributeValue():  # noqa: N802 - the name is CUDA's
        return SimpleNamespace(clusterDim=SimpleNamespace())

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append((name, *arguments))
            return self.results.get(name, (Status.CUDA_SUCCESS, 7))

        call.__name__ = name
        return call


@pytest.fixture
def bindings(monkeypatch):
    package = ModuleType("cuda.bindings")
    package.driver = PlayedBindings()
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", package)
    package.driver.results["cuFuncGetParamInfo"] = (Status.CUDA_SUCCESS, 0, 16)
    package.driver.results["cuLaunchKernelEx"] = (Status.CUDA_SUCCESS,)
    return package.driver


@pytest.fixture
def words():
    return (ctypes.c_int64 * 2)(41, 42)


def fields_of(words):
    return Fields(ctypes.addressof(words), ctypes.sizeof(words))


def test_a_launch_is_prepared_once(bindings, words):
    """Repeating it is one call, of arguments that are there; fields are read at each launch."""
    geometry = Geometry((7, 2, 3), (256, 1, 1), 1024, cluster=2, is_dependent=True)
    launch = LibraryDriver().prepare(FUNCTION, geometry, fields_of(words), STREAM)
    assert bindings.calls == [("cuFuncGetParamInfo", FUNCTION, 0)]
    launch()
    launch()
    first, second = bindings.calls[1:]
    assert all(one is other for one, other in zip(first, second, strict=True))
    name, config, kernel, parameters, extra = first
    assert (name, kernel, extra) == ("cuLaunchKernelEx", ("wrapped", FUNCTION), 0)
    grid = (config.gridDimX, config.gridDimY, config.gridDimZ)
    block = (config.blockDimX, config.blockDimY, config.blockDimZ)
    assert (grid, block, config.sharedMemBytes) == ((7, 2, 3), (256, 1, 1), 1024)
    assert config.hStream == ("wrapped", STREAM)
    words[0] = 43
    at = ctypes.c_void_p.from_address(parameters).value
    assert list((ctypes.c_int64 * 2).from_address(at)) == [43, 42]


def test_launches_share_what_they_have_in_common(bindings, words):
    """Launches of one shape in one stream need one configuration; those of other streams do not."""
    driver, geometry = LibraryDriver(), Geometry((7, 1, 1), (32, 1, 1))
    for stream in (STREAM, STREAM, STREAM + 1):
        driver.prepare(FUNCTION, geometry, fields_of(words), stream)()
    one, same, other = (call[1] for call in bindings.calls if call[0] == "cuLaunchKernelEx")
    assert one is same
    assert other is not one


def test_nothing_is_left_of_a_stream(bindings, words):
    """A driver outlives the streams of all models: each takes along what was kept for it."""
    driver = LibraryDriver()
    for number in range(20):
        stream = STREAM + number
        for width in range(5):
            geometry = Geometry((width + 1, 1, 1), (32, 1, 1), is_dependent=True)
            driver.prepare(FUNCTION, geometry, fields_of(words), stream)()
        bindings.calls.clear()
        assert len(configurations()) == 5
        driver.destroy_stream(stream)
        assert configurations() == []


def configurations():
    """Return every launch configuration that is alive."""
    gc.collect()
    namespaces = (one for one in gc.get_objects() if type(one) is SimpleNamespace)
    return [one for one in namespaces if hasattr(one, "hStream")]


@pytest.mark.parametrize("cluster", [1, 4])
@pytest.mark.parametrize("is_dependent", [False, True])
def test_attributes_of_launches(bindings, words, cluster, is_dependent):
    """Only what is asked for is an attribute."""
    geometry = Geometry((8, 1, 1), (32, 1, 1), cluster=cluster, is_dependent=is_dependent)
    LibraryDriver().prepare(FUNCTION, geometry, fields_of(words), STREAM)()
    config = bindings.calls[-1][1]
    found = {attribute.id.removeprefix("CU_LAUNCH_ATTRIBUTE_") for attribute in config.attrs}
    wanted = {"PROGRAMMATIC_STREAM_SERIALIZATION"} if is_dependent else set()
    wanted |= {"CLUSTER_DIMENSION"} if cluster > 1 else set()
    assert found == wanted
    assert config.numAttrs == len(wanted)
    for attribute in config.attrs:
        if attribute.id.endswith("DIMENSION"):
            dim = attribute.value.clusterDim
            assert (dim.x, dim.y, dim.z) == (4, 1, 1)
        else:
            assert attribute.value.programmaticStreamSerializationAllowed == 1


def test_fields_of_another_size_are_refused(bindings, words):
    """The driver would read what lies behind them."""
    bindings.results["cuFuncGetParamInfo"] = (Status.CUDA_SUCCESS, 0, 24)
    with pytest.raises(InternalError, match="24 bytes of fields, not 16"):
        LibraryDriver().prepare(FUNCTION, Geometry((1, 1, 1), (1, 1, 1)), fields_of(words), STREAM)


def test_launches_that_fail_raise(bindings, words):
    """As every call does."""
    driver = LibraryDriver()
    launch = driver.prepare(FUNCTION, Geometry((1, 1, 1), (1, 1, 1)), fields_of(words), STREAM)
    bindings.results["cuLaunchKernelEx"] = (Status.CUDA_ERROR_ILLEGAL_ADDRESS,)
    with pytest.raises(DeviceFault, match="cuLaunchKernelEx said CUDA_ERROR_ILLEGAL_ADDRESS"):
        launch()


CALLS = {
    "load_module": ((b"code",), [("cuModuleLoadData", b"code")]),
    "unload_module": ((1,), [("cuModuleUnload", 1)]),
    "function": ((1, "_add"), [("cuModuleGetFunction", 1, b"_add"), ("cuFuncLoad", 7)]),
    "begin_capture": (
        (STREAM,),
        [("cuStreamBeginCapture", STREAM, "CU_STREAM_CAPTURE_MODE_RELAXED")],
    ),
    "end_capture": ((STREAM,), [("cuStreamEndCapture", STREAM)]),
    "destroy_graph": ((1,), [("cuGraphDestroy", 1)]),
    "instantiate": ((1,), [("cuGraphInstantiate", 1, 0)]),
    "upload_executable": ((1, STREAM), [("cuGraphUpload", 1, STREAM)]),
    "launch_executable": ((1, STREAM), [("cuGraphLaunch", 1, STREAM)]),
    "destroy_executable": ((1,), [("cuGraphExecDestroy", 1)]),
    "record_event": ((1, STREAM), [("cuEventRecord", 1, STREAM)]),
    "wait_event": ((1, STREAM), [("cuStreamWaitEvent", STREAM, 1, 0)]),
    "synchronize_event": ((1,), [("cuEventSynchronize", 1)]),
    "elapsed_ms": ((1, 2), [("cuEventElapsedTime", 1, 2)]),
    "enqueue_fill": ((1, 2, STREAM), [("cuMemsetD8Async", 1, 0, 2, STREAM)]),
    "enqueue_to_device": ((1, 2, 3, STREAM), [("cuMemcpyHtoDAsync", 1, 2, 3, STREAM)]),
    "enqueue_to_host": ((1, 2, 3, STREAM), [("cuMemcpyDtoHAsync", 1, 2, 3, STREAM)]),
    "enqueue_copy": ((1, 2, 3, STREAM), [("cuMemcpyDtoDAsync", 1, 2, 3, STREAM)]),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_call_is_the_drivers(bindings, name):
    """With its arguments in the driver's order; any status but success raises."""
    arguments, expected = CALLS[name]
    driver = LibraryDriver()
    getattr(driver, name)(*arguments)
    assert bindings.calls == expected
    bindings.results[expected[-1][0]] = (Status.CUDA_ERROR_ILLEGAL_ADDRESS, None)
    with pytest.raises(DeviceFault, match=expected[-1][0]):
        getattr(driver, name)(*arguments)


def test_events_keep_time_when_asked(bindings):
    """Others are cheaper."""
    driver = LibraryDriver()
    driver.create_event()
    driver.create_event(keeps_time=True)
    assert bindings.calls == [("cuEventCreate", 2), ("cuEventCreate", 0)]


def test_limits_are_attributes(bindings):
    """Five of them, of the device that is asked for."""
    assert LibraryDriver().limits(3) == DeviceLimits(7, 7, 7, 7, 7)
    assert {call[2] for call in bindings.calls} == {3}
    assert len({call[1] for call in bindings.calls}) == 5
