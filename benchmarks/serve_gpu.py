"""`corral serve` on a card under many clients, beside what its engine gives by itself, in one run.

    python benchmarks/serve_gpu.py MODEL.gguf [--clients 128] [--device cuda:0] [--cache FOLDER]

alone     the engine's steps, every sequence past its prompt: no text, no events, no clients
service   requests in, events out, in one process, without HTTP
served    through `corral serve`, streamed to clients on sockets in a process of their own

*steady* are short prompts and long answers, *mixed* prompts and answers of many lengths, of which
one in twenty is left by its client. The engine alone computes no prompts while it is timed: what is
"usually" served, in the median quarter of a second, is what compares to it. What stays below 85 %
is measured once more with the threads of all processes sampled. Last line: JSON. The exit code is
1 if a request failed, or if what is usually served stays below 85 %.
"""

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from children import Child, Reply
from machine import machine
from serve_servers import HERE, OURS, Server, free_port, kv_blocks_used, measured, serving

WANTED = 0.85
"""Of the engine alone."""
CONTEXT = 1024
WORD_TOKENS = 5
"""Of a word, with a vocabulary of bytes."""
STEADY = {"words": (4,), "cancelled": 0.0}
MIXED = {"words": (4, 13, 40, 140), "answers": (32, 64, 128), "cancelled": 0.05}
SHOWN = 14
"""Functions of a profile that are shown, by thread."""
CHILD_S = 120.0


def engine(args: argparse.Namespace, *, profile: Path | None = None) -> Reply:
    """Measure the engine alone, and behind a service, in a process of its own."""
    (words,), each = STEADY["words"], 1 if profile else 2
    command = [
        *(sys.executable, str(HERE / "serve_engine.py"), "--model", str(args.model)),
        *("--device", args.device, "--temperature", "0", "--cancelled", "0"),
        *("--parallel", str(args.clients), "--context", str(CONTEXT)),
        *("--clients", str(args.clients), "--requests", str(each * args.clients)),
        *("--prompts", str(words * WORD_TOKENS), "--answers", str(args.answer)),
        *([] if profile else ["--alone", str(args.clients)]),
    ]
    with ExitStack() as stack:
        if profile is not None:
            stack.enter_context(Sampled(profile))
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=1, text=True)
        output, _ = process.communicate(timeout=CHILD_S)
    if process.returncode:
        return {}
    told: Reply = json.loads(output.splitlines()[-1])
    run = told["runs"][0]
    show("service steady" + " (sampled)" * bool(profile), run)
    return {"alone": told.get("alone"), "steady": run}


def served(args: argparse.Namespace, *, profile: Path | None = None) -> Reply:
    """Measure what clients of a server get, and what its processes take for it."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "corral", "serve", "-m", str(args.model), "--port", str(port)),
        *("--device", args.device, "--parallel", str(args.clients), "--context", str(CONTEXT)),
        *("--queue", str(args.clients)),
    ]
    loads: dict[str, Reply] = {"steady": STEADY | {"answers": (args.answer,)}, "mixed": MIXED}
    found: Reply = {}
    with ExitStack() as stack:
        if profile is not None:
            stack.enter_context(Sampled(profile))
        clients = [sys.executable, str(HERE / "serve_client.py")]
        load = stack.enter_context(Child("load", clients))
        began = time.perf_counter()
        server = stack.enter_context(serving(OURS, command, port))
        until_ready(server)
        print(f"serves after {time.perf_counter() - began:.1f} s", flush=True)
        loaded(server, load, args, {"words": (4,), "answers": (64,)}, count=args.clients, seed=-1)
        for number, (name, lengths) in enumerate(loads.items()):
            if profile is not None and name != "steady":
                continue
            count = args.clients * (4 if name == "mixed" else 1 if profile else 2)
            found[name] = loaded(server, load, args, lengths, count=count, seed=number)
            show(f"served {name}" + " (sampled)" * bool(profile), found[name])
        found["leaked_blocks"] = kv_blocks_used(server)
        found["held"] = {one.name: one.rss_bytes for one in server.held()}
    return found


def until_ready(server: Server) -> None:
    """Wait until the model is loaded; raises SystemExit if it never is."""
    deadline = time.monotonic() + CHILD_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # 503 until then
            server.get("/health")
            return
        time.sleep(0.05)
    raise SystemExit("the model is not loaded: " + server.last_words())


def loaded(
    server: Server, load: Child, args: argparse.Namespace, lengths: dict, *, count: int, seed: int
) -> Reply:
    """Send so many requests, and return what clients saw and processes took."""
    found, used = measured(
        server,
        load,
        clients=args.clients,
        seed=seed,
        count=count,
        seconds=CHILD_S,
        **lengths,
    )
    return found | {"busy": {n: round(s / found["seconds"], 3) for n, s in used.items()}}


class Sampled:
    """Has all processes that are started meanwhile write down where their threads compute."""

    def __init__(self, folder: Path) -> None:
        """Have them write into a folder."""
        self._given = {"TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(_paths())}
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> None:
        self._before = {name: os.environ.get(name) for name in self._given}
        os.environ.update(self._given)

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _paths() -> list[str]:
    return [str(HERE / "profiled"), *filter(None, [os.environ.get("PYTHONPATH")])]


def show(name: str, one: Reply) -> None:
    """Print what came of one load."""
    rates = (
        f"{one['generated_tokens_per_s']:8.0f} generated/s "
        f"(usually {one.get('usual_tokens_per_s', 0):.0f}) {one['all_tokens_per_s']:8.0f} all/s"
    )
    first, between = spread(one["first_token_s"]), spread(one["between_tokens_s"])
    rest = f"errors {one['errors']} {one.get('busy', '')} {one.get('first_error', '')}"
    print(f"{name:16} {rates}  first {first} s  between {between} s  {rest}", flush=True)


def spread(of: dict[str, float]) -> str:
    """Return percentiles: p50/p90/p99/max."""
    return "/".join(f"{of[name]:.4f}" for name in ("p50", "p90", "p99", "max") if name in of)


def show_profile(folder: Path) -> None:
    """Print where the threads of each process computed."""
    for path in sorted(folder.glob("corral-profile.*.json")):
        told = json.loads(path.read_text())
        kind = "worker" if "corral.worker" in told["command"] else " ".join(told["command"][-3:])
        for thread, functions in told["seconds"].items():
            total = sum(seconds for _, seconds in functions)
            if total < 0.2:
                continue
            print(f"  {kind[:24]} {thread}: {total:.2f} s", flush=True)
            for name, seconds in functions[:SHOWN]:
                print(f"    {100 * seconds / total:5.1f} %  {name[-70:]}", flush=True)


def main() -> int:
    """Measure, print, and end with JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--clients", type=int, default=128)
    parser.add_argument("--answer", type=int, default=512, help="tokens of a steady answer")
    args = parser.parse_args()
    report: Reply = {"machine": machine(), "model": args.model.name, "clients": args.clients}
    report["engine"] = engine(args)
    report["served"] = served(args)
    alone = report["engine"].get("alone") or math.inf
    errors = sum(report["served"][name]["errors"] for name in ("steady", "mixed"))
    shares = {
        f"{kind} {what}": round(report[kind]["steady"][f"{what}_tokens_per_s"] / alone, 3)
        for kind, what in (("served", "generated"), ("served", "usual"), ("engine", "generated"))
        if "steady" in report[kind]
    }
    print(f"of the engine alone: {shares}, wanted {WANTED}; errors {errors}", flush=True)
    profiled = {"served": served, "engine": engine}
    for kind, measure in profiled.items():
        if shares.get(f"{kind} generated", 1.0) < WANTED:
            with tempfile.TemporaryDirectory() as folder:
                measure(args, profile=Path(folder))
                show_profile(Path(folder))
    print(json.dumps(report | {"shares": shares}))
    return 0 if not errors and shares.get("served usual", 0.0) >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
