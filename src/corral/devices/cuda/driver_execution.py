"""The calls of the CUDA driver that computing needs: code, launches, graphs, copies in a stream.

A launch is prepared once and repeated at will: what it costs then is one call of the driver, not
the making of its arguments (0.4 µs against 6 in Python). The fields of a kernel are read anew at
every launch, from where they lay when it was prepared.

Source: CUDA Driver API, modules Module, Execution Control, Graph, Stream, Event and Memory.
"""

from collections.abc import Callable
from ctypes import addressof, c_void_p
from dataclasses import dataclass
from typing import Any, Protocol

from corral.devices.cuda.driver_calls import LibraryCalls
from corral.devices.cuda.driver_errors import failure
from corral.errors import InternalError

_ALL_OF_IT_PERCENT = 100
PreparedLaunch = Callable[[], None]
"""A kernel ready to be launched: called, it puts one evaluation of it into its stream."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """How many threads a launch has, and what they share."""

    grid: tuple[int, int, int]
    """Blocks."""
    block: tuple[int, int, int]
    """Threads of a block."""
    shared_bytes: int = 0
    """Dynamic shared memory of a block."""
    cluster: int = 1
    """Blocks along x that run together; from sm_90 on."""
    is_dependent: bool = False
    """Whether blocks may begin before the launch ahead of it ends, to wait for it themselves."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The one parameter of a kernel, in host memory that outlives its launches."""

    address: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Place:
    """Memory of a device, and the handle of the context it is in."""

    context: int
    address: int


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What kernels are fitted to."""

    multiprocessors: int
    threads_per_multiprocessor: int
    shared_bytes_per_block: int
    """At most, where a kernel was allowed to; 48 KiB without."""
    shared_bytes_per_multiprocessor: int
    cache_bytes: int
    """The L2 cache."""


class ExecutionDriver(Protocol):
    """What a backend asks of a driver. Every call raises what `driver_errors.failure` makes."""

    def limits(self, ordinal: int) -> DeviceLimits:
        """Return what a device can hold; needs no context."""
        ...

    def load_module(self, code: bytes) -> int:
        """Return a new module in the current context, made from a cubin."""
        ...

    def unload_module(self, module: int) -> None:
        """End a module and its functions."""
        ...

    def function(self, module: int, symbol: str) -> int:
        """Return a kernel of a module, all of it on the device already."""
        ...

    def allow_shared(self, function: int, size_bytes: int) -> None:
        """Let a kernel be launched with so much dynamic shared memory."""
        ...

    def prefer_shared(self, function: int) -> None:
        """Have a kernel run with as much shared memory and as little cache as there can be.

        Kernels that differ in this wait for each other.
        """
        ...

    def prepare(
        self, function: int, geometry: Geometry, fields: Fields, stream: int
    ) -> PreparedLaunch:
        """Return a launch of a kernel, to be repeated at will; refuses fields of another size."""
        ...

    def begin_capture(self, stream: int) -> None:
        """Collect what is put into a stream from now on, and run none of it."""
        ...

    def end_capture(self, stream: int) -> int:
        """Return what was collected, as a new graph."""
        ...

    def destroy_graph(self, graph: int) -> None:
        """End a graph; executables made of it stay."""
        ...

    def instantiate(self, graph: int) -> int:
        """Return a new executable of a graph."""
        ...

    def upload_executable(self, executable: int, stream: int) -> None:
        """Bring an executable to the device, so that its first launch takes no longer."""
        ...

    def launch_executable(self, executable: int, stream: int) -> None:
        """Put all of an executable into a stream."""
        ...

    def destroy_executable(self, executable: int) -> None:
        """End an executable."""
        ...

    def record_event(self, event: int, stream: int) -> None:
        """Let an event mark what is in a stream by now."""
        ...

    def wait_event(self, event: int, stream: int) -> None:
        """Let what is put into a stream from now on wait for an event."""
        ...

    def synchronize_event(self, event: int) -> None:
        """Wait until what an event marks is done."""
        ...

    def elapsed_ms(self, begin: int, end: int) -> float:
        """Return the time between two events that keep it and are done."""
        ...

    def enqueue_fill(self, address: int, size_bytes: int, stream: int) -> None:
        """Zero device memory, in a stream."""
        ...

    def enqueue_to_device(self, to: int, source: int, size_bytes: int, stream: int) -> None:
        """Copy from pinned host memory, in a stream."""
        ...

    def enqueue_to_host(self, to: int, source: int, size_bytes: int, stream: int) -> None:
        """Copy to pinned host memory, in a stream."""
        ...

    def enqueue_copy(self, to: int, source: int, size_bytes: int, stream: int) -> None:
        """Copy within the device, in a stream."""
        ...

    def enqueue_copy_between(self, to: Place, source: Place, size_bytes: int, stream: int) -> None:
        """Copy from the memory of one device to that of another, in a stream."""
        ...


class LibraryExecution(LibraryCalls):
    """The same through cuda.bindings."""

    def __init__(self) -> None:
        """Find the library; raises as `LibraryCalls` does."""
        super().__init__()
        self._configs: dict[int, dict[Geometry, Any]] = {}
        """Of each stream, as long as it lives: making one takes longer than a launch."""

    def limits(self, ordinal: int) -> DeviceLimits:
        """Call `cuDeviceGetAttribute`."""
        kinds = self._api.CUdevice_attribute

        def attribute(name: str) -> int:
            which = getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{name}")
            return int(self._call(self._api.cuDeviceGetAttribute, which, ordinal))

        return DeviceLimits(
            attribute("MULTIPROCESSOR_COUNT"),
            attribute("MAX_THREADS_PER_MULTIPROCESSOR"),
            attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            attribute("L2_CACHE_SIZE"),
        )

    def load_module(self, code: bytes) -> int:
        """Call `cuModuleLoadData`."""
        return int(self._call(self._api.cuModuleLoadData, code))

    def unload_module(self, module: int) -> None:
        """Call `cuModuleUnload`."""
        self._call(self._api.cuModuleUnload, module)

    def function(self, module: int, symbol: str) -> int:
        """Call `cuModuleGetFunction` and `cuFuncLoad`, or the first launch would load it."""
        function = self._call(self._api.cuModuleGetFunction, module, symbol.encode())
        self._call(self._api.cuFuncLoad, function)
        return int(function)

    def allow_shared(self, function: int, size_bytes: int) -> None:
        """Call `cuFuncSetAttribute`."""
        which = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._call(self._api.cuFuncSetAttribute, function, which, size_bytes)

    def prefer_shared(self, function: int) -> None:
        """Call `cuFuncSetAttribute`."""
        which = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        self._call(self._api.cuFuncSetAttribute, function, which, _ALL_OF_IT_PERCENT)

    def prepare(
        self, function: int, geometry: Geometry, fields: Fields, stream: int
    ) -> PreparedLaunch:
        """Prepare a call of `cuLaunchKernelEx`, after one of `cuFuncGetParamInfo`."""
        _offset, size = self._call(self._api.cuFuncGetParamInfo, function, 0)
        if size != fields.size_bytes:
            raise InternalError(f"a kernel has {size} bytes of fields, not {fields.size_bytes}")
        return _LibraryLaunch(self._api, function, self._config(geometry, stream), fields)

    def _config(self, geometry: Geometry, stream: int) -> Any:
        known = self._configs.setdefault(stream, {})
        if geometry not in known:
            known[geometry] = self._new_config(geometry, stream)
        return known[geometry]

    def _forget_stream(self, stream: int) -> None:
        """Keep nothing of a stream that is to end; another may be called like it."""
        self._configs.pop(stream, None)

    def _new_config(self, geometry: Geometry, stream: int) -> Any:
        api, config = self._api, self._api.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = geometry.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = geometry.block
        config.sharedMemBytes = geometry.shared_bytes
        config.hStream = api.CUstream(stream)
        kinds, attributes = api.CUlaunchAttributeID, []
        if geometry.is_dependent:
            value = api.CUlaunchAttributeValue()
            value.programmaticStreamSerializationAllowed = 1
            which = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attributes.append(self._attribute(which, value))
        if geometry.cluster > 1:
            value = api.CUlaunchAttributeValue()
            value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = geometry.cluster, 1, 1
            attributes.append(self._attribute(kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value))
        config.attrs, config.numAttrs = attributes, len(attributes)
        return config

    def _attribute(self, which: object, value: object) -> Any:
        attribute = self._api.CUlaunchAttribute()
        attribute.id, attribute.value = which, value
        return attribute

    def begin_capture(self, stream: int) -> None:
        """Call `cuStreamBeginCapture`; other threads, and what is collected, may go on freeing."""
        mode = self._api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._call(self._api.cuStreamBeginCapture, stream, mode)

    def end_capture(self, stream: int) -> int:
        """Call `cuStreamEndCapture`."""
        return int(self._call(self._api.cuStreamEndCapture, stream))

    def destroy_graph(self, graph: int) -> None:
        """Call `cuGraphDestroy`."""
        self._call(self._api.cuGraphDestroy, graph)

    def instantiate(self, graph: int) -> int:
        """Call `cuGraphInstantiate`."""
        return int(self._call(self._api.cuGraphInstantiate, graph, 0))

    def upload_executable(self, executable: int, stream: int) -> None:
        """Call `cuGraphUpload`."""
        self._call(self._api.cuGraphUpload, executable, stream)

    def launch_executable(self, executable: int, stream: int) -> None:
        """Call `cuGraphLaunch`."""
        self._call(self._api.cuGraphLaunch, executable, stream)

    def destroy_executable(self, executable: int) -> None:
        """Call `cuGraphExecDestroy`."""
        self._call(self._api.cuGraphExecDestroy, executable)

    def record_event(self, event: int, stream: int) -> None:
        """Call `cuEventRecord`."""
        self._call(self._api.cuEventRecord, event, stream)

    def wait_event(self, event: int, stream: int) -> None:
        """Call `cuStreamWaitEvent`."""
        self._call(self._api.cuStreamWaitEvent, stream, event, 0)

    def synchronize_event(self, event: int) -> None:
        """Call `cuEventSynchronize`."""
        self._call(self._api.cuEventSynchronize, event)

    def elapsed_ms(self, begin: int, end: int) -> float:
        """Call `cuEventElapsedTime`."""
        return float(self._call(self._api.cuEventElapsedTime, begin, end))

    def enqueue_fill(self, address: int, size_bytes: int, stream: int) -> None:
        """Call `cuMemsetD8Async`."""
        self._call(self._api.cuMemsetD8Async, address, 0, size_bytes, stream)

    def enqueue_to_device(self, to: int, source: int, size_bytes: int, stream: int) -> None:
        """Call `cuMemcpyHtoDAsync`."""
        self._call(self._api.cuMemcpyHtoDAsync, to, source, size_bytes, stream)

    def enqueue_to_host(self, to: int, source: int, size_bytes: int, stream: int) -> None:
        """Call `cuMemcpyDtoHAsync`."""
        self._call(self._api.cuMemcpyDtoHAsync, to, source, size_bytes, stream)

    def enqueue_copy(self, to: int, source: int, size_bytes: int, stream: int) -> None:
        """Call `cuMemcpyDtoDAsync`."""
        self._call(self._api.cuMemcpyDtoDAsync, to, source, size_bytes, stream)

    def enqueue_copy_between(self, to: Place, source: Place, size_bytes: int, stream: int) -> None:
        """Call `cuMemcpyPeerAsync`; where cards do not reach each other, it goes over the host."""
        api = self._api
        ends = (
            *(to.address, api.CUcontext(to.context)),
            *(source.address, api.CUcontext(source.context)),
        )
        self._call(api.cuMemcpyPeerAsync, *ends, size_bytes, stream)


class _LibraryLaunch:
    """A call of `cuLaunchKernelEx` with all its arguments made."""

    __slots__ = ("_at", "_call", "_config", "_kernel", "_parameters", "_success")

    def __init__(self, api: Any, function: int, config: Any, fields: Fields) -> None:
        self._call, self._success = api.cuLaunchKernelEx, api.CUresult.CUDA_SUCCESS
        self._kernel, self._config = api.CUfunction(function), config
        self._parameters = (c_void_p * 1)(fields.address)
        self._at = addressof(self._parameters)

    def __call__(self) -> None:
        (status,) = self._call(self._config, self._kernel, self._at, 0)
        if status != self._success:
            raise failure("cuLaunchKernelEx", int(status), status.name)
