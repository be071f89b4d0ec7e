"""A CUDA driver that is played: contexts with users, memory that dies with them, scripted failures.

It is strict where a real driver is silent or undefined: touching what is gone is recorded in
`violations`, so a test can ask for none.
"""

import ctypes
import itertools
import threading
from collections.abc import Callable

from corral.devices.cuda.driver import DeviceFacts
from corral.devices.cuda.driver_errors import failure
from corral.errors import CorralError
from fake_execution import FakeExecution

MIB = 1 << 20
CONTEXT_BYTES = 512 * MIB
TOTAL_BYTES = 8192 * MIB
STATUS = {
    "out of memory": (2, "CUDA_ERROR_OUT_OF_MEMORY"),
    "invalid value": (1, "CUDA_ERROR_INVALID_VALUE"),
    "invalid context": (201, "CUDA_ERROR_INVALID_CONTEXT"),
    "destroyed": (709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"),
    "no device": (100, "CUDA_ERROR_NO_DEVICE"),
    "contained": (226, "CUDA_ERROR_CONTAINED"),
    "invalid handle": (400, "CUDA_ERROR_INVALID_HANDLE"),
    "not found": (500, "CUDA_ERROR_NOT_FOUND"),
    "illegal address": (700, "CUDA_ERROR_ILLEGAL_ADDRESS"),
    "capture": (900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"),
}


def uuid_of(ordinal: int) -> str:
    """Return the UUID of a played device."""
    return f"GPU-0000000{ordinal}-0000-0000-0000-000000000000"


class FakeDriver(FakeExecution):
    """Plays a driver with some devices."""

    def __init__(self, count: int = 1, *, total_bytes: int = TOTAL_BYTES) -> None:
        super().__init__()
        self.facts = tuple(
            DeviceFacts(n, uuid_of(n), "Played card", total_bytes, False, (9, 0))
            for n in range(count)
        )
        self.users = [0] * count
        self.memory_of: list[dict[int, int]] = [{} for _ in range(count)]
        """Device memory by address, of each device."""
        self.host_of: list[dict[int, int]] = [{} for _ in range(count)]
        self.foreign = [0] * count
        self.calls: list[str] = []
        self.violations: list[str] = []
        self.failures: dict[str, list[str]] = {}
        """By call: what its next calls fail with; an empty text lets one through."""
        self.before: Callable[[str], None] = lambda call: None
        """Called before each call, with its name."""
        self._ids = itertools.count(100)
        self._addresses = itertools.count(1 << 40, 1 << 32)
        self._contexts: dict[int, int] = {}
        """Id of the live context by handle; a device's handle is always the same, as in life."""
        self._handles: dict[int, tuple[int, str, int]] = {}
        self._stacks = threading.local()
        self._host: dict[int, ctypes.Array] = {}
        self._mutex = threading.RLock()
        self._content: dict[int, bytearray] = {}
        """Bytes of device memory by address, from the first copy on."""

    def _enter(self, call: str) -> None:
        self.before(call)
        self.calls.append(call)
        planned = self.failures.get(call)
        if planned and (kind := planned.pop(0)):
            raise self._failure(call, kind)

    def _failure(self, call: str, kind: str) -> CorralError:
        return failure(call, *STATUS[kind])

    def _stack(self) -> list[int]:
        if not hasattr(self._stacks, "handles"):
            self._stacks.handles = []
        return self._stacks.handles

    def _current(self, call: str) -> int:
        """Return the ordinal of the current context's device."""
        stack = self._stack()
        if not stack or stack[-1] not in self._contexts:
            self.violations.append(f"{call} without a live context")
            raise self._failure(call, "invalid context")
        return stack[-1] - 1

    def used(self, ordinal: int) -> int:
        """Return what NVML would call used."""
        context = CONTEXT_BYTES if ordinal + 1 in self._contexts else 0
        return context + sum(self.memory_of[ordinal].values()) + self.foreign[ordinal]

    def reset(self, ordinal: int) -> None:
        """End a context as other code may: everything in it dies, the users are still counted."""
        with self._mutex:
            self._contexts.pop(ordinal + 1, None)
            self.memory_of[ordinal].clear()
            self.host_of[ordinal].clear()

    def initialize(self) -> None:
        self._enter("initialize")

    def version(self) -> int:
        return 13000

    def devices(self) -> tuple[DeviceFacts, ...]:
        self._enter("devices")
        return self.facts

    def primary_is_active(self, ordinal: int) -> bool:
        self._enter("primary_is_active")
        return ordinal + 1 in self._contexts

    def primary_retain(self, ordinal: int) -> int:
        self._enter("primary_retain")
        with self._mutex:
            handle = ordinal + 1
            if handle not in self._contexts:
                if self.used(ordinal) + CONTEXT_BYTES > self.facts[ordinal].total_bytes:
                    raise self._failure("primary_retain", "out of memory")
                self._contexts[handle] = next(self._ids)
            self.users[ordinal] += 1
            return handle

    def primary_release(self, ordinal: int) -> None:
        self._enter("primary_release")
        with self._mutex:
            if self.users[ordinal] == 0:
                self.violations.append("primary_release without a user")
                raise self._failure("primary_release", "invalid context")
            self.users[ordinal] -= 1
            if self.users[ordinal] == 0:
                lost = len(self.memory_of[ordinal]) + len(self.host_of[ordinal])
                if lost:
                    self.violations.append(f"released with {lost} allocations alive")
                self.reset(ordinal)

    def context_id(self, context: int) -> int:
        self._enter("context_id")
        if context not in self._contexts:
            raise self._failure("context_id", "destroyed")
        return self._contexts[context]

    def push(self, context: int) -> None:
        self._enter("push")
        if context not in self._contexts:
            self.violations.append("push of a dead context")
            raise self._failure("push", "destroyed")
        self._stack().append(context)

    def pop(self) -> None:
        self._enter("pop")
        self._stack().pop()

    def synchronize(self) -> None:
        self._enter("synchronize")
        self._current("synchronize")
        self._refuse_capture("synchronize")

    def memory(self) -> tuple[int, int]:
        self._enter("memory")
        ordinal = self._current("memory")
        total = self.facts[ordinal].total_bytes
        return total - self.used(ordinal), total

    def allocate(self, size_bytes: int) -> int:
        self._enter("allocate")
        ordinal = self._current("allocate")
        with self._mutex:
            if size_bytes + self.used(ordinal) > self.facts[ordinal].total_bytes:
                raise self._failure("allocate", "out of memory")
            address = next(self._addresses)
            self.memory_of[ordinal][address] = size_bytes
            return address

    def free(self, address: int) -> None:
        self._enter("free")
        ordinal = self._current("free")
        self._content.pop(address, None)
        if self.memory_of[ordinal].pop(address, None) is None:
            self.violations.append("free of what is not there")
            raise self._failure("free", "invalid value")

    def allocate_host(self, size_bytes: int) -> int:
        self._enter("allocate_host")
        ordinal = self._current("allocate_host")
        memory = (ctypes.c_uint8 * size_bytes)()
        address = ctypes.addressof(memory)
        self._host[address] = memory
        self.host_of[ordinal][address] = size_bytes
        return address

    def free_host(self, address: int) -> None:
        self._enter("free_host")
        if self.host_of[self._current("free_host")].pop(address, None) is None:
            self.violations.append("free of pinned memory that is not there")
        self._host.pop(address)

    def _touch(self, call: str, address: int, size_bytes: int) -> memoryview:
        """Return the bytes that a call reads or writes."""
        ordinal = self._current(call)
        for at, size in self.memory_of[ordinal].items():
            if at <= address and address + size_bytes <= at + size:
                content = self._content.setdefault(at, bytearray(size))
                return memoryview(content)[address - at : address - at + size_bytes]
        self.violations.append(f"{call} outside of memory")
        raise self._failure(call, "illegal address")

    def fill(self, address: int, size_bytes: int) -> None:
        self._enter("fill")
        self._touch("fill", address, size_bytes)

    def copy_to_device(self, to: int, source: int, size_bytes: int) -> None:
        self._enter("copy_to_device")
        self._touch("copy_to_device", to, size_bytes)[:] = ctypes.string_at(source, size_bytes)

    def copy_to_host(self, to: int, source: int, size_bytes: int) -> None:
        self._enter("copy_to_host")
        data = self._touch("copy_to_host", source, size_bytes)
        ctypes.memmove(to, bytes(data), size_bytes)

    def _create(self, kind: str, call: str = "") -> int:
        call = call or f"create_{kind}"
        self._enter(call)
        ordinal = self._current(call)
        handle = next(self._ids)
        self._handles[handle] = (ordinal, kind, self._contexts[ordinal + 1])
        return handle

    def _destroy(self, kind: str, handle: int, call: str = "") -> None:
        call = call or f"destroy_{kind}"
        self._enter(call)
        ordinal = self._current(call)
        if self._handles.pop(handle, None) != (ordinal, kind, self._contexts[ordinal + 1]):
            self.violations.append(f"{call} of what is not there")

    def create_stream(self) -> int:
        return self._create("stream")

    def synchronize_stream(self, stream: int) -> None:
        self._enter("synchronize_stream")
        if stream not in self._handles:
            self.violations.append("synchronize_stream of what is not there")
        self._refuse_capture("synchronize_stream", stream)

    def destroy_stream(self, stream: int) -> None:
        self._destroy("stream", stream)
