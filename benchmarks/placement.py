"""How long the router takes to start with a thousand models, and to decide where one of them goes.

    python benchmarks/placement.py [--models 1000] [--cards 8] [--decisions 400]

The files are headers of Llama shapes with a hole in place of the weights, of one to eighty layers;
they lie in a temporary folder, as does the index. Decisions are made on cards of 80 GiB, filled by
models of the catalog until nothing more fits; some are pinned, some busy. Processor time is the
same on a busy machine. Last line: JSON.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from corral.router.catalog import Catalog
from corral.router.config import RouterConfig, ServerSettings
from corral.router.entry import HOST, ModelEntry, Planned
from corral.router.header_index import HeaderIndex
from corral.router.placement import place
from corral.router.placing import Decision, Holder, Load, Machine, Policy, Room, Site, Wanted
from corral.router.planner import Planner

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from headers import Sizes, write_sparse
from machine import machine

KINDS = ("cpu", "cuda")
CARD_BYTES = 80 << 30
HOST_BYTES = 1 << 40
CONTEXT_BYTES = 512 << 20
SHAPES = (
    Sizes(16, 2048, 8192, 32, 8, 128_256),
    Sizes(32, 4096, 14_336, 32, 8, 128_256),
    Sizes(40, 5120, 13_824, 40, 8, 32_000),
    Sizes(60, 6656, 17_920, 52, 4, 64_000),
    Sizes(80, 8192, 28_672, 64, 8, 128_256),
)
START = """
import json, sys, time
from pathlib import Path
from corral.router.catalog import Catalog
from corral.router.config import RouterConfig, ServerSettings
from corral.router.header_index import HeaderIndex
from corral.router.planner import Planner
folder, index, began = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
config = RouterConfig(server=ServerSettings(models=(folder,)))
with Catalog(lambda: config, Planner(), HeaderIndex(index), kinds=("cpu", "cuda")) as catalog:
    known = sum(entry.header is not None for entry in catalog.entries())
    took, cpu = time.time() - began, time.process_time()
    rss = next(l for l in open("/proc/self/status") if l.startswith("VmRSS")).split()[1]
print(json.dumps({"seconds": took, "cpu_s": cpu, "known": known, "rss_bytes": int(rss) * 1024}))
"""


def write_models(folder: Path, count: int) -> None:
    """Write so many headers, no two of them of one size."""
    for number in range(count):
        shape = SHAPES[number % len(SHAPES)]
        layers = max(1, shape.layers - number // len(SHAPES) % shape.layers)
        write_sparse(
            folder / f"model-{number:04}.gguf",
            Sizes(layers, shape.width, shape.ffn, shape.heads, shape.kv_heads, shape.vocabulary),
        )


def cold(folder: Path, index: Path) -> tuple[dict[str, object], tuple[ModelEntry, ...]]:
    """Read every header once; return how long that took, one asked for meanwhile too."""
    config = RouterConfig(server=ServerSettings(models=(str(folder),)))
    began = time.perf_counter()
    with Catalog(lambda: config, Planner(), HeaderIndex(index), kinds=KINDS) as catalog:
        listed = time.perf_counter() - began
        asked = time.perf_counter()
        catalog.planned(catalog.entries()[-1].name)
        first = time.perf_counter() - asked
        assert catalog.wait_until_read(3600.0)
        took = time.perf_counter() - began
        entries = catalog.entries()
    assert all(isinstance(entry.header, Planned) for entry in entries), "a header was refused"
    figures = {"listed_s": listed, "asked_for_meanwhile_s": first, "all_read_s": took}
    return figures | {"index_bytes": index.stat().st_size}, entries


def start(folder: Path, index: Path) -> dict[str, float]:
    """Start a process that lists all models, from its very beginning."""
    command = [sys.executable, "-c", START, str(folder), str(index), str(time.time())]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def filled(
    entries: Sequence[ModelEntry], cards: int, chance: random.Random
) -> tuple[Machine, list[Holder]]:
    """Return cards that models were put on until no more fitted, and these models."""
    sites = [Site("cpu", "cpu")]
    free = {HOST: HOST_BYTES}
    for number in range(cards):
        uuid = f"GPU-{number}"
        sites.append(Site(f"cuda:{number}", "cuda", uuid, uuid, CONTEXT_BYTES))
        free[uuid] = CARD_BYTES
    holders: list[Holder] = []
    for entry in chance.sample(entries, len(entries)):
        decision = place(wanted(entry), snapshot(sites, free), [], now=0.0, policy=Policy())
        if isinstance(decision, Load) and "cpu" not in decision.need.sites:
            for memory, size in decision.need.bytes.items():
                free[memory] -= size
            holders.append(
                Holder(
                    name=entry.name,
                    bytes=decision.need.bytes,
                    is_pinned=chance.random() < 0.05,
                    is_busy=chance.random() < 0.2,
                    ready_s=chance.uniform(-1000.0, 0.0),
                    used_s=chance.uniform(-1000.0, 0.0),
                    priority=chance.choice((0, 0, 0, 1)),
                )
            )
    return snapshot(sites, free), holders


def snapshot(sites: Sequence[Site], free: dict[str, int]) -> Machine:
    """Return the machine as it would be read."""
    totals = {HOST: HOST_BYTES}
    rooms = (
        Room(memory, memory, totals.get(memory, CARD_BYTES), size, 256 << 20)
        for memory, size in free.items()
    )
    return Machine(tuple(sites), tuple(rooms))


def wanted(entry: ModelEntry) -> Wanted:
    """Return a model as the router asks for it."""
    assert isinstance(entry.header, Planned)
    return Wanted(preset=entry.preset, footprints=entry.header.footprints)


def decide(entries: Sequence[ModelEntry], cards: int, decisions: int) -> dict[str, object]:
    """Time decisions for models that are not there."""
    chance = random.Random(1)
    where, holders = filled(entries, cards, chance)
    there = {holder.name for holder in holders}
    others = [entry for entry in entries if entry.name not in there]
    times, cpu, kinds = [], [], dict[str, int]()
    for entry in chance.choices(others, k=decisions):
        model = wanted(entry)
        began = time.perf_counter(), time.thread_time()
        decision: Decision = place(model, where, holders, now=0.0, policy=Policy())
        times.append((time.perf_counter() - began[0]) * 1e3)
        cpu.append((time.thread_time() - began[1]) * 1e3)
        kind = type(decision).__name__
        kinds[kind] = kinds.get(kind, 0) + 1
    return {
        "resident": len(holders),
        "decisions": kinds,
        "ms": quantiles(times),
        "cpu_ms": quantiles(cpu),
    }


def quantiles(times: Sequence[float]) -> dict[str, float]:
    """Return the middle, what all but a hundredth keep to, and the longest."""
    ordered = sorted(times)
    last = len(ordered) - 1
    return {
        "median": statistics.median(ordered),
        "p99": ordered[min(last, int(len(ordered) * 0.99))],
        "longest": ordered[last],
    }


def main() -> None:
    """Measure, say it, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--cards", type=int, default=8)
    parser.add_argument("--decisions", type=int, default=400)
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args()
    facts = machine()
    with tempfile.TemporaryDirectory() as place_of_all:
        folder, index = Path(place_of_all, "models"), Path(place_of_all, "headers.json")
        folder.mkdir()
        write_models(folder, given.models)
        first, entries = cold(folder, index)
        print(f"{given.models} models listed in {first['listed_s']:.2f} s", file=sys.stderr)
        print(
            f"one asked for at once known in {first['asked_for_meanwhile_s']:.2f} s, all in "
            f"{first['all_read_s']:.0f} s",
            file=sys.stderr,
        )
        starts = [start(folder, index) for _ in range(given.repeat)]
        seconds, cpu = ([one[key] for one in starts] for key in ("seconds", "cpu_s"))
        print(
            f"started with the index in {statistics.median(seconds):.2f} s (processor "
            f"{statistics.median(cpu):.2f} s), {starts[-1]['rss_bytes'] / 1e6:.0f} MB resident",
            file=sys.stderr,
        )
        decided = decide(entries, given.cards, given.decisions)
        for key, what in (("ms", "decisions"), ("cpu_ms", "their processor time")):
            told = decided[key]
            print(
                f"{what}: {told['median']:.2f} ms, 99 % within {told['p99']:.2f} ms, the longest "
                f"{told['longest']:.2f} ms",
                file=sys.stderr,
            )
    print(
        json.dumps(
            {
                "models": given.models,
                "cards": given.cards,
                "cold": first,
                "starts": starts,
                "decide": decided,
                "machine": facts,
            }
        )
    )


if __name__ == "__main__":
    main()
