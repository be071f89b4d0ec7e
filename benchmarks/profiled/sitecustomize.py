"""Where the threads of every Python process spend their processor time, if this folder is on its
path: whoever starts with `PYTHONPATH=benchmarks/profiled:…` is sampled from its first line on.

Each process keeps `corral-profile.PID.json` in the temporary folder up to date: its command, and by
thread the seconds of each function of corral (or of whatever else is innermost) that was running.
"""

import contextlib
import json
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from types import FrameType

SAMPLE_S = 0.002
SWITCH_S = 2e-5
"""How soon a thread gives way: at the usual 5 ms, samples fall on its system calls only."""
WRITE_S = 1.0
OWN = "/corral/"


def where(frame: FrameType) -> str:
    """Return the innermost function of corral's own, and what it was in."""
    inner, own = frame, frame
    while OWN not in own.f_code.co_filename and own.f_back is not None:
        own = own.f_back
    if OWN not in own.f_code.co_filename:
        own = inner
    name = f"{Path(own.f_code.co_filename).stem}.{own.f_code.co_qualname}"
    return name if own is inner else f"{name} > {inner.f_code.co_name}"


def sample(seconds: dict[str, Counter[str]], before: dict[int, float]) -> None:
    """Add what each thread computed since the last time to where it is now."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        if ident == threading.get_ident():
            continue
        with contextlib.suppress(OSError):  # it has ended meanwhile
            now = time.clock_gettime(time.pthread_getcpuclockid(ident))
            used = now - before.get(ident, now)
            before[ident] = now
            if used > 0:
                seconds[names.get(ident, "?")][where(frame)] += used


def watch() -> None:
    """Sample until the process ends."""
    path = Path(tempfile.gettempdir(), f"corral-profile.{threading.get_native_id()}.json")
    seconds: dict[str, Counter[str]] = defaultdict(Counter)
    before: dict[int, float] = {}
    due = time.monotonic() + WRITE_S
    while True:
        time.sleep(SAMPLE_S)
        sample(seconds, before)
        if time.monotonic() >= due:
            told = {thread: counted.most_common(40) for thread, counted in seconds.items()}
            path.write_text(json.dumps({"command": sys.orig_argv[1:6], "seconds": told}))
            due = time.monotonic() + WRITE_S


if not hasattr(sys, "ps1"):
    sys.setswitchinterval(SWITCH_S)
    threading.Thread(target=watch, name="corral-profile", daemon=True).start()
