"""`corral load`: have a running server load a model, and wait until it is ready."""

import time
from collections.abc import Sequence

from corral.cli import arguments as options
from corral.cli.arguments import Parser
from corral.cli.client import Client, add_server
from corral.cli.output import print_json, say
from corral.cli.progress import ProgressDisplay

_LOOK_S = 0.2


def execute(given: Sequence[str]) -> int:
    """Load a model and return the exit code."""
    parser = Parser(
        "load", "MODEL [OPTIONS]", "Have a running server load a model; others may go for it."
    )
    parser.add_argument("model", metavar="MODEL", help="name of a model of the server")
    parser.add_argument("--pin", action="store_true", help="and keep it there")
    add_server(parser)
    options.add_json(parser)
    parsed = parser.parse_args(given)
    client = Client(parsed.server, parsed.api_key)
    if parsed.pin:
        client.post("/models/pin", {"model": parsed.model})
    status = status_of(client.post("/models/load", {"model": parsed.model})["model"])
    with ProgressDisplay() as display:
        while status["state"] not in ("ready", "failed", "unloaded"):
            if status["stage"]:
                display(str(status["stage"]), number(status["done"]), number(status["total"]))
            time.sleep(_LOOK_S)
            status = status_of(client.get(f"/v1/models/{status['name']}"))
    if status["state"] != "ready":
        from corral.contract.events import error_of

        raise error_of(str(status["error_code"]), str(status["error"] or status["reason"]))
    if parsed.json:
        print_json(status)
    else:
        say(f"{status['name']} is loaded")
    return 0


def status_of(entry: object) -> dict[str, object]:
    """Return what a server tells of a model in its entry of the list of models."""
    assert isinstance(entry, dict), "routes of corral reply with objects"
    status = entry["corral"]
    assert isinstance(status, dict), "as above"
    return status


def number(value: object) -> int:
    """Return a number of a reply."""
    return value if isinstance(value, int) else 0
