"""The command line with a scripted service in place of a worker: `python -m …scripted_serve …`.

SCRIPT=slow    the worker loads until it is told to go on by the environment's SCRIPT_GO file
SCRIPT=fails   the worker fails while it loads
"""

import os
import sys
from pathlib import Path

from corral.cli import main, serve
from corral.contract.worker import WorkerState, WorkerStatus
from served import ScriptedService


class ScriptedSupervisor(ScriptedService):
    """A service with the life of a worker."""

    def __init__(self, script):
        super().__init__(pace_s=0.02)
        self.script = script

    @property
    def status(self):
        """Tell where the worker is in its life."""
        if self.script == "fails":
            return WorkerStatus(
                state=WorkerState.FAILED, error_code="out_of_memory", error="needs 9 GiB, 1 free"
            )
        if self.script == "slow" and not Path(os.environ["SCRIPT_GO"]).exists():
            return WorkerStatus(state=WorkerState.LOADING, stage="read", done=1, total=4)
        return WorkerStatus(state=WorkerState.READY)

    def close(self):
        """Say that the worker was ended."""
        print("worker closed", file=sys.stderr)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


def install(script, patch=setattr):
    """Have `corral serve` use a scripted service."""
    patch(serve, "_supervised", lambda spec, stuck_s: ScriptedSupervisor(script))


if __name__ == "__main__":
    install(os.environ.get("SCRIPT", ""))
    sys.exit(main.main())
