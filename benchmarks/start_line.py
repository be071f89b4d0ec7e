"""A time line of a start: what a fresh process does until its first token, and how long each takes.

    python benchmarks/start_line.py MODEL.gguf [--context 4096] [--repeat 3] [--device cuda:0]

Each start is a process of its own, in which the functions named below are wrapped from outside.
A line is a call: when it began, how long it took, in which thread; calls of one function by one
other are a single line if there are many. Times are seconds from before the process was started.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from machine import machine

SPANS = (
    "corral.engine.targets:Targets.of",
    "corral.engine.model:open_by_name",
    "corral.devices.registry:open",
    "corral.devices.cuda.device:CudaDevice.hold",
    "corral.devices.cuda.opening:process_contexts",
    "corral.devices.cuda.opening:planned_context",
    "corral.engine.opened:open_model",
    "corral.text.tokenizer:Tokenizer.from_metadata",
    "corral.engine.opened:write_graph",
    "corral.engine.opened:load_split",
    "corral.engine.load:design_split",
    "corral.devices.cuda.backend:CudaBackend.__init__",
    "corral.engine.load:reserve",
    "corral.engine.load:allocate",
    "corral.devices.cuda.device:CudaDevice.allocate",
    "corral.devices.cuda.backend:CudaBackend.lower",
    "corral.devices.cuda.backend:lower_all",
    "corral.devices.cuda.compile:Compiler.request",
    "corral.devices.cuda.modules:Modules.load",
    "corral.devices.cuda.backend:prepare",
    "corral.devices.cuda.backend:capture",
    "corral.engine.load:read_weights",
    "corral.engine.opened:_engine",
    "corral.engine.engine:Engine.step",
)
"""Functions that are lines of their own, as module:name."""
_FIRST = "first token at "
FEW = 3
"""Calls of one function by another that are lines of their own; more are one."""


@dataclass
class Call:
    """One call, and what it called."""

    name: str
    begun: float
    ended: float = 0.0
    thread: str = ""
    inner: list["Call"] = field(default_factory=list)


class Line:
    """Collects calls of all threads."""

    def __init__(self, origin: float) -> None:
        """Count from a moment of `time.time`."""
        self._origin = time.perf_counter() - (time.time() - origin)
        self._open = threading.local()
        self.calls: list[Call] = []
        self.driver: dict[tuple[str, bool], list[float]] = defaultdict(list)
        """Seconds of each call of the driver, by name and whether it was the main thread's."""

    def now(self) -> float:
        """Return the seconds since the origin."""
        return time.perf_counter() - self._origin

    def mark(self, name: str, begun: float) -> None:
        """Note what was not a call."""
        self.calls.append(Call(name, begun, self.now()))

    def wrapped(self, name: str, function: Callable) -> Callable:
        """Return a function that is written down when it is called."""

        def call(*args, **kwargs):
            stack = self._open.__dict__.setdefault("stack", [])
            one = Call(name, self.now(), thread=threading.current_thread().name)
            (stack[-1].inner if stack else self.calls).append(one)
            stack.append(one)
            try:
                return function(*args, **kwargs)
            finally:
                one.ended = self.now()
                stack.pop()

        return call

    def counted(self, name: str, function: Callable) -> Callable:
        """Return a call of the driver whose time is summed up."""
        main = threading.main_thread()

        def call(*args, **kwargs):
            begun = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.perf_counter() - begun
                self.driver[name, threading.current_thread() is main].append(took)

        return call

    def wrap(self, place: str) -> None:
        """Wrap a function of a module, or of a class in it, where it is looked up."""
        module, _, path = place.partition(":")
        *outer, name = path.split(".")
        try:
            owner = importlib.import_module(module)
            for each in outer:
                owner = getattr(owner, each)
            raw = vars(owner)[name]
        except (ImportError, AttributeError, KeyError) as error:
            print(f"not wrapped: {place}: {error!r}")
            return
        if isinstance(raw, classmethod):
            setattr(owner, name, classmethod(self.wrapped(path, raw.__func__)))
        else:
            setattr(owner, name, self.wrapped(path, raw))

    def show(self) -> None:
        """Print the line, then what the driver took."""
        _show_all(sorted(self.calls, key=lambda one: one.begun), 0)
        print("calls of the driver             calls  seconds  longest")
        totals = sorted(self.driver.items(), key=lambda item: -sum(item[1]))
        for (name, is_main), took in totals[:16]:
            where = "" if is_main else " (threads)"
            print(f"  {name + where:29} {len(took):6} {sum(took):8.3f} {max(took):8.3f}")


def _show_all(calls: list[Call], depth: int) -> None:
    groups = defaultdict(list)
    for one in calls:
        groups[one.name].append(one)
    for one in calls:
        same, indent = groups[one.name], "  " * depth
        if len(same) <= FEW:
            where = "" if one.thread in ("", "MainThread") else f"  [{one.thread}]"
            print(f"{one.begun:7.3f} {one.ended - one.begun:7.3f}  {indent}{one.name}{where}")
            _show_all(one.inner, depth + 1)
        elif one is same[0]:
            took = sum(each.ended - each.begun for each in same)
            end = max(each.ended for each in same)
            print(f"{one.begun:7.3f} {took:7.3f}  {indent}{one.name} × {len(same)}  … {end:.3f}")


def child(model: str, device: str, context: int) -> None:
    """Start once and print the line."""
    line = Line(float(os.environ["CORRAL_STARTED"]))
    line.mark("Python itself", 0.0)
    begun = line.now()
    import corral

    load, params = corral.Model.load, corral.SamplingParams(temperature=0.0)
    line.mark("import of corral.Model", begun)
    begun = line.now()
    if device.startswith("cuda"):
        from corral.devices.cuda import opening  # noqa: F401
        from corral.devices.cuda.driver import LibraryDriver

        line.mark("import of corral.devices.cuda", begun)
        begun = line.now()
        importlib.import_module("cuda.bindings.driver")
        line.mark("import of cuda.bindings.driver", begun)
        methods = [m for base in LibraryDriver.__mro__ for m in vars(base).items()]
        for name, raw in reversed(methods):
            if callable(raw) and not name.startswith("_"):
                setattr(LibraryDriver, name, line.counted(name, raw))
    for place in SPANS:
        if device.startswith("cuda") or ".cuda." not in place:
            line.wrap(place)
    load = line.wrapped("Model.load", load)
    with load(model, device=device, context=context) as loaded:
        begun = line.now()
        for _ in loaded.generate([1, 2, 3], max_tokens=1, ignore_eos=True, sampling=params):
            pass
        line.mark("FIRST TOKEN, from the end of load", begun)
        line.show()
        print(f"{_FIRST}{line.calls[-1].ended:.3f}")


def main() -> None:
    """Start several times: of each when its first token came, of the last the whole line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.model, args.device, args.context)
        return
    command = [sys.executable, __file__, args.model, "--child", "--device", args.device]
    found = []
    for number in range(args.repeat):
        environment = os.environ | {"CORRAL_STARTED": repr(time.time())}
        done = subprocess.run(
            [*command, "--context", str(args.context)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        lines = done.stdout.splitlines()
        print("\n".join(lines if number == args.repeat - 1 else lines[-1:]))
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
        found.append(float(lines[-1].removeprefix(_FIRST)))
    print(json.dumps({"machine": machine(), "model": args.model, "first_token_s": found}))


if __name__ == "__main__":
    main()
