"""Children for a probe, as scripts: each runs as the real one does, and does what a test needs."""

import threading
from dataclasses import dataclass, field
from pathlib import Path

from corral.devices.bounded_process import Finished, run_bounded
from corral.devices.probe import Probe
from corral.devices.probe_child import TAG

UUID = "GPU-00000000-1111-2222-3333-444444444444"
MIB = 1 << 20
TOLD = {
    "uuid": UUID,
    "name": "Played card",
    "driver_version": "580.1",
    "total_bytes": 8192 * MIB,
    "free_bytes": 5000 * MIB,
    "context_bytes": 500 * MIB,
}

_PREAMBLE = f"""
import json, os, signal, sys, time
told = {TOLD!r}
def tell(**changes):
    print("{TAG} " + json.dumps({{**told, **changes}}), flush=True)
"""


@dataclass
class Children:
    """Runs children for a probe, and counts them."""

    script: Path
    started: list[tuple[tuple[str, ...], dict[str, str]]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, command, environment, *, seconds) -> Finished:
        """Count, and run."""
        with self.lock:
            self.started.append((command, dict(environment)))
        return run_bounded(command, environment, seconds=seconds)

    def become(self, code: str) -> None:
        """Make the next child run other code."""
        self.script.write_text(_PREAMBLE + code)


def played_probe(folder: Path, code: str, **options) -> tuple[Probe, Children]:
    """Return a probe whose children run the given code, and the count of them."""
    children = Children(folder / "child.py")
    children.become(code)
    options = {"interval_seconds": 0.0, "run": children.run, **options}
    return Probe(options.pop("costs", None), child=children.script, **options), children
