"""The planning process: a line of JSON in for each file, a line of JSON out, until the input ends.

{"path": "m.gguf", "kinds": ["cpu"], …}  ──▶  what planned_text.py says of a header
"""

import contextlib
import json
import resource
import sys
from typing import IO

from corral.router.footprints import plan_header
from corral.router.plan_job import PlanJob
from corral.router.planned_text import to_json

MEMORY_BYTES = 4 << 30
"""More than any header takes that a machine could use."""


def serve(lines: IO[str], answers: IO[str]) -> None:
    """Answer each line."""
    for line in lines:
        header = plan_header(PlanJob.from_json(json.loads(line)))
        answers.write(json.dumps(to_json(header)) + "\n")
        answers.flush()


def main() -> None:
    """Keep to the limit and serve."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    serve(sys.stdin, sys.stdout)


if __name__ == "__main__":
    main()
