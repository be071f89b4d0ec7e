"""Minutes of load on one server, and whether anything is left or grows. A part of `serve.py`."""

import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from children import Child, Reply
from corral.memory.growth import Samples, Slope
from serve_servers import Held, Server, kv_blocks_used

EVERY_S = 1.0
SETTLE_S = 30.0
PASSES = 3
"""Each number of clients has its turn so often: a line through one pass shows which came last."""
WARM_UP = 1000
"""Quick requests of one round before anything is measured: what caches, the allocator and the first
connections take is no growth."""
QUICK = {"words": (1, 2, 4), "answers": (2, 3, 4)}
STILL_BYTES = 16 << 10
"""By which a process may have grown in a round, and still be warm …"""
STILL_ROUNDS = 3
"""… if it grew no more in so many of them, one after the other."""
MOST_ROUNDS, WARM_UP_S = 40, 600.0
"""When it is measured, warm or not."""
LONG_S = 10.0
"""Of a round of usual requests before: the longest buffers are there then, too."""
NOISE_BYTES_A_MINUTE = 256 << 10
"""Growth that no interval of ten minutes can tell from the steps in which memory moves."""


@dataclass(frozen=True)
class Growth:
    """What became of one process: bytes a minute, and open files and threads when idle."""

    name: str
    slope: Slope
    own_bytes: int
    files: tuple[int, int]
    threads: tuple[int, int]

    @property
    def failures(self) -> list[str]:
        """What grew that must not."""
        found = []
        if self.slope.is_growth(NOISE_BYTES_A_MINUTE):
            found.append(f"{self.name} grows by {self.slope.value:.0f} bytes a minute")
        for what, (before, after) in (("files", self.files), ("threads", self.threads)):
            if after > before:
                found.append(f"{self.name} has {after} {what}, {before} before")
        return found


class Watch:
    """Samples a server's processes while it is loaded."""

    def __init__(self, server: Server) -> None:
        """Begin to sample."""
        self._server = server
        self._samples = {one.name: Samples(1, capacity=1024) for one in server.held()}
        self._stop = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            elapsed = time.monotonic() - self._began
            for one in self._server.held():
                if one.name in self._samples:
                    self._samples[one.name].add(int(elapsed * 1000), one.own_bytes)

    def end(self) -> dict[str, Slope | None]:
        """Return the slopes, in bytes a minute."""
        self._stop.set()
        self._thread.join()
        found = {name: samples.slope(skip=0) for name, samples in self._samples.items()}
        return {name: None if one is None else a_minute(one) for name, one in found.items()}


def a_minute(slope: Slope) -> Slope:
    """Return a slope against milliseconds as one against minutes."""
    return Slope(slope.value * 60_000, slope.half_width * 60_000, slope.num_samples)


def settled(server: Server) -> int:
    """Wait until no request holds blocks, and return how many are held then."""
    deadline = time.monotonic() + SETTLE_S
    while (used := kv_blocks_used(server)) and time.monotonic() < deadline:
        time.sleep(EVERY_S)
    return used


def run(server: Server, load: Child, clients: Sequence[int], seconds: float, seed: int) -> Reply:
    """Load a server with each number of clients, a part of the time each."""
    rounds = []
    for number, count in enumerate(clients):
        found = load.measure(
            test="load",
            port=server.port,
            clients=count,
            seed=seed + number,
            count=None,
            seconds=seconds / len(clients),
            shared=False,
        )
        rounds.append(found)
        print(
            f"{count:>3} clients  {found['generated_tokens_per_s']:8.1f} generated/s  "
            f"{found['requests']} requests, {found['left']} left, {found['errors']} errors  "
            f"first {found['first_token_s']}  between {found['between_tokens_s']}",
            flush=True,
        )
    return {"rounds": rounds}


def is_warm(rounds: Sequence[dict[str, int]]) -> bool:
    """Whether no process grew in the last rounds, given what each held at the end of all."""
    pairs = list(itertools.pairwise(rounds))[-STILL_ROUNDS:]
    return len(pairs) == STILL_ROUNDS and all(
        after[name] - before[name] <= STILL_BYTES for before, after in pairs for name in after
    )


def warm_up(server: Server, load: Child, clients: int) -> list[dict[str, int]]:
    """Ask quick things until no process grows any more; return what they held after each round."""
    held: list[dict[str, int]] = []
    until = time.monotonic() + WARM_UP_S
    while not is_warm(held) and len(held) < MOST_ROUNDS and time.monotonic() < until:
        load.measure(
            test="load",
            port=server.port,
            clients=clients,
            seed=10_000 + len(held),
            count=WARM_UP,
            seconds=WARM_UP_S,
            **QUICK,
        )
        held.append({one.name: one.own_bytes for one in server.held()})
    kept = ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in held[-1].items())
    print(f"{'warm' if is_warm(held) else 'not warm'} after {len(held) * WARM_UP} requests: {kept}")
    return held


def soak(server: Server, load: Child, clients: Sequence[int], seconds: float) -> Reply:
    """Load a server for a while, once it is warm."""
    warmth = warm_up(server, load, max(clients))
    run(server, load, clients, len(clients) * LONG_S, seed=15_000)  # long ones, too
    settled(server)
    before = {one.name: one for one in server.held()}
    watch = Watch(server)
    found = run(server, load, tuple(clients) * PASSES, seconds, seed=20_000)
    slopes = watch.end()
    leaked = settled(server)
    grown = growths(before, {one.name: one for one in server.held()}, slopes)
    failures = [failure for one in grown for failure in one.failures]
    failures += [f"{leaked} blocks are held by nobody"] * bool(leaked)
    failures += [f"failed: {one['first_error']}" for one in found["rounds"] if one["errors"]]
    for one in grown:
        print(
            f"{one.name}: {one.slope.value / 1024:.1f} ± {one.slope.half_width / 1024:.1f} KiB a "
            f"minute of {one.own_bytes / 2**20:.0f} MiB, files {one.files}, threads {one.threads}"
        )
    print(f"blocks left: {leaked}; failures: {failures}")
    growth = [asdict(one) for one in grown]
    told = {"warm_up": warmth, "leaked_blocks": leaked, "growth": growth}
    return found | told | {"failures": failures}


def growths(
    before: dict[str, Held], after: dict[str, Held], slopes: dict[str, Slope | None]
) -> list[Growth]:
    """Put together what is known of each process that was there all the time."""
    return [
        Growth(
            name,
            slope,
            after[name].own_bytes,
            (before[name].files, after[name].files),
            (before[name].threads, after[name].threads),
        )
        for name, slope in slopes.items()
        if slope is not None
    ]
