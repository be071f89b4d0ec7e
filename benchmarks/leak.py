"""Whether anything is left: memory, objects, files, threads and bytes on devices against work done.

    python benchmarks/leak.py [--model PATH] [--device cpu] [--only NAME …] [--part N] [--plot FILE]

Each piece of work is repeated, and what the process holds is sampled after collecting garbage. The
slope of each measure against the work, with its 95 % confidence interval, must not lie above 0 by
more than noise. A tiny written model is used unless one is named. Last line: JSON. The exit code
is 1 if something leaks.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import leak_adapters
import leak_endless
import leak_server
from corral.devices import registry
from corral.errors import CorralError
from corral.memory.growth import Samples, Slope
from held import MEASURES, Held, held
from leak_work import GPU, ON_GPU, WORKS, Action, Elsewhere, Setting, Work, seeded_leak
from machine import machine

ALL = (*WORKS, *leak_endless.WORKS, *leak_adapters.WORKS, *leak_server.WORKS)


@dataclass(frozen=True)
class Finding:
    """What became of one measure."""

    slope: Slope
    floor: float

    @property
    def is_leak(self) -> bool:
        """Whether the interval lies above 0 and the slope above what is noise."""
        return self.slope.is_growth(self.floor)


@dataclass(frozen=True)
class Result:
    """What became of one piece of work."""

    work: Work
    seconds: float
    findings: dict[str, Finding]
    samples: dict[str, tuple[int, ...]]
    """What was found after how much work, by measure; the work itself is called `work`."""

    @property
    def is_leak(self) -> bool:
        """Whether any measure grew."""
        return any(finding.is_leak for finding in self.findings.values())


def repeat(work: Work, setting: Setting) -> Result:
    """Do the work and fit what is held against it."""
    started = time.perf_counter()
    actions = work.times // work.batch
    samples = Samples(len(MEASURES), capacity=actions // work.every + 1)
    with work.start(setting) as started_work:
        act, look = doing(started_work, setting.device if work.is_on_gpu else None)
        for number in range(work.warm_up):
            act(number)
        for number in range(actions + 1):
            if number % work.every == 0:
                now = look()
                samples.add(number * work.batch, *(getattr(now, name) for name in MEASURES))
            if number < actions:
                act(number)
    findings = {}
    for column, name in enumerate(MEASURES):
        slope = samples.slope(column)
        assert slope is not None, "too few samples"
        findings[name] = Finding(slope, work.floor(name))
    done, columns = samples.kept()
    found = {"work": done} | dict(zip(MEASURES, columns, strict=True))
    return Result(work, time.perf_counter() - started, findings, found)


def doing(work: Action | Elsewhere, gpu: str | None) -> tuple[Action, Callable[[], Held]]:
    """Return what is done, and what tells what is held then."""
    if isinstance(work, Elsewhere):
        return work.act, work.held
    return work, lambda: held(gpu)


def chosen(args: argparse.Namespace) -> list[Work]:
    """Return what to do: all, or what was named; with a GPU, what belongs there too."""
    works = [replace(work, device=args.device) for work in ALL]
    works += ON_GPU if has_gpu() else ()
    works = [work.shortened(args.part) for work in works]
    return [work for work in works if not args.only or work.name in args.only]


def has_gpu() -> bool:
    """Return whether there is a GPU, and corral can open it."""
    try:
        registry.open(GPU).close()
    except CorralError as error:
        print(f"no GPU: {error}", flush=True)
        return False
    return True


def show_head() -> None:
    """Print what the columns are."""
    print(f"\n{'growth a unit ± 95 %':36}", *(f"{name:>16}" for name in MEASURES))


def show(result: Result) -> None:
    """Print one line for people."""
    work = result.work
    title = f"{work.name} ({work.device})"
    cells = (f"{_cell(result.findings[name]):>16}" for name in MEASURES)
    verdict = "  LEAK" if result.is_leak else ""
    print(f"{title:36}", *cells, f"  {work.times:,} × {work.unit}{verdict}", flush=True)


def _cell(finding: Finding) -> str:
    slope, mark = finding.slope, "!" if finding.is_leak else ""
    if slope.value == slope.half_width == 0:
        return "0"
    return f"{slope.value:.3g} ± {slope.half_width:.2g}{mark}"


def as_json(result: Result) -> dict[str, object]:
    """Return every figure of one piece of work."""
    return {
        "work": result.work.name,
        "device": result.work.device,
        "unit": result.work.unit,
        "times": result.work.times,
        "seconds": result.seconds,
        "is_leak": result.is_leak,
        "samples": result.samples,
        "growth": {
            name: asdict(f.slope) | {"floor": f.floor, "is_leak": f.is_leak}
            for name, f in result.findings.items()
        },
    }


def write_tiny(folder: Path) -> Path:
    """Write a model with random weights that evaluates in a moment."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
    import make_model

    path = folder / "tiny.Q4_0.gguf"
    make_model.write(path, "tiny", "Q4_0")
    return path


def main() -> int:
    """Measure, print, end with JSON, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="path or name, demo too; by default a tiny one is written")
    parser.add_argument("--device", default="cpu")
    names = sorted({work.name for work in (*ALL, *ON_GPU)})
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--part", type=int, default=1, metavar="N", help="do an N-th of the counts")
    parser.add_argument("--leak", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    from corral.hub.resolve import resolve

    card, results = machine(), []
    with tempfile.TemporaryDirectory() as name, seeded_leak() if args.leak else nullcontext():
        folder = Path(name)
        model = resolve(args.model) if args.model else write_tiny(folder)
        works = chosen(args)
        show_head()
        for work in works:
            assert work.device is not None
            results.append(repeat(work, Setting(model, work.device, folder)))
            show(results[-1])
    is_leak = any(result.is_leak for result in results)
    print("something leaks" if is_leak else "nothing leaks")
    print(json.dumps({"machine": card, "model": model.name, "leak": [as_json(r) for r in results]}))
    return int(is_leak)


if __name__ == "__main__":
    sys.exit(main())
