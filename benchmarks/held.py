"""What this process holds at one moment, after everything that can go has gone."""

import contextlib
import ctypes
import gc
import sys
from dataclasses import dataclass
from pathlib import Path

from corral.devices import registry
from corral.devices.closing import Closing
from corral.engine.growth import held_bytes
from corral.memory.ledger import Ledger

MEASURES = ("host", "heap", "objects", "blocks", "files", "threads", "device", "used", "ledger")
_C = ctypes.CDLL(None)
"""Made once: each makes a class of its own, of which something stays."""


class _HeapFacts(ctypes.Structure):
    """What glibc's mallinfo2 returns, from version 2.33 on."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


@dataclass(frozen=True)
class Held:
    """Counts and bytes; the fields are those of MEASURES."""

    host: int
    """Bytes of RssAnon, RssShmem and VmSwap."""
    heap: int
    """Bytes that the C library's allocator has given out: a part of the host's, with less noise. 0
    where it does not tell."""
    objects: int
    """Python objects that the collector knows."""
    blocks: int
    """Pieces of memory that Python gave to objects, small ones unknown to the collector too."""
    files: int
    threads: int
    device: int
    """Bytes allocated on every device object that is alive."""
    used: int
    """Bytes in use on a GPU, as it says itself: those of other processes too."""
    ledger: int
    """Allocated bytes in every ledger that is alive."""


def held(gpu: str | None = None) -> Held:
    """Collect garbage, give free memory back to the system, and count what is left."""
    gc.collect()
    _trim()
    host = held_bytes()
    if host is None:
        raise SystemExit("leak.py reads /proc/self/status, which this system does not have")
    objects = gc.get_objects()
    devices = [o for o in objects if issubclass(type(o), Closing) and hasattr(o, "allocated_bytes")]
    ledgers = [o for o in objects if type(o) is Ledger]
    return Held(
        host=host,
        heap=_heap_bytes(),
        objects=len(objects),
        blocks=sys.getallocatedblocks(),
        files=_entries("/proc/self/fd"),
        threads=_entries("/proc/self/task"),
        device=sum(device.allocated_bytes for device in devices),
        used=_used_bytes(gpu) if gpu else 0,
        ledger=sum(e.allocated_bytes for ledger in ledgers for e in ledger.statistics()),
    )


def _entries(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())


def _trim() -> None:
    """Ask the allocator of the C library for what it keeps; not all of them have such a call."""
    with contextlib.suppress(AttributeError):
        _C.malloc_trim(0)


def _used_bytes(gpu: str) -> int:
    with contextlib.closing(registry.open(gpu)) as device:
        reading = device.memory()
    free = reading.free_bytes
    return 0 if free is None else reading.total_bytes - free


def _heap_bytes() -> int:
    try:
        tell = _C.mallinfo2
    except AttributeError:
        return 0
    tell.restype = _HeapFacts
    facts = tell()
    return facts.uordblks + facts.hblkhd
