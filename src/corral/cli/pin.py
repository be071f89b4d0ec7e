"""`corral pin`: have a running server keep a model, or no longer."""

from collections.abc import Sequence

from corral.cli import arguments as options
from corral.cli.arguments import Parser
from corral.cli.client import Client, add_server
from corral.cli.load import status_of
from corral.cli.output import print_json, say


def execute(given: Sequence[str]) -> int:
    """Pin a model and return the exit code."""
    parser = Parser(
        "pin",
        "MODEL [OPTIONS]",
        "Have a running server keep a model: it makes no room for others and does not go when it "
        "is idle. It is not loaded for that.",
    )
    parser.add_argument("model", metavar="MODEL", help="name of a model of the server")
    parser.add_argument("--off", action="store_true", help="no longer")
    add_server(parser)
    options.add_json(parser)
    parsed = parser.parse_args(given)
    body = {"model": parsed.model, "pinned": not parsed.off}
    status = status_of(Client(parsed.server, parsed.api_key).post("/models/pin", body)["model"])
    if parsed.json:
        print_json(status)
    else:
        say(f"{status['name']} is {'pinned' if status['is_pinned'] else 'not pinned'}")
    return 0
