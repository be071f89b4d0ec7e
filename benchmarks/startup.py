"""From the command to the first token, and the memory of it: `corral run` as a user starts it.

    python benchmarks/startup.py [--model PATH] [--repeat 5] [--imports]

The kernel cache is a temporary one: the first run compiles into it, the others find it warm. The
model is in the page cache. Last line: JSON.
"""

import argparse
import compileall
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import corral
from machine import machine

PROMPT = "What is the capital of France?"
SAMPLE_S = 0.002
BUDGETED = ("weights", "state", "scratch")
ALLOWED_BYTES = 150_000_000
"""What a run may hold beside the budgeted lifetimes."""


@dataclass(frozen=True)
class Start:
    """One run, in seconds from the start of the process."""

    first_byte_s: float
    exit_s: float
    cpu_s: float
    """Processor time of all its threads: the same on a busy machine."""


class Corral:
    """The command, with a cache directory of its own."""

    def __init__(self, cache: str, device: str) -> None:
        script = Path(sys.executable).with_name("corral")
        self.command = [str(script)] if script.exists() else [sys.executable, "-m", "corral"]
        # An empty variable counts as unset: users have byte code, pip writes it when it installs.
        self._environment = os.environ | {"CORRAL_CACHE": cache, "PYTHONDONTWRITEBYTECODE": ""}
        compileall.compile_dir(Path(corral.__file__).parent, quiet=2)
        self._device = device

    def run_arguments(self, model: Path, tokens: int) -> list[str]:
        """Return the arguments of one answer."""
        limits = ["-n", str(tokens), "--ignore-eos", "--device", self._device]
        return ["run", "-m", str(model), *limits, PROMPT]

    def start(self, arguments: list[str], *options: str) -> subprocess.Popen:
        """Start the command; `options` go to Python itself."""
        command = [sys.executable, *options, "-m", "corral"] if options else self.command
        return subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
        )

    def timed(self, arguments: list[str]) -> Start:
        """Run to the end and return when the first byte of output came, and the exit."""
        used, started = _children_cpu_s(), time.perf_counter()
        process = self.start(arguments)
        process.stdout.read(1)
        first = time.perf_counter() - started
        _finish(process)
        return Start(first, time.perf_counter() - started, _children_cpu_s() - used)

    def peaks(self, arguments: list[str]) -> dict[str, int]:
        """Run to the end and return the highest of each kind of resident memory, in bytes."""
        process = self.start(arguments)
        status = Path(f"/proc/{process.pid}/status")
        peaks = {"RssAnon": 0, "RssShmem": 0, "VmSwap": 0, "VmHWM": 0}
        while process.poll() is None:
            for name, value in _memory(status).items():
                if name in peaks:
                    peaks[name] = max(peaks[name], value)
            time.sleep(SAMPLE_S)
        _finish(process)
        return peaks

    def imports(self, arguments: list[str], count: int) -> list[tuple[int, str]]:
        """Return the slowest top-level imports of a run: (microseconds, module)."""
        process = self.start(arguments, "-X", "importtime")
        _, errors = process.communicate()
        rows = []
        for line in errors.decode().splitlines():
            if line.startswith("import time:") and line.count("|") == 2 and "self" not in line:
                _, cumulative, name = line.split("|")
                rows.append((int(cumulative), name[1:]))
        return sorted(rows, reverse=True)[:count]


def _memory(status: Path) -> dict[str, int]:
    try:
        lines = status.read_text().splitlines()
    except OSError:  # it ended
        return {}
    pairs = (line.split(":", 1) for line in lines)
    return {key: int(value.split()[0]) * 1024 for key, value in pairs if value.endswith(" kB")}


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _finish(process: subprocess.Popen) -> None:
    _, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"corral failed: {errors.decode().strip()}")


def spread(values: list[float]) -> dict[str, object]:
    """Return the median of values and the values themselves."""
    return {"median": statistics.median(values), "all": values}


def planned(model: Path, device: str) -> dict[str, int]:
    """Return the bytes that a run plans to hold for its budgeted lifetimes."""
    rows = corral.plan(model, device=device).rows
    return {row.lifetime: row.bytes for row in rows if row.lifetime in BUDGETED}


def read_once(path: Path) -> None:
    """Bring a file into the page cache."""
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 24):
            pass


def measure(command: Corral, model: Path, args: argparse.Namespace) -> dict[str, object]:
    """Measure everything and return it."""
    read_once(model)
    short = command.run_arguments(model, 1)
    first = command.timed(short)
    warm = [command.timed(short) for _ in range(args.repeat)]
    helped = [command.timed(["--help"]).exit_s for _ in range(args.repeat)]
    long = command.run_arguments(model, args.tokens)
    peaks = [command.peaks(long) for _ in range(args.repeat)]
    return {
        "first_run_s": first.exit_s,
        "compile_s": first.first_byte_s - statistics.median(w.first_byte_s for w in warm),
        "first_token_s": spread([w.first_byte_s for w in warm]),
        "one_token_to_exit_s": spread([w.exit_s for w in warm]),
        "one_token_cpu_s": spread([w.cpu_s for w in warm]),
        "help_s": spread(helped),
        "peak_bytes": {name: int(statistics.median(p[name] for p in peaks)) for name in peaks[0]},
    }


def show(result: dict, args: argparse.Namespace) -> None:
    """Print the results for people."""
    print(f"first run, kernels compiled  {result['first_run_s']:7.2f} s")
    print(f"  of that, compiling         {result['compile_s']:7.2f} s")
    for name in ("first_token_s", "one_token_to_exit_s", "one_token_cpu_s", "help_s"):
        values = result[name]["all"]
        median = result[name]["median"]
        print(f"{name[:-2]:28} {median:7.3f} s  ({min(values):.3f} … {max(values):.3f})")
    for name, value in result["peak_bytes"].items():
        print(f"peak {name:23} {value / 1e6:7.1f} MB")
    print(f"planned                      {result['planned_total_bytes'] / 1e6:7.1f} MB")
    print(f"beyond the plan              {result['beyond_plan_bytes'] / 1e6:7.1f} MB")
    if args.imports:
        for microseconds, name in result["imports"]:
            print(f"  {microseconds / 1000:8.1f} ms  {name}")


def main() -> None:
    """Measure, print, and end with JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, help="by default the demo model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="of the runs that measure memory")
    parser.add_argument("--imports", action="store_true", help="also list the slowest imports")
    args = parser.parse_args()
    from corral.hub.resolve import resolve

    card = machine()
    model = args.model or resolve("demo")
    plan = planned(model, args.device)
    with tempfile.TemporaryDirectory() as cache:
        command = Corral(cache, args.device)
        result = measure(command, model, args)
        if args.imports:
            result["imports"] = command.imports(command.run_arguments(model, 1), 40)
    held = sum(result["peak_bytes"][name] for name in ("RssAnon", "RssShmem", "VmSwap"))
    result |= {
        "planned_bytes": plan,
        "planned_total_bytes": sum(plan.values()),
        "beyond_plan_bytes": held - sum(plan.values()),
        "allowed_beyond_plan_bytes": ALLOWED_BYTES,
    }
    show(result, args)
    print(json.dumps({"machine": card, "model": model.name, "startup": result}))


if __name__ == "__main__":
    main()
