"""`corral pull`: fetch a model without running it."""

from collections.abc import Sequence

from corral.cli.arguments import Parser, add_json
from corral.cli.output import print_json, say
from corral.cli.progress import ProgressDisplay


def execute(given: Sequence[str]) -> int:
    """Fetch a model, print its path, and return the exit code."""
    parser = Parser(
        "pull", "NAME [--json]", "Fetch a model into the cache and print the path of its file."
    )
    parser.add_argument("model", metavar="NAME", help="demo, or hf:owner/repo[/file]")
    add_json(parser)
    parsed = parser.parse_args(given)
    from corral.hub.resolve import pull

    with ProgressDisplay() as display:
        path = pull(parsed.model, progress=display)
    if parsed.json:
        print_json({"name": parsed.model, "path": str(path), "size_bytes": path.stat().st_size})
    else:
        say(str(path))
    return 0
