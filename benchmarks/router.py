"""Three models, room for two, eight clients who talk to all of them, and workers that are killed.

The server is `corral serve --config` on the CPU. Every client goes on with a conversation for each
model, at temperature 0, so a model comes and goes all the time. At the end every answer is held
against one pass of its model over the whole conversation: the likeliest token of each position.
Prints JSON last; `wrong`, `lost` and `unexplained` should be empty.

    python benchmarks/router.py --minutes 30
"""

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from statistics import median

import numpy as np
import psutil

from corral.engine.model import Model
from corral.hub.resolve import resolve
from machine import machine
from router_clients import Client, Conversation, Seen
from router_models import CONTEXT, NAMES, make_models, write_config
from router_watch import Watch

COUNTED = ("loads", "evictions", "crashes", "load_s")
START_S = 120.0
END_S = 120.0


def main() -> None:
    """Serve, load, kill, stop, verify and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--kill-s", type=float, default=45.0, help="seconds between two kills")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    on = machine()
    with tempfile.TemporaryDirectory() as folder:
        models = make_models(resolve(args.model), Path(folder))
        config = write_config(models, Path(folder), threads=args.threads)
        seen, watch, figures = run(config, args)
        wrong = wrong_tokens(seen.ended, models)
    print(
        json.dumps({"machine": on, "settings": vars(args), **report(seen, watch, wrong), **figures})
    )


def run(config: Path, args: argparse.Namespace) -> tuple[Seen, Watch, dict]:
    """Load a server for so many minutes; return what was seen, and what it held."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "corral", "serve", "--config", str(config)]
    server = subprocess.Popen([*command, "--port", str(port)])
    watch, seen = Watch(port), Seen()
    try:
        watch.wait_until_there(START_S)
        watch.start()
        until = time.monotonic() + 60 * args.minutes
        clients = [Client(port, number, until, watch, seen) for number in range(args.clients)]
        killer = threading.Thread(target=kill_some, args=(watch, until, args.kill_s))
        for thread in (*clients, killer):
            thread.start()
        for thread in (*clients, killer):
            thread.join()
        status = watch.fleet()
        rss = psutil.Process(server.pid).memory_info().rss
        children = psutil.Process(server.pid).children(recursive=True)
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(END_S)
    counted = {
        one["name"]: {k: one[k] for k in ("loads", "evictions", "crashes")}
        for one in status["models"]
    }
    left = [child.pid for child in children if child.is_running()]
    return seen, watch, {"models": counted, "router_rss": rss, "exit": code, "left": left}


def kill_some(watch: Watch, until: float, seconds: float) -> None:
    """Kill a worker now and then, as the system does when memory runs out."""
    chance = random.Random(0)
    while time.monotonic() + seconds < until:
        time.sleep(seconds)
        ready = watch.ready()
        if ready:
            model, generation, pid = chance.choice(ready)
            watch.kill_note(model, generation)
            os.kill(pid, signal.SIGKILL)


def wrong_tokens(talks: list[Conversation], models: dict[str, Path]) -> list[dict]:
    """Return the tokens of answers that are not the likeliest after all that comes before."""
    found = []
    for name, path in models.items():
        with Model.load(path, device="cpu", context=CONTEXT) as model:
            ends = sorted(model.tokenizer.end_of_generation)  # no request lets one be drawn
            for talk in talks:
                if talk.model == name and talk.answers:
                    logits = model.logits(talk.tokens)
                    logits[:, ends] = -np.inf
                    found += _wrong(talk, logits)
    return found


def _wrong(talk: Conversation, logits: np.ndarray) -> list[dict]:
    places = [place for first, end in talk.answers for place in range(first, end)]
    return [
        {
            "model": talk.model,
            "place": place,
            "of": len(talk.tokens),
            "behind": float(logits[place - 1].max() - logits[place - 1][talk.tokens[place]]),
        }
        for place in places
        if talk.tokens[place] != np.argmax(logits[place - 1])
    ]


def report(seen: Seen, watch: Watch, wrong: list[dict]) -> dict:
    """Sum up what was seen."""
    restored = [turn for turn in seen.turns if turn.was_restored]
    cached = sum(min(turn.cached, turn.known) for turn in restored)
    known = sum(turn.known for turn in restored)
    drained = [event for event in watch.events if event["state"] == "draining"]
    seconds = sorted(turn.seconds for turn in seen.turns) or [0.0]
    return {
        "turns": {name: sum(turn.model == name for turn in seen.turns) for name in NAMES},
        "answers_verified": sum(len(talk.answers) for talk in seen.ended),
        "wrong": wrong,
        "lost": seen.lost,
        "errors": seen.errors,
        "killed": len(watch.killed),
        "restored_turns": len(restored),
        "restored_cached": cached / known if known else None,
        "restored_worst": min((turn.cached / turn.known for turn in restored), default=None),
        "drained": len(drained),
        "unexplained": [event for event in drained if not event["reason"]],
        "reasons": Counter(event["reason"] for event in drained).most_common(12),
        "turn_s": {"median": median(seconds), "max": seconds[-1]},
    }


if __name__ == "__main__":
    main()
