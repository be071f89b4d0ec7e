"""`corral serve` and llama.cpp's server under the same load, in turns, in one run.

    python benchmarks/serve.py --peer-server llama-server       one compiled for this machine
    python benchmarks/serve.py --peer-python VENV/bin/python    its environment holds xllamacpp
    python benchmarks/serve.py --minutes 10                     corral alone: is anything left?

Clients stream over HTTP from a process of their own, and each asks again when its answer has ended.
Both servers get the same requests, slots, context and threads. Medians of all rounds; a ratio is
that of two medians. Last line: JSON. The exit code is 1 if a request failed or something is left.
"""

import argparse
import json
import signal
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from children import Child, Reply
from machine import machine
from serve_servers import (
    OURS,
    PEER,
    Server,
    Setting,
    corral_command,
    free_port,
    measured,
    peer_command,
    processors,
    serving,
)
from serve_soak import soak

HERE = Path(__file__).parent
PAUSE_S = 0.5
"""Between loads: threads of the one before spin for a while."""
WARM_UP = 2
FEWEST, EACH, MOST = 12, 4, 96
"""Requests of a load: so many for each client, within limits."""
RATIOS = {
    "generated_tokens_per_s": "generated/s",
    "all_tokens_per_s": "all/s",
    "all_tokens_per_cpu_s": "all/CPU s",
}
"""What the servers are compared by, and its short name."""


def count_for(clients: int) -> int:
    """Return how many requests a load of so many clients has."""
    return min(MOST, max(FEWEST, EACH * clients))


def seed_of(clients: int, number: int) -> int:
    """Return what determines the requests of a round: no server may know them from another."""
    return 1000 * clients + number


def loaded(
    server: Server, load: Child, args: argparse.Namespace, clients: int, *, seed: int, count: int
) -> Reply:
    """Load a server once with so many requests; return what its clients saw and what it took."""
    found, used = measured(
        server,
        load,
        clients=clients,
        seed=seed,
        count=count,
        seconds=3600.0,
        shared=args.shared,
    )
    time.sleep(PAUSE_S)
    tokens = found["prompt_tokens"] + found["generated_tokens"]
    return found | {
        "server_cpu_s": {name: round(value, 2) for name, value in used.items()},
        "all_tokens_per_cpu_s": round(tokens / sum(used.values()), 2),
    }


def compare(servers: list[Server], load: Child, args: argparse.Namespace) -> dict[str, Reply]:
    """Load all servers in turns with each number of clients; return all that was measured."""
    for server in servers:
        # What happens only once is not measured.
        loaded(server, load, args, WARM_UP, seed=-1, count=WARM_UP)
    found: dict[str, Reply] = {}
    for clients in args.clients:
        rounds: dict[str, list[Reply]] = {server.name: [] for server in servers}
        for number in range(args.repeat):
            for server in servers[:: 1 if number % 2 == 0 else -1]:
                count = args.requests or count_for(clients)
                seed = seed_of(clients, number)
                now = loaded(server, load, args, clients, seed=seed, count=count)
                rounds[server.name].append(now)
        found[str(clients)] = compared(rounds)
        show(clients, found[str(clients)])
    return found


def compared(rounds: dict[str, list[Reply]]) -> Reply:
    """Return the rounds of one number of clients, their medians, and the ratios of these."""
    medians = {
        name: {key: statistics.median(one[key] for one in all_) for key in RATIOS}
        for name, all_ in rounds.items()
    }
    errors = {name: sum(one["errors"] for one in all_) for name, all_ in rounds.items()}
    ratios = {}
    if {OURS, PEER} <= medians.keys():
        ratios = {key: round(medians[OURS][key] / medians[PEER][key], 3) for key in RATIOS}
    return {"medians": medians, "errors": errors, "ratios": ratios, "rounds": rounds}


def show(clients: int, result: Reply) -> None:
    """Print one number of clients for people."""
    for name, rounds in result["rounds"].items():
        middle = result["medians"][name]
        first, between = (spread(rounds, key) for key in ("first_token_s", "between_tokens_s"))
        rates = "  ".join(f"{middle[key]:7.1f} {word}" for key, word in RATIOS.items())
        print(
            f"{clients:>3} clients  {name:9}  {rates}  first {first} s  between {between} s  "
            f"errors {result['errors'][name]}",
            flush=True,
        )
    if result["ratios"]:
        print(f"{'':11} ratios    {result['ratios']}", flush=True)


def spread(rounds: list[Reply], key: str) -> str:
    """Return the medians of percentiles over rounds: p50/p90/p99."""
    every = [one[key] for one in rounds if one[key]]
    names = ("p50", "p90", "p99") if every else ()
    return "/".join(f"{statistics.median(one[name] for one in every):.3f}" for name in names)


def commands(args: argparse.Namespace, given: Setting) -> list[tuple[str, list[str], int]]:
    """Return how each server is started: name, command, port."""
    port = free_port()
    found = [(OURS, corral_command(given, port) + args.ours, port)]
    if args.peer_server or args.peer_python:
        port = free_port()
        peer = peer_command(given, port, server=args.peer_server, python=args.peer_python)
        found.append((PEER, peer + args.peers, port))
    return found


def parsed() -> argparse.Namespace:
    """Return what is to be measured."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="demo")
    peer = parser.add_mutually_exclusive_group()
    peer.add_argument("--peer-server", type=Path, help="llama-server, compiled for this machine")
    peer.add_argument("--peer-python", type=Path, help="has xllamacpp")
    parser.add_argument("--clients", type=numbers, default=(1, 4, 8, 16, 64))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--requests", type=int, help="of each load (default: by its clients)")
    parser.add_argument("--minutes", type=float, help="load corral alone for so long")
    parser.add_argument("--parallel", type=int, default=16)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=processors())
    parser.add_argument("--shared", action="store_true", help="let all prompts begin alike")
    parser.add_argument("--ours", type=str.split, default=[], help="further arguments of corral")
    parser.add_argument("--peers", type=str.split, default=[], help="further ones of the peer")
    return parser.parse_args()


def numbers(text: str) -> tuple[int, ...]:
    """Return numbers with commas between them."""
    return tuple(map(int, text.split(",")))


def main() -> int:
    """Measure, print, end with JSON, and return the exit code."""
    args = parsed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the servers must not outlive it
    from corral.hub.resolve import resolve

    card = machine()
    given = Setting(
        resolve(args.model), args.parallel, args.context, args.threads, max(args.clients)
    )
    report: Reply = {"machine": card, "setting": asdict(given) | {"model": given.model.name}}
    with ExitStack() as stack:
        load = stack.enter_context(Child("load", [sys.executable, str(HERE / "serve_client.py")]))
        starts = commands(args, given)[: 1 if args.minutes else None]
        servers = [stack.enter_context(serving(*start)) for start in starts]
        if args.minutes:
            report["soak"] = soak(servers[0], load, args.clients, args.minutes * 60)
            is_good = not report["soak"]["failures"]
        else:
            report["loads"] = compare(servers, load, args)
            report["ratios"] = {n: one["ratios"] for n, one in report["loads"].items()}
            is_good = not any(one["errors"].get(OURS) for one in report["loads"].values())
    print(json.dumps(report))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
