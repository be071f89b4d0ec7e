"""One model over several cards, beside the same model on one of them.

    python benchmarks/gpu_split.py MODEL.gguf [--devices cuda:0,cuda:1] [--split 1,1] [--repeat 5]

Fresh processes take turns: the model on the first card, and over all. Each tells what was planned
and allocated in every lifetime, what NVML shows on every card, and how fast it decodes and reads a
prompt. Last line: JSON. The exit code is 1 if a byte is not where it was planned, if a card is not
as it was at the end, or if decoding loses more than 5 %.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from machine import machine

DECODE_LOSS = 0.05
SLACK, SLACK_BYTES = 0.01, 2 << 20
"""By how much NVML may differ from what was planned."""
CHILD_S = 300.0


@dataclass
class Found:
    """What processes of one placement told."""

    replies: list[dict] = field(default_factory=list)

    def median(self, name: str) -> float:
        """Return the median of a figure over the processes."""
        return median(reply[name] for reply in self.replies)


def used(devices: Sequence[str]) -> list[int]:
    """Return what NVML says is in use on each card."""
    import corral
    from corral.devices.nvml import process_nvml

    uuids = {device.name: device.uuid for device in corral.devices()}
    return [process_nvml().memory(uuids[name]).used_bytes or 0 for name in devices]


def child(model: str, devices: list[str], split: list[float], args: dict) -> dict:
    """Load, generate and tell; in a process of its own."""
    import corral

    before = used(devices)
    began = time.perf_counter()
    options = {"device": devices, "split": split, "context": args["context"]}
    with corral.Model.load(model, **options) as loaded:
        load_s = time.perf_counter() - began
        runs = [loaded.benchmark(args["prompt"], args["generated"]) for _ in range(3)][1:]
        rows = loaded.memory().rows
        held = [now - then for now, then in zip(used(devices), before, strict=True)]
    on_card = {
        name: sum(row.allocated_bytes for row in rows if row.device == name) for name in devices
    }
    return {
        "load_s": load_s,
        "prefill": args["prompt"] / min(one[0] for one in runs),
        "decode": args["generated"] / median(one[1] for one in runs),
        "is_exact": all(row.planned_bytes == row.allocated_bytes for row in rows),
        "allocated_bytes": on_card,
        "held_bytes": dict(zip(devices, held, strict=True)),
    }


def measured(args: argparse.Namespace, devices: list[str], split: list[float]) -> dict:
    """Ask a fresh process."""
    sizes = {name: getattr(args, name) for name in ("context", "prompt", "generated")}
    order = json.dumps([str(args.model), devices, split, sizes])
    command = [sys.executable, __file__, str(args.model), "--child", order]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=CHILD_S, env=os.environ, check=False
    )
    if done.returncode:
        raise SystemExit(f"on {','.join(devices)}: {done.stderr.strip()[-600:]}")
    return json.loads(done.stdout.splitlines()[-1])


def flaws(one: Found, several: Found, before: list[int], after: list[int]) -> list[str]:
    """Return what does not hold."""
    found = []
    for reply in (*one.replies, *several.replies):
        if not reply["is_exact"]:
            found.append("a lifetime takes what was not planned")
        for name, planned in reply["allocated_bytes"].items():
            if abs(reply["held_bytes"][name] - planned) > SLACK * planned + SLACK_BYTES:
                found.append(f"{name} holds {reply['held_bytes'][name]} bytes of {planned} planned")
    if after != before:
        found.append(f"cards hold {after} bytes, {before} before")
    loss = 1 - several.median("decode") / one.median("decode")
    if loss > DECODE_LOSS:
        found.append(f"decoding over several loses {loss:.1%}, at most {DECODE_LOSS:.0%}")
    return found


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--devices", default="cuda:0,cuda:1")
    parser.add_argument("--split", help="shares of the cards (default: equal ones)")
    parser.add_argument("--repeat", type=int, default=5, help="processes of each placement")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--generated", type=int, default=256)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure, print as it goes, and end with JSON."""
    args = options()
    if args.child:
        print(json.dumps(child(*json.loads(args.child))))
        return
    devices = args.devices.split(",")
    shares = [float(share) for share in (args.split or ",".join("1" * len(devices))).split(",")]
    before, one, several = used(devices), Found(), Found()
    for _ in range(args.repeat):
        for found, names, split in ((one, devices[:1], [1.0]), (several, devices, shares)):
            found.replies.append(measured(args, names, split))
            said = found.replies[-1]
            print(
                f"{','.join(names):16} decode {said['decode']:8.1f}  prefill {said['prefill']:9.1f}"
                f"  load {said['load_s']:5.2f} s  held {said['held_bytes']}",
                flush=True,
            )
    wrong = flaws(one, several, before, used(devices))
    for flaw in wrong:
        print(f"DOES NOT HOLD: {flaw}")
    figures = {
        name: {"one": one.median(name), "several": several.median(name)}
        for name in ("decode", "prefill", "load_s")
    }
    ratio = figures["decode"]["several"] / figures["decode"]["one"]
    print(
        json.dumps(
            {
                "machine": machine(),
                "devices": devices,
                "split": shares,
                **figures,
                "ratio": ratio,
                "bytes": several.replies[-1]["allocated_bytes"],
                "flaws": wrong,
            }
        )
    )
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
