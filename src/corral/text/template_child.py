"""The process that runs a template for `template_process.py`: it owns nothing worth having.

It reads frames from its input and answers each on its output, until the input ends: first the
source of the template, then variables and a time limit, as JSON. Its memory is bounded by the
system, and it opens no further files. Its caller kills it when an answer does not come in time.
"""

import json
import signal
import struct
import sys
from typing import IO, Final

from corral.errors import TemplateError
from corral.text.rendering import Renderer, SandboxRenderer

LENGTH: Final = struct.Struct("<I")
"""What stands before each frame: its length in bytes."""


def limit_resources(memory_bytes: int) -> None:
    """Bound what this process may take: address space, open files, written files, core dumps."""
    import resource

    for name, amount in (
        ("RLIMIT_AS", memory_bytes),
        ("RLIMIT_FSIZE", 0),
        ("RLIMIT_CORE", 0),
    ):
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        limit = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
        resource.setrlimit(kind, (limit, limit))


def main(memory_bytes: int) -> None:
    """Serve standard input and output until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the caller, who ends us when done
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing but answers may reach the caller
    limit_resources(memory_bytes)
    serve(requests, answers)


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Compile the template of the first frame and render it for each further one."""
    renderer: Renderer | None = None
    while (frame := _read(requests)) is not None:
        request = json.loads(frame)
        try:
            if renderer is None:
                renderer, text = SandboxRenderer(request["source"]), ""
            else:
                text = renderer.render(request["variables"], request["limit"])
            answer = {"text": text}
        except TemplateError as error:
            answer = {"error": str(error)}
        except MemoryError:
            answer = {"error": "the chat template needs more memory than it may have."}
        data = json.dumps(answer).encode()
        answers.write(LENGTH.pack(len(data)) + data)
        answers.flush()


def _read(requests: IO[bytes]) -> bytes | None:
    head = requests.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    return requests.read(*LENGTH.unpack(head))
