"""The calls of the CUDA driver that corral makes, each checked, with plain integers for handles.

`Driver` is what the life cycle needs and, from `driver_execution.py`, what computing does;
`LibraryDriver` makes the calls through cuda.bindings, and tests script a class of the same shape.
Whoever calls knows which context must be current; nothing here keeps one.

Source: CUDA Driver API, modules Device, Primary Context, Context, Memory, Stream and Event.
"""

from dataclasses import dataclass
from typing import Protocol

from corral.devices.cuda.driver_execution import ExecutionDriver, LibraryExecution
from corral.errors import DeviceUnavailable


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What never changes about a device."""

    ordinal: int
    """Its number among the devices this process may see."""
    uuid: str
    name: str
    total_bytes: int
    is_integrated: bool
    """Whether its memory is the host's."""
    capability: tuple[int, int]


class Driver(ExecutionDriver, Protocol):
    """The narrow side of the driver. Every call raises what `driver_errors.failure` makes."""

    def initialize(self) -> None:
        """Load the driver; makes no context."""
        ...

    def version(self) -> int:
        """Return the CUDA version it implements, 13000 for 13.0."""
        ...

    def devices(self) -> tuple[DeviceFacts, ...]:
        """Return the devices this process may see."""
        ...

    def primary_is_active(self, ordinal: int) -> bool:
        """Say whether a device's primary context exists in this process; makes none."""
        ...

    def primary_retain(self, ordinal: int) -> int:
        """Return the primary context, made if need be, with one more user."""
        ...

    def primary_release(self, ordinal: int) -> None:
        """Take one user from the primary context; without users it ends."""
        ...

    def context_id(self, context: int) -> int:
        """Return a number that no other context of this process ever has."""
        ...

    def push(self, context: int) -> None:
        """Make a context this thread's current one."""
        ...

    def pop(self) -> None:
        """Give this thread back the context it had."""
        ...

    def synchronize(self) -> None:
        """Wait for all work in the current context."""
        ...

    def memory(self) -> tuple[int, int]:
        """Return (free, total) bytes of the current context's device."""
        ...

    def allocate(self, size_bytes: int) -> int:
        """Return the address of new device memory."""
        ...

    def free(self, address: int) -> None:
        """Give device memory back."""
        ...

    def allocate_host(self, size_bytes: int) -> int:
        """Return the address of new pinned host memory."""
        ...

    def free_host(self, address: int) -> None:
        """Give pinned host memory back."""
        ...

    def fill(self, address: int, size_bytes: int) -> None:
        """Zero device memory, before returning."""
        ...

    def copy_to_device(self, to: int, source: int, size_bytes: int) -> None:
        """Copy from host memory, before returning."""
        ...

    def copy_to_host(self, to: int, source: int, size_bytes: int) -> None:
        """Copy to host memory, before returning."""
        ...

    def create_stream(self) -> int:
        """Return a new stream that does not wait for the default one."""
        ...

    def synchronize_stream(self, stream: int) -> None:
        """Wait for all work in a stream."""
        ...

    def destroy_stream(self, stream: int) -> None:
        """End a stream."""
        ...

    def create_event(self, *, keeps_time: bool = False) -> int:
        """Return a new event; those that keep time cost more."""
        ...

    def destroy_event(self, event: int) -> None:
        """End an event."""
        ...


class LibraryDriver(LibraryExecution):
    """The driver of this machine, through cuda.bindings."""

    def initialize(self) -> None:
        """Call `cuInit`."""
        try:
            self._call(self._api.cuInit, 0)
        except RuntimeError as error:  # how the bindings tell that there is no library
            raise DeviceUnavailable("this machine has no NVIDIA driver") from error

    def version(self) -> int:
        """Call `cuDriverGetVersion`."""
        return int(self._call(self._api.cuDriverGetVersion))

    def devices(self) -> tuple[DeviceFacts, ...]:
        """Call `cuDeviceGetCount`, then ask for the facts of each."""
        count = int(self._call(self._api.cuDeviceGetCount))
        return tuple(self._facts(ordinal) for ordinal in range(count))

    def _facts(self, ordinal: int) -> DeviceFacts:
        api = self._api
        uuid = bytes(self._call(api.cuDeviceGetUuid, ordinal).bytes)[:16]
        name = bytes(self._call(api.cuDeviceGetName, 256, ordinal))
        attributes = api.CUdevice_attribute

        def attribute(which: object) -> int:
            return int(self._call(api.cuDeviceGetAttribute, which, ordinal))

        return DeviceFacts(
            ordinal,
            format_uuid(uuid),
            name.split(b"\0")[0].decode(),
            int(self._call(api.cuDeviceTotalMem, ordinal)),
            bool(attribute(attributes.CU_DEVICE_ATTRIBUTE_INTEGRATED)),
            (
                attribute(attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                attribute(attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
            ),
        )

    def primary_is_active(self, ordinal: int) -> bool:
        """Call `cuDevicePrimaryCtxGetState`."""
        _flags, active = self._call(self._api.cuDevicePrimaryCtxGetState, ordinal)
        return bool(active)

    def primary_retain(self, ordinal: int) -> int:
        """Call `cuDevicePrimaryCtxRetain`."""
        return int(self._call(self._api.cuDevicePrimaryCtxRetain, ordinal))

    def primary_release(self, ordinal: int) -> None:
        """Call `cuDevicePrimaryCtxRelease`."""
        self._call(self._api.cuDevicePrimaryCtxRelease, ordinal)

    def context_id(self, context: int) -> int:
        """Call `cuCtxGetId`."""
        return int(self._call(self._api.cuCtxGetId, context))

    def push(self, context: int) -> None:
        """Call `cuCtxPushCurrent`."""
        self._call(self._api.cuCtxPushCurrent, context)

    def pop(self) -> None:
        """Call `cuCtxPopCurrent`."""
        self._call(self._api.cuCtxPopCurrent)

    def synchronize(self) -> None:
        """Call `cuCtxSynchronize`."""
        self._call(self._api.cuCtxSynchronize)

    def memory(self) -> tuple[int, int]:
        """Call `cuMemGetInfo`."""
        free, total = self._call(self._api.cuMemGetInfo)
        return int(free), int(total)

    def allocate(self, size_bytes: int) -> int:
        """Call `cuMemAlloc`."""
        return int(self._call(self._api.cuMemAlloc, size_bytes))

    def free(self, address: int) -> None:
        """Call `cuMemFree`."""
        self._call(self._api.cuMemFree, address)

    def allocate_host(self, size_bytes: int) -> int:
        """Call `cuMemHostAlloc`."""
        return int(self._call(self._api.cuMemHostAlloc, size_bytes, 0))

    def free_host(self, address: int) -> None:
        """Call `cuMemFreeHost`."""
        self._call(self._api.cuMemFreeHost, address)

    def fill(self, address: int, size_bytes: int) -> None:
        """Call `cuMemsetD8`."""
        self._call(self._api.cuMemsetD8, address, 0, size_bytes)
        self._call(self._api.cuCtxSynchronize)

    def copy_to_device(self, to: int, source: int, size_bytes: int) -> None:
        """Call `cuMemcpyHtoD`."""
        self._call(self._api.cuMemcpyHtoD, to, source, size_bytes)

    def copy_to_host(self, to: int, source: int, size_bytes: int) -> None:
        """Call `cuMemcpyDtoH`."""
        self._call(self._api.cuMemcpyDtoH, to, source, size_bytes)

    def create_stream(self) -> int:
        """Call `cuStreamCreate`."""
        flags = self._api.CUstream_flags.CU_STREAM_NON_BLOCKING
        return int(self._call(self._api.cuStreamCreate, int(flags)))

    def synchronize_stream(self, stream: int) -> None:
        """Call `cuStreamSynchronize`."""
        self._call(self._api.cuStreamSynchronize, stream)

    def destroy_stream(self, stream: int) -> None:
        """Call `cuStreamDestroy`."""
        self._forget_stream(stream)
        self._call(self._api.cuStreamDestroy, stream)

    def create_event(self, *, keeps_time: bool = False) -> int:
        """Call `cuEventCreate`."""
        kinds = self._api.CUevent_flags
        flags = kinds.CU_EVENT_DEFAULT if keeps_time else kinds.CU_EVENT_DISABLE_TIMING
        return int(self._call(self._api.cuEventCreate, int(flags)))

    def destroy_event(self, event: int) -> None:
        """Call `cuEventDestroy`."""
        self._call(self._api.cuEventDestroy, event)


def format_uuid(uuid: bytes) -> str:
    """Return 16 bytes the way the driver's tools write them: `GPU-xxxxxxxx-xxxx-…`."""
    text = uuid.hex()
    parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
    return "GPU-" + "-".join(parts)
