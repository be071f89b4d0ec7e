"""A team of threads that evaluate programs together; they sleep when there is nothing to do.

The waiting and the running are native (`kernels/team.py`), entered without the interpreter's lock.
"""

import ctypes
import mmap
import os
import threading
import time
from typing import Any

from corral.devices.closing import Closing
from corral.devices.cpu.compile import Compiler, KernelSpec
from corral.devices.cpu.kernels import team as native
from corral.devices.cpu.traits import CPU_TRAITS, usable_processors

_SPECS = {
    name: KernelSpec.of(emit)
    for name, emit in {
        "start": native.start,
        "run": native.run,
        "work": native.work,
        "ticks": native.ticks,
    }.items()
}
_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)

_STEAL_SECONDS = 5e-6
"""A thread waits this long before it does what others have not begun: longer than they differ."""
_POLITE_SECONDS = 50e-6
"""A thread spins this long before it lets others have the processor."""
_IDLE_SECONDS = 2e-3
"""A worker waits this long for the next program before it sleeps: longer than sampling takes."""
_LEAST_ROWS = 1024
_CALIBRATION_SECONDS = 1e-3


class ThreadTeam(Closing):
    """Persistent threads that run programs; the caller of `run` is thread 0."""

    def __init__(
        self,
        compiler: Compiler,
        threads: int | None = None,
        *,
        row_bytes: int = CPU_TRAITS.record_bytes,
    ) -> None:
        """Start the workers, which sleep until the first program.

        `threads` counts the caller; by default one for each processor this process may use.
        `row_bytes` is the distance between rows of a program. The compiler must outlive the team.
        """
        self.num_threads = max(threads or usable_processors(), 1)
        kernels = compiler.request(_SPECS.values())
        functions = {name: _SIGNATURE(kernels[spec]) for name, spec in _SPECS.items()}
        self._shared = _Shared(self.num_threads, row_bytes, functions)
        self._workers = [
            threading.Thread(target=self._shared.work, args=(n,), name=f"corral-{n}", daemon=True)
            for n in range(1, self.num_threads)
        ]
        for worker in self._workers:
            worker.start()
        self.is_closed = False

    def run(self, program: int, count: int) -> None:
        """Execute the `count` rows at an address on all threads; returns when all are done.

        Only one thread at a time may call it.

        Raises:
            Closed: after close().
        """
        self._require_open()
        self._shared.start(program, count)
        self._shared.take_part()

    def _release(self) -> None:
        self._shared.stop()
        for worker in self._workers:
            worker.join()


class _Shared:
    """What the threads share; it holds no reference to the team, so a forgotten team is noticed."""

    def __init__(self, threads: int, row_bytes: int, functions: dict[str, Any]) -> None:
        self._threads, self._functions = threads, functions
        self._memory = mmap.mmap(-1, native.state_bytes(threads))  # pages: aligned, zeroed
        self._words = (ctypes.c_int64 * (len(self._memory) // 8)).from_buffer(self._memory)
        self._address = ctypes.addressof(self._words)
        self._wake = [threading.Semaphore(0) for _ in range(threads)]
        self._stopped = False
        self._flags: list[ctypes.Array[ctypes.c_char]] = []
        self._set(native.FIRST, 1)
        rate = self._ticks_per_second()
        self._set(native.ROW_BYTES, row_bytes)
        self._set(native.NUM_THREADS, threads)
        self._set(native.STEAL_TICKS, int(_STEAL_SECONDS * rate))
        self._set(native.POLITE_TICKS, int(_POLITE_SECONDS * rate))
        self._set(native.IDLE_TICKS, int(_IDLE_SECONDS * rate))
        self._yield = _yield_function()
        self._set(native.YIELD, ctypes.cast(self._yield, ctypes.c_void_p).value or 0)

    def _set(self, offset: int, value: int) -> None:
        self._words[offset // 8] = value

    def _ticks_per_second(self) -> float:
        count = ctypes.c_int64()
        samples = []
        for _ in range(2):
            self._functions["ticks"](ctypes.addressof(count), 0, 1)
            samples.append((count.value, time.perf_counter()))
            time.sleep(_CALIBRATION_SECONDS)
        (first, begin), (last, end) = samples
        return (last - first) / (end - begin)

    def start(self, program: int, count: int) -> None:
        """Publish a program and wake who sleeps."""
        if not self._flags or count > len(self._flags[-1]):
            # A late thread may still read the old table: it stays as long as the team.
            self._flags.append(ctypes.create_string_buffer(max(2 * count, _LEAST_ROWS)))
            self._set(native.FLAGS, ctypes.addressof(self._flags[-1]))
        self._functions["start"](self._address, program, count)
        if self._words[native.SLEEPERS // 8]:
            for thread in range(1, self._threads):
                word = (native.THREADS + native.LINE * thread + native.WAKE) // 8
                if self._words[word]:
                    self._words[word] = 0
                    self._wake[thread].release()

    def take_part(self) -> None:
        """Execute the share of thread 0."""
        self._functions["run"](self._address, 0, self._threads)

    def work(self, thread: int) -> None:
        """Be a worker until the team stops."""
        while True:
            self._functions["work"](self._address, thread, self._threads)
            if self._stopped:
                return
            self._wake[thread].acquire()

    def stop(self) -> None:
        """Let the workers end."""
        self._stopped = True
        self._set(native.STOP, 1)
        self.start(0, 0)


def _yield_function() -> Any:
    if os.name == "nt":
        return ctypes.windll.kernel32.SwitchToThread  # type: ignore[attr-defined]
    return ctypes.CDLL(None).sched_yield
