"""Compiling on several cores: LLVM's binding lets one thread in at a time, so processes help.

Each helper reads jobs from its input, one line each, and answers with object files. A helper that
dies or cannot do a job costs nothing but time: the job is done here, where errors can be told.
"""

import dataclasses
import importlib
import json
import os
import queue
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import IO

from corral.devices.cpu.compile import KernelSpec, object_code
from corral.devices.cpu.features import Dot, Target
from corral.devices.cpu.traits import usable_processors
from corral.errors import CompileError

Job = tuple[KernelSpec, str]
"""A kernel and the name of the function it becomes."""
_Answer = tuple[Job, bytes | CompileError]

_HELPERS_FROM = 4
"""Jobs from which on starting helpers (0.15 s) pays."""
_HEADER = struct.Struct("<?q")
_START = (
    "import sys, json; sys.path = json.loads(sys.argv[1]);"
    "from corral.devices.cpu.compile_pool import serve; serve()"
)


def compile_all(
    jobs: Sequence[Job], target: Target, processes: int | None = None
) -> Iterator[tuple[KernelSpec, bytes]]:
    """Compile kernels, giving each as soon as it is ready.

    Raises:
        CompileError: a kernel does not compile.
    """
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    answers: queue.SimpleQueue[_Answer | None] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    helpers = _helper_count(len(jobs), processes)
    threads = [
        threading.Thread(target=_drain, args=(waiting, answers, target, n < helpers), daemon=True)
        for n in range(helpers + 1)
    ]
    for thread in threads:
        thread.start()
    try:
        yield from _collect(answers, len(threads))
        yield from ((job[0], _here(job, target)) for job in _rest(waiting))
    finally:
        _rest(waiting)  # after an error, nothing new is begun
        for thread in threads:
            thread.join()


def _helper_count(jobs: int, processes: int | None) -> int:
    if processes is None:
        processes = usable_processors()
    if not sys.executable or jobs < _HELPERS_FROM:
        return 0
    return max(min(processes, jobs) - 1, 0)


def _collect(
    answers: "queue.SimpleQueue[_Answer | None]", workers: int
) -> Iterator[tuple[KernelSpec, bytes]]:
    while workers:
        answer = answers.get()
        if answer is None:
            workers -= 1
            continue
        job, result = answer
        if isinstance(result, CompileError):
            raise result
        yield job[0], result


def _rest(waiting: "queue.SimpleQueue[Job]") -> list[Job]:
    rest = []
    with suppress(queue.Empty):
        while True:
            rest.append(waiting.get_nowait())
    return rest


def _here(job: Job, target: Target) -> bytes:
    spec, symbol = job
    return object_code(spec.text(target, symbol), target)


def _drain(
    waiting: "queue.SimpleQueue[Job]",
    answers: "queue.SimpleQueue[_Answer | None]",
    target: Target,
    in_helper: bool,
) -> None:
    helper = _Helper(target) if in_helper else None
    with suppress(queue.Empty):
        while True:
            job = waiting.get_nowait()
            try:
                code = helper.compile(job) if helper else None
                answers.put((job, code or _here(job, target)))
            except CompileError as error:
                answers.put((job, error))
            except OSError:  # the helper is gone
                waiting.put(job)
                break
    if helper:
        helper.close()
    answers.put(None)


class _Helper:
    """A process that compiles."""

    def __init__(self, target: Target) -> None:
        self._target = json.dumps(dataclasses.asdict(target) | {"dot": target.dot.name})
        self._process: subprocess.Popen[bytes] | None = None

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._process = process
        _write_line(process, self._target)
        return process

    def compile(self, job: Job) -> bytes | None:
        """Return the object file, or None if the helper cannot make it."""
        spec, symbol = job
        process = self._process or self._start()
        words = [spec.emit.__module__, spec.emit.__qualname__, spec.parameters, symbol]
        _write_line(process, json.dumps(words))
        assert process.stdout is not None
        header = process.stdout.read(_HEADER.size)
        if len(header) < _HEADER.size:
            raise OSError("the helper ended")
        good, size = _HEADER.unpack(header)
        content = process.stdout.read(size)
        if len(content) < size:
            raise OSError("the helper ended")
        return content if good else None

    def close(self) -> None:
        if self._process is None:
            return
        with self._process as process, suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()


def _write_line(process: subprocess.Popen[bytes], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line.encode() + b"\n")
    process.stdin.flush()


def _target(line: str) -> Target:
    fields = json.loads(line)
    return Target(**fields | {"dot": Dot[fields["dot"]]})


def serve() -> None:
    """Answer jobs until the input ends: what a helper process runs."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that is printed may get between the answers
    source = sys.stdin.buffer
    target = _target(source.readline().decode())
    for line in source:
        try:
            _answer(out, True, _compiled(json.loads(line), target))
        except Exception:  # the parent tries again and tells
            _answer(out, False, b"")


def _compiled(words: list[object], target: Target) -> bytes:
    module, name, parameters, symbol = words
    emit = getattr(importlib.import_module(str(module)), str(name))
    assert isinstance(parameters, list)
    spec = KernelSpec.of(emit, **dict(parameters))
    return object_code(spec.text(target, str(symbol)), target)


def _answer(out: IO[bytes], good: bool, content: bytes) -> None:
    out.write(_HEADER.pack(good, len(content)) + content)
    out.flush()
