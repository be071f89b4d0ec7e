"""A router on a card: what models take there, how long a swap lasts, and that nothing is left.

    python benchmarks/router_gpu.py LARGE.gguf SMALL.gguf [--budget-gib 12] [--swaps 3]

Two names of the large model share room for one of them, and two of the small one fit beside.

loads    each model alone: bytes planned, measured by its process, and seen on the card
sight    each worker sees its card by UUID and no other; the router maps nothing that computes, NVML
         does not name it, and with it alone the card holds what it held before
swap     one large model in place of the other, the file in the page cache: seconds from a request
         to its first token, by what they were spent on; a conversation is found again
unload   everything goes: nothing of ours is left on the card; nor after `kill -9` of the router

With `--device cpu` the same runs without a card, which is not looked at then. Last line: JSON. The
exit code is 1 if something did not hold.
"""

import argparse
import contextlib
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from card_sight import Card, Eye, NoCard, flaws_of_router, visible_cards
from machine import machine
from router_talk import Stream, Talk
from serve_servers import free_port

LARGE, SMALL = ("oak", "elm"), ("ivy", "fern")
PARALLEL, ANSWER = 4, 8
SWAP_S = 2.5
PROCESS_BYTES = 64 << 20
"""Of main memory that the configuration counts for a worker beside its model."""
START_S, WAIT_S = 60.0, 60.0
CACHED = 0.9


@dataclass
class Found:
    """What was measured, and what did not hold."""

    figures: dict[str, object] = field(default_factory=dict)
    flaws: list[str] = field(default_factory=list)

    def expect(self, holds: bool, what: str) -> None:
        """Note what does not hold."""
        if not holds:
            self.flaws.append(what)
            print(f"DOES NOT HOLD: {what}", flush=True)


def write_config(args: argparse.Namespace, folder: Path) -> Path:
    """Write a configuration in which one large model has room, and both small ones beside it."""
    lines = [
        "[server]",
        "min_residency = 0.0",
        "idle = 0.0",
        f"process = {PROCESS_BYTES}",
        f'sessions = "{folder / "sessions"}"',
        "[budgets]",
        f'"{args.device}" = {int(args.budget_gib * 2**30)}',
        '[models."*"]',
        f'device = "{args.device}"',
        f"context = {args.context}",
        f"parallel = {PARALLEL}",
        "drain = 5.0",
    ]
    for names, path in ((LARGE, args.large), (SMALL, args.small)):
        for name in names:
            lines += [f"[models.{name}]", f'path = "{path.resolve()}"']
    config = folder / "corral.toml"
    config.write_text("\n".join(lines) + "\n")
    return config


@contextlib.contextmanager
def router(args: argparse.Namespace, folder: Path) -> Iterator[tuple[subprocess.Popen, Talk]]:
    """Run a router; end it as a user would."""
    port = free_port()
    command = [sys.executable, "-m", "corral", "serve", "--config", str(write_config(args, folder))]
    with Path(folder, "router.log").open("w") as log:
        process = subprocess.Popen([*command, "--port", str(port)], stdout=log, stderr=log)
        talk = Talk(port)
        try:
            if not until(talk.is_there, START_S):
                raise SystemExit("the router does not start: " + log_tail(folder))
            yield process, talk
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def log_tail(folder: Path) -> str:
    """Return the last lines of the router's log."""
    return " | ".join(Path(folder, "router.log").read_text().splitlines()[-6:])


def until(holds: Callable[[], bool], seconds: float) -> bool:
    """Wait until something holds; return whether it does."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def tokens(seed: int, count: int) -> list[int]:
    """Return tokens of a prompt: spellings of single bytes and their neighbours."""
    return random.Random(seed).choices(range(10, 200), k=count)


def measure_loads(talk: Talk, pid: int, eye: Eye, found: Found) -> None:
    """Load each model with an empty card, and hold what it takes against the plan."""
    rows = {}
    for name in (*LARGE, *SMALL):
        unload_all(talk, found)
        before = eye.used_bytes()
        answer = talk.answer(name, tokens(1, 32), ANSWER)
        status = talk.model(name)
        on_card = eye.used_bytes() - before
        worker = status["pid"]
        rows[name] = {
            "first_token_s": round(answer.first_s, 3),
            "load_s": round(status["load_s"], 3),
            "held": {
                held["device"][:8]: [held["planned_bytes"], held["measured_bytes"]]
                for held in status["held"]
            },
            "on_card_bytes": on_card,
        }
        for held in status["held"]:
            measured = held["measured_bytes"] or 0
            is_within = measured <= held["planned_bytes"]
            found.expect(
                is_within,
                f"{name} on {held['device']}: {measured} measured bytes of "
                f"{held['planned_bytes']} planned",
            )
        planned = eye.planned(status["held"])
        is_close = on_card <= 1.01 * planned + (2 << 20)
        found.expect(is_close, f"{name}: {on_card} bytes on the card of {planned} planned")
        expected = (eye.uuid,) if eye.uuid else ()
        found.expect(visible_cards(worker) == expected, f"{name} sees {visible_cards(worker)}")
        for flaw in flaws_of_router(pid) + eye.flaws(pid, worker):
            found.expect(False, flaw)
        print(f"{name}: {rows[name]}", flush=True)
    found.figures["loads"] = rows


def measure_swaps(talk: Talk, args: argparse.Namespace, found: Found) -> None:
    """Let the large models take turns; the one that comes must know its conversation again."""
    unload_all(talk, found)
    talks = {name: tokens(number, args.context // 4) for number, name in enumerate(LARGE)}
    rows = []
    for turn in range(2 * args.swaps + 2):
        name = LARGE[turn % 2]
        prompt = [*talks[name], *tokens(100 + turn, 16)]
        known = len(talks[name]) - 1
        with Stream(talk.port) as events:
            answer = talk.answer(name, prompt, ANSWER)
            marks = events.marks_since(answer.asked_at)
        talks[name] = prompt + answer.tokens
        found.expect(
            len(answer.tokens) == ANSWER, f"{name} answered {answer.error or 'too little'}"
        )
        if turn < 2:  # nothing was known yet
            continue
        rows.append({"first_token_s": round(answer.first_s, 3), "at": marks})
        share = answer.cached / known
        found.expect(share >= CACHED, f"{name} found {answer.cached} of {known} tokens again")
        print(f"swap to {name}: {rows[-1]} cached {answer.cached} of {known}", flush=True)
    middle = statistics.median(row["first_token_s"] for row in rows)
    found.figures["swaps"] = {"median_s": middle, "rows": rows}
    found.expect(middle <= SWAP_S, f"a swap takes {middle:.2f} s, wanted {SWAP_S} s")
    print(f"swap: median {middle:.3f} s, wanted {SWAP_S} s", flush=True)


def measure_together(talk: Talk, found: Found) -> None:
    """Have one large model and both small ones answer at the same time."""
    names = (LARGE[0], *SMALL)
    answers = {}

    def ask(name: str) -> None:
        answers[name] = talk.answer(name, tokens(3, 64), 64)

    threads = [threading.Thread(target=ask, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    states = {name: talk.model(name)["state"] for name in names}
    found.expect(set(states.values()) == {"ready"}, f"not all are loaded: {states}")
    found.expect(all(not one.error for one in answers.values()), "an answer failed")
    found.figures["together"] = {name: round(one.first_s, 3) for name, one in answers.items()}
    would = talk.plan(LARGE[1])
    found.figures["plan"] = {key: would[key] for key in ("verdict", "evicts")}
    found.expect(would["evicts"] == [LARGE[0]], f"{LARGE[1]} would evict {would['evicts']}")
    print(f"together: {found.figures['together']}, {found.figures['plan']}", flush=True)


def unload_all(talk: Talk, found: Found) -> None:
    """Have every model go, and wait for it."""
    for name in talk.loaded():
        talk.post("/models/unload", {"model": name})
    found.expect(until(lambda: not talk.loaded(), WAIT_S), "models do not go")


def measure_end(process: subprocess.Popen, talk: Talk, eye: Eye, base: int, found: Found) -> None:
    """Have everything go, first as asked and then by a kill; look at the card each time."""
    workers = [status["pid"] for status in talk.models() if status["pid"]]
    unload_all(talk, found)
    left = eye.used_bytes() - base
    found.figures["left_after_unload_bytes"] = left
    found.expect(left == 0, f"{left} bytes are left on the card when all are unloaded")
    found.expect(not any(map(psutil.pid_exists, workers)), "a worker process is left")
    talk.answer(LARGE[0], tokens(1, 16), ANSWER)
    (worker,) = [status["pid"] for status in talk.models() if status["state"] == "ready"]
    process.kill()
    process.wait()
    began = time.monotonic()
    gone = until(lambda: not psutil.pid_exists(worker), 10.0)
    is_clean = until(lambda: eye.used_bytes() - base <= 2 << 20, 10.0)
    found.figures["gone_after_kill_s"] = round(time.monotonic() - began, 3)
    found.expect(gone and is_clean, "a worker outlives its router")
    print(
        f"left after unload {left} bytes; after a kill nothing in "
        f"{found.figures['gone_after_kill_s']} s",
        flush=True,
    )


def main() -> int:
    """Measure, print, and end with JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("large", type=Path)
    parser.add_argument("small", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--budget-gib", type=float, default=12.0)
    parser.add_argument("--swaps", type=int, default=3)
    args = parser.parse_args()
    eye: Eye = NoCard() if args.device == "cpu" else Card(args.device)
    base, found = eye.used_bytes(), Found()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with router(args, folder) as (process, talk):
            rss = psutil.Process(process.pid).memory_info().rss
            found.figures["router_rss_bytes"] = rss
            found.expect(rss <= 150 << 20, f"the router holds {rss} bytes of main memory")
            alone = eye.used_bytes() - base
            found.figures["router_alone_bytes"] = alone
            found.expect(alone == 0, f"a router without models holds {alone} bytes of the card")
            print(f"the router alone: {alone} bytes of the card, {rss} of main memory", flush=True)
            for step in (
                lambda: measure_loads(talk, process.pid, eye, found),
                lambda: measure_swaps(talk, args, found),
                lambda: measure_together(talk, found),
                lambda: measure_end(process, talk, eye, base, found),
            ):
                try:
                    step()
                except (OSError, KeyError, ValueError, TypeError) as error:
                    found.expect(False, f"{type(error).__name__}: {error}; {log_tail(folder)}")
    card = {"machine": machine(), "card": eye.name, "budget_gib": args.budget_gib}
    print(json.dumps({**card, **found.figures, "flaws": found.flaws}))
    return 1 if found.flaws else 0


if __name__ == "__main__":
    sys.exit(main())
