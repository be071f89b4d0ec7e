"""What the parts of `gpu.py` share: processes that measure, with a time limit, and what they found.

A process that fails is noted with the last thing it said, and the others go on.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_figures import Result

HERE = Path(__file__).parent
CARD = "cuda:0"


@dataclass
class Session:
    """What all parts share, and what they found."""

    large: Path
    small: Path
    cache: Path
    owns_cache: bool
    is_quick: bool
    ends_at: float
    """When no part may run any more, by `time.monotonic`."""
    results: dict[str, Result] = field(default_factory=dict)
    details: dict[str, object] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @property
    def repeat(self) -> int:
        """Fresh processes of a headline figure."""
        return 1 if self.is_quick else 3

    def measure(self, name: str, model: Path, limit_s: float, **options: object) -> dict | None:
        """Run one measurement in a fresh process; None if it failed, which is noted."""
        left = self.ends_at - time.monotonic()
        if left < 1:
            self.fail(f"{name} {model.stem}", "no time was left")
            return None
        command = [sys.executable, str(HERE / "gpu_child.py"), name, str(model)]
        try:
            return run_child([*command, json.dumps(options)], self.cache, min(limit_s, left))
        except ChildFailed as failure:
            self.fail(f"{name} {model.stem}", str(failure))
            return None

    def repeated(self, name: str, model: Path, limit_s: float, **options: object) -> list[dict]:
        """Run a measurement in as many fresh processes as a headline figure wants."""
        replies = [self.measure(name, model, limit_s, **options) for _ in range(self.repeat)]
        return [reply for reply in replies if reply is not None]

    def fail(self, what: str, why: str) -> None:
        """Note what could not be measured."""
        self.failures.append(f"{what}: {why}")
        say(f"FAILED {what}: {why}")

    def add(self, found: Sequence[Result]) -> None:
        """Keep and show results."""
        for result in found:
            self.results[result.name] = result
            say(result.line())


class ChildFailed(Exception):
    """A measuring process ended without an answer; the message says why."""


def run_child(command: Sequence[str], cache: Path, limit_s: float) -> dict:
    """Run a process and return the JSON of its last line.

    Raises:
        ChildFailed: if it failed, or ran for too long; all that it started is ended.
    """
    environment = os.environ | {"CORRAL_CACHE": str(cache)}
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            env=environment,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise ChildFailed(f"took more than {limit_s:.0f} s") from None
        if process.returncode:
            errors.seek(0)
            said = [line.strip() for line in errors if line.strip()]
            raise ChildFailed(f"exit code {process.returncode}; {said[-1][:300] if said else ''}")
    return json.loads(output.strip().splitlines()[-1])


def say(text: str) -> None:
    """Print a line now."""
    print(text, flush=True)


def card_bytes() -> int:
    """Return what the card says is in use."""
    from corral.devices.nvml import process_nvml

    return process_nvml().memory(card().uuid).used_bytes or 0


def card():
    """Return the reading of the card."""
    import corral

    found = [device for device in corral.devices() if device.name == CARD]
    if not found:
        raise SystemExit("there is no CUDA device here")
    return found[0]


def driver_version() -> str:
    """Return the version of the driver."""
    from corral.devices.nvml import process_nvml

    return process_nvml().driver_version()
