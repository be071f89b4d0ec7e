"""The part of the played driver that computes: modules, launches, graphs, events, copies.

Streams do at once what is put into them, unless it is being captured; a graph does it all again at
every launch. Kernels compute nothing by themselves: launches are written down, and `executes` may
play them. What a real driver leaves undefined is a violation here.
"""

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from corral.devices.cuda.driver_execution import (
    DeviceLimits,
    Fields,
    Geometry,
    Place,
    PreparedLaunch,
)

FREE_SHARED_BYTES = 48 << 10
MOST_SHARED_BYTES = 227 << 10
MOST_THREADS = 1024


@dataclass(frozen=True)
class PlayedLaunch:
    """One launch, as the device saw it."""

    name: str
    """The kernel's symbol."""
    geometry: Geometry
    fields: tuple[int, ...]
    """The words of its parameter at the time of the launch, or of its capture."""
    stream: int


@dataclass
class PlayedFunction:
    """A kernel of a module."""

    module: int
    symbol: str
    allowed_bytes: int = FREE_SHARED_BYTES


@dataclass
class PlayedEvent:
    """When an event was recorded last, if it was."""

    keeps_time: bool
    at_ms: float | None = None


@dataclass
class PlayedWork:
    """What lives beside memory, by handle."""

    codes: dict[int, bytes] = field(default_factory=dict)
    functions: dict[int, PlayedFunction] = field(default_factory=dict)
    events: dict[int, PlayedEvent] = field(default_factory=dict)
    graphs: dict[int, list[Callable[[], None]]] = field(default_factory=dict)
    """Of graphs and executables: what they do."""
    captures: dict[int, list[Callable[[], None]]] = field(default_factory=dict)
    """By stream: what is collected."""


class FakeExecution:
    """Mixed into `FakeDriver`, whose contexts and handles it uses."""

    def __init__(self) -> None:
        self.launches: list[PlayedLaunch] = []
        """Every launch that ran, those of graphs included."""
        self.executes: Callable[[PlayedLaunch], None] = lambda launch: None
        """Called with each launch, to play the kernel."""
        self.time_ms = 0.0
        """A kernel takes one millisecond, anything else none."""
        self._work = PlayedWork()

    def _alive(self, call: str, kind: str, handle: int) -> None:
        """Refuse a handle that is not of this kind or not of the current context."""
        ordinal = self._current(call)
        if self._handles.get(handle) != (ordinal, kind, self._contexts[ordinal + 1]):
            self.violations.append(f"{call} with a {kind} that is not there")
            raise self._failure(call, "invalid handle")

    def _alive_anywhere(self, call: str, event: int) -> None:
        """Refuse an event that is in no context; one of another context will do."""
        ordinal, kind, context = self._handles.get(event, (0, "", 0))
        if kind != "event" or self._contexts.get(ordinal + 1) != context:
            self.violations.append(f"{call} with an event that is not there")
            raise self._failure(call, "invalid handle")

    def _put(self, call: str, stream: int, action: Callable[[], None]) -> None:
        self._enter(call)
        self._alive(call, "stream", stream)
        if stream in self._work.captures:
            self._work.captures[stream].append(action)
        else:
            action()

    def _refuse_capture(self, call: str, stream: int | None = None) -> None:
        captures = self._work.captures
        if (stream is None and captures) or stream in captures:
            self.violations.append(f"{call} while a stream is captured")
            raise self._failure(call, "capture")

    def limits(self, ordinal: int) -> DeviceLimits:
        self._enter("limits")
        return DeviceLimits(132, 2048, MOST_SHARED_BYTES, MOST_SHARED_BYTES + 1024, 50 << 20)

    def load_module(self, code: bytes) -> int:
        handle = self._create("module", "load_module")
        self._work.codes[handle] = code
        return handle

    def unload_module(self, module: int) -> None:
        self._destroy("module", module, "unload_module")
        self._work.codes.pop(module, None)

    def function(self, module: int, symbol: str) -> int:
        self._enter("function")
        self._alive("function", "module", module)
        if symbol.encode() not in self._work.codes[module]:
            raise self._failure("function", "not found")
        handle = next(self._ids)
        self._work.functions[handle] = PlayedFunction(module, symbol)
        return handle

    def _function(self, call: str, function: int) -> PlayedFunction:
        if function not in self._work.functions:
            self.violations.append(f"{call} with a function that is not there")
            raise self._failure(call, "invalid handle")
        found = self._work.functions[function]
        self._alive(call, "module", found.module)
        return found

    def allow_shared(self, function: int, size_bytes: int) -> None:
        self._enter("allow_shared")
        found = self._function("allow_shared", function)
        if size_bytes > MOST_SHARED_BYTES:
            raise self._failure("allow_shared", "invalid value")
        found.allowed_bytes = max(found.allowed_bytes, size_bytes)

    def prefer_shared(self, function: int) -> None:
        self._enter("prefer_shared")
        self._current("prefer_shared")

    def prepare(
        self, function: int, geometry: Geometry, fields: Fields, stream: int
    ) -> PreparedLaunch:
        self._enter("prepare")
        found = self._function("prepare", function)
        for wrong, what in (
            (math.prod(geometry.block) > MOST_THREADS, "too many threads"),
            (min(*geometry.grid, *geometry.block) < 1, "no threads"),
            (geometry.shared_bytes > found.allowed_bytes, "more shared memory than allowed"),
            (geometry.grid[0] % geometry.cluster, "an incomplete cluster"),
            (fields.size_bytes % 8, "half a field"),
        ):
            if wrong:
                self.violations.append(f"{found.symbol} is launched with {what}")

        def launch() -> None:
            words = (ctypes.c_int64 * (fields.size_bytes // 8)).from_address(fields.address)
            played = PlayedLaunch(found.symbol, geometry, tuple(words), stream)

            def run() -> None:
                self._function("launch", function)
                self.launches.append(played)
                self.executes(played)
                self.time_ms += 1.0

            self._put("launch", stream, run)

        return launch

    def begin_capture(self, stream: int) -> None:
        self._enter("begin_capture")
        self._alive("begin_capture", "stream", stream)
        self._refuse_capture("begin_capture", stream)
        self._work.captures[stream] = []

    def end_capture(self, stream: int) -> int:
        self._alive("end_capture", "stream", stream)
        collected = self._work.captures.pop(stream, None)
        if collected is None:
            self.violations.append("end_capture of a stream that is not captured")
            raise self._failure("end_capture", "invalid value")
        handle = self._create("graph", "end_capture")
        self._work.graphs[handle] = collected
        return handle

    def destroy_graph(self, graph: int) -> None:
        self._destroy("graph", graph)
        self._work.graphs.pop(graph, None)

    def instantiate(self, graph: int) -> int:
        self._alive("instantiate", "graph", graph)
        handle = self._create("executable", "instantiate")
        self._work.graphs[handle] = list(self._work.graphs[graph])
        return handle

    def upload_executable(self, executable: int, stream: int) -> None:
        self._alive("upload_executable", "executable", executable)
        self._put("upload_executable", stream, lambda: None)

    def launch_executable(self, executable: int, stream: int) -> None:
        self._alive("launch_executable", "executable", executable)

        def run() -> None:
            for action in self._work.graphs[executable]:
                action()

        self._put("launch_executable", stream, run)

    def destroy_executable(self, executable: int) -> None:
        self._destroy("executable", executable)
        self._work.graphs.pop(executable, None)

    def create_event(self, *, keeps_time: bool = False) -> int:
        handle = self._create("event")
        self._work.events[handle] = PlayedEvent(keeps_time)
        return handle

    def destroy_event(self, event: int) -> None:
        self._destroy("event", event)
        self._work.events.pop(event, None)

    def record_event(self, event: int, stream: int) -> None:
        self._alive("record_event", "event", event)

        def run() -> None:
            self._work.events[event].at_ms = self.time_ms

        self._put("record_event", stream, run)

    def wait_event(self, event: int, stream: int) -> None:
        self._alive_anywhere("wait_event", event)
        self._put("wait_event", stream, lambda: None)

    def synchronize_event(self, event: int) -> None:
        self._enter("synchronize_event")  # needs no current context, as was seen on a card
        self._alive_anywhere("synchronize_event", event)

    def elapsed_ms(self, begin: int, end: int) -> float:
        self._enter("elapsed_ms")
        for event in (begin, end):
            self._alive("elapsed_ms", "event", event)
        first, last = (self._work.events[event] for event in (begin, end))
        if first.at_ms is None or last.at_ms is None or not first.keeps_time & last.keeps_time:
            self.violations.append("elapsed_ms of events that do not tell")
            raise self._failure("elapsed_ms", "invalid handle")
        return last.at_ms - first.at_ms

    def enqueue_fill(self, address: int, size_bytes: int, stream: int) -> None:
        def run() -> None:
            self._touch("enqueue_fill", address, size_bytes)[:] = bytes(size_bytes)

        self._put("enqueue_fill", stream, run)

    def enqueue_to_device(self, to: int, source: int, size_bytes: int, stream: int) -> None:
        def run() -> None:
            data = ctypes.string_at(source, size_bytes)
            self._touch("enqueue_to_device", to, size_bytes)[:] = data

        self._put("enqueue_to_device", stream, run)

    def enqueue_to_host(self, to: int, source: int, size_bytes: int, stream: int) -> None:
        def run() -> None:
            data = self._touch("enqueue_to_host", source, size_bytes)
            ctypes.memmove(to, bytes(data), size_bytes)

        self._put("enqueue_to_host", stream, run)

    def enqueue_copy(self, to: int, source: int, size_bytes: int, stream: int) -> None:
        def run() -> None:
            data = bytes(self._touch("enqueue_copy", source, size_bytes))
            self._touch("enqueue_copy", to, size_bytes)[:] = data

        self._put("enqueue_copy", stream, run)

    def enqueue_copy_between(self, to: Place, source: Place, size_bytes: int, stream: int) -> None:
        def touch(place: Place) -> memoryview:
            self.push(place.context)
            try:
                return self._touch("enqueue_copy_between", place.address, size_bytes)
            finally:
                self.pop()

        def run() -> None:
            touch(to)[:] = bytes(touch(source))

        self._put("enqueue_copy_between", stream, run)
