"""`corral unload`: have a running server let a model go when what it answers has ended."""

from collections.abc import Sequence

from corral.cli import arguments as options
from corral.cli.arguments import Parser
from corral.cli.client import Client, add_server
from corral.cli.load import status_of
from corral.cli.output import print_json, say


def execute(given: Sequence[str]) -> int:
    """Unload a model and return the exit code."""
    parser = Parser("unload", "MODEL [OPTIONS]", "Have a running server let a model go.")
    parser.add_argument("model", metavar="MODEL", help="name of a model of the server")
    add_server(parser)
    options.add_json(parser)
    parsed = parser.parse_args(given)
    reply = Client(parsed.server, parsed.api_key).post("/models/unload", {"model": parsed.model})
    status = status_of(reply["model"])
    if parsed.json:
        print_json(status)
    else:
        say(f"{status['name']} is {status['state']}")
    return 0
