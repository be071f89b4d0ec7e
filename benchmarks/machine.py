"""What a result was measured on. Standard library only."""

import os
import platform
from datetime import date
from pathlib import Path


def machine() -> dict[str, object]:
    """Return the facts that a figure means nothing without.

    Asked before measuring, `load` tells whether anything else was running.
    """
    return {
        "cpu": _first("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _first("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
        "date": date.today().isoformat(),
    }


def _first(path: str, key: str) -> str | None:
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None
