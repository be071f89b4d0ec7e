"""corral and llama.cpp on this CPU, side by side: prefill and decode, in turns, in one run.

    python benchmarks/cpu_vs_llamacpp.py --peer-python VENV/bin/python [--model PATH …]

Each engine and the reader of memory is a process of its own that is idle while another measures.
Without --model, the demo model and a 1B shape with random weights are measured. Ratios are of
medians; last line: JSON.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from children import Child, ChildDied, Reply
from machine import machine

HERE = Path(__file__).parent
OURS, PEER = "corral", "llama.cpp"
PAUSE_S = 0.2
"""Between measurements: threads of the one before spin for a while."""


@dataclass
class Engine:
    """A child that runs a model, and what it has measured; or what it died of."""

    name: str
    child: Child | None = None
    error: str | None = None
    fastest: dict[str, str] = field(default_factory=dict)
    """Variant by test."""
    rates: dict[str, list[float]] = field(default_factory=dict)
    """Tokens/s by test."""

    def measure(self, test: str, tokens: int, variant: str) -> float | None:
        """Return tokens/s, or None if the child is dead."""
        if self.child is None:
            return None
        try:
            seconds = self.child.measure(test=test, tokens=tokens, variant=variant)["seconds"]
        except ChildDied as death:
            self.error, self.child = str(death), None
            print(f"  {death}", flush=True)
            return None
        time.sleep(PAUSE_S)
        return tokens / float(seconds)

    def warm_up(self, test: str, tokens: int) -> None:
        """Run each variant twice and choose the one that was faster."""
        if self.child is None:
            return
        best = 0.0
        for variant in self.child.description["variants"]:
            rates = [self.measure(test, tokens, variant) for _ in range(2)]
            rate = max((r for r in rates if r is not None), default=0.0)
            if rate > best:
                best, self.fastest[test] = rate, variant

    def repeat(self, test: str, tokens: int) -> None:
        """Measure once and keep it."""
        rate = self.measure(test, tokens, self.fastest.get(test, ""))
        if rate is not None:
            self.rates.setdefault(test, []).append(rate)

    def median(self, test: str) -> float | None:
        """Return the median of tokens/s."""
        return statistics.median(self.rates[test]) if self.rates.get(test) else None

    def best(self, test: str) -> float:
        """Return the highest tokens/s: what a machine that was never disturbed would give."""
        return max(self.rates[test])

    def summary(self, test: str) -> Reply:
        """Return what was measured in one test."""
        rates = self.rates.get(test, [])
        if not rates:
            return {"error": self.error}
        return {
            "median": statistics.median(rates),
            "lowest": min(rates),
            "highest": max(rates),
            "tokens_per_s": rates,
            "variant": self.fastest[test],
        }


def start(name: str, command: list[str], stack: ExitStack) -> Engine:
    """Start an engine; one that does not come up is an engine with an error."""
    try:
        child = stack.enter_context(Child(name, command))
    except ChildDied as death:
        print(f"  {death}", flush=True)
        return Engine(name, error=str(death))
    return Engine(name, child)


def commands(args: argparse.Namespace, model: Path) -> dict[str, list[str]]:
    """Return how both engines are started, in the same way."""
    tail = [str(model), "--threads", str(args.threads), "--context", str(args.context)]
    ours = [sys.executable, str(HERE / "corral_child.py"), *tail, "--device", args.device]
    # -E: the peer's packages are its own, whatever PYTHONPATH says.
    peer = [str(args.peer_python), "-E", str(HERE / "peer_llamacpp.py"), *tail]
    return {OURS: ours, PEER: peer}


def bandwidth(reader: Child, size_bytes: int, most: int) -> dict[str, float]:
    """Return GB/s of reading as many bytes as the model has, by number of threads."""
    results = {}
    for threads in sorted({1, most}):
        reply = reader.measure(test="read", size_bytes=size_bytes, threads=threads)
        results[str(threads)] = float(reply["gb_per_s"])
    time.sleep(PAUSE_S)
    return results


def measure_model(args: argparse.Namespace, model: Path) -> Reply:
    """Measure one model with both engines and return everything."""
    size = model.stat().st_size
    tests = {"prefill": args.prefill, "decode": args.decode}
    with ExitStack() as stack:
        reader_command = [sys.executable, str(HERE / "read_bandwidth.py"), "--serve"]
        reader = stack.enter_context(Child("reader", [*reader_command, "--bytes", str(size)]))
        engines = [start(name, how, stack) for name, how in commands(args, model).items()]
        systems = {e.name: e.child.description if e.child else e.error for e in engines}
        for test, tokens in tests.items():
            for engine in engines:
                engine.warm_up(test, tokens)
        reads = []
        for _ in range(args.repeat):
            reads.append(bandwidth(reader, size, args.threads))
            for test, tokens in tests.items():
                for engine in engines:
                    engine.repeat(test, tokens)
    return summary(model, tests, engines, reads) | {"engines": systems}


def summary(
    model: Path, tests: dict[str, int], engines: list[Engine], reads: list[dict[str, float]]
) -> Reply:
    """Return the medians, ratios and bandwidths of one model."""
    size = model.stat().st_size
    ours, peer = engines
    read = {threads: statistics.median(r[threads] for r in reads) for threads in reads[0]}
    results: dict[str, Reply] = {}
    for test, tokens in tests.items():
        a, b = ours.median(test), peer.median(test)
        results[test] = {
            "tokens": tokens,
            **{engine.name: engine.summary(test) for engine in engines},
            "ratio": a / b if a and b else None,
            "ratio_of_best": ours.best(test) / peer.best(test) if a and b else None,
        }
    moved = {e.name: size * rate / 1e9 for e in engines if (rate := e.median("decode"))}
    return {
        "model": model.name,
        "file_bytes": size,
        "tests": results,
        "decode_gb_per_s": moved,
        "read_gb_per_s": read,
        "read_gb_per_s_all": reads,
        "decode_share_of_read": {name: value / max(read.values()) for name, value in moved.items()},
    }


def show(result: Reply) -> None:
    """Print one model's table."""
    print(f"\n{result['model']}, {result['file_bytes'] / 1e6:,.1f} MB")
    for test, row in result["tests"].items():
        for name in (OURS, PEER):
            one = row[name]
            if "error" in one:
                print(f"  {test}({row['tokens']})  {name:10} {one['error']}")
                continue
            spread = f"{one['lowest']:.1f} … {one['highest']:.1f}"
            print(
                f"  {test}({row['tokens']})  {name:10} {one['median']:9.1f} tokens/s"
                f"  ({spread})  {one['variant']}"
            )
        if row["ratio"]:
            best = f"({row['ratio_of_best']:.2f} of the best)"
            print(f"  {test}({row['tokens']})  ratio      {row['ratio']:9.2f}           {best}")
    read = ", ".join(f"{v:.1f} with {k}" for k, v in result["read_gb_per_s"].items())
    print(f"  memory reads: {read} thread(s) GB/s")
    for name, share in result["decode_share_of_read"].items():
        rate = result["decode_gb_per_s"][name]
        print(f"  {name}: file bytes × decode = {rate:.1f} GB/s, {share:.0%} of that")


@contextmanager
def models(args: argparse.Namespace) -> Iterator[list[Path]]:
    """Yield the models to measure: those named, or the demo model and a written 1B shape."""
    if args.model:
        yield args.model
        return
    from corral.hub.resolve import resolve

    sys.path.insert(0, str(HERE.parent / "tools"))
    import make_model

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{args.shape}.{args.type}.gguf"
        print(f"writing {path.name}", flush=True)
        make_model.write(path, args.shape, args.type)
        yield [resolve("demo"), path]


def main() -> None:
    """Measure every model and print tables, then JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer-python", type=Path, required=True, help="has llama-cpp-python")
    parser.add_argument("--model", type=Path, action="append", help="may be given several times")
    parser.add_argument("--shape", default="llama-1b", help="of tools/make_model.py")
    parser.add_argument("--type", default="Q4_K_M")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--decode", type=int, default=128)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    card = machine() | {"threads": args.threads, "repeat": args.repeat}
    results = []
    with models(args) as paths:
        for path in paths:
            results.append(measure_model(args, path))
            show(results[-1])
    print(json.dumps({"machine": card, "models": results}))


if __name__ == "__main__":
    main()
