"""What `corral serve` may be asked on its command line, and by its environment."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from corral.cli import arguments as options
from corral.cli.arguments import LoadOptions, Parser, real, size_bytes, whole
from corral.config import settings
from corral.errors import UsageError

DEFAULT_PORT = 8080
_MAX_PORT = 65_535
_MAX_PARALLEL = 1024
_MAX_QUEUE = 65_536
_MAX_KEY_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What `corral serve` was asked."""

    load: LoadOptions
    embeddings: bool
    parallel: int
    queue: int
    host: str
    port: int
    keys: tuple[str, ...]
    aliases: tuple[str, ...]
    allowed_hosts: tuple[str, ...]
    cors_origins: tuple[str, ...]
    drain_s: float
    stuck_s: float
    """0 waits for ever."""
    sessions: Path | None
    """Where conversations outlive the process; None keeps none."""
    sessions_bytes: int
    is_json: bool


def parse(given: Sequence[str]) -> ServeOptions:
    """Take a command line.

    Raises:
        UsageError: naming what is wrong with it.
    """
    parser = Parser(
        "serve",
        "[-m MODEL] [OPTIONS]",
        "Serve a model over HTTP: OpenAI's routes, llama-server's, metrics and a page.",
    )
    options.add_json(parser)
    group = parser.add_argument_group("model")
    group.add_argument(
        "-m",
        "--model",
        metavar="MODEL",
        default=options.DEFAULT_MODEL,
        help=f"{options.MODEL_HELP} (default: demo)",
    )
    options.add_load_options(group)
    group.add_argument(
        "--embeddings", action="store_true", help="answer /v1/embeddings too, by the last token"
    )
    _add_capacity(parser)
    _add_sessions(parser)
    _add_network(parser)
    parsed = parser.parse_args(given)
    return ServeOptions(
        load=LoadOptions.of(parsed),
        embeddings=parsed.embeddings,
        parallel=parsed.parallel,
        queue=parsed.queue,
        host=parsed.host,
        port=parsed.port,
        keys=_keys(parsed),
        aliases=tuple(parsed.alias),
        allowed_hosts=tuple(name.lower() for name in parsed.allowed_host),
        cors_origins=tuple(parsed.cors_origin),
        drain_s=parsed.drain,
        stuck_s=parsed.stuck,
        sessions=parsed.sessions,
        sessions_bytes=parsed.sessions_quota,
        is_json=parsed.json,
    )


def _add_capacity(parser: Parser) -> None:
    group = parser.add_argument_group("capacity")
    group.add_argument(
        "--parallel",
        metavar="N",
        type=whole(1, _MAX_PARALLEL),
        default=8,
        help="answers at once, each with its whole context (default: 8)",
    )
    group.add_argument(
        "--queue",
        metavar="N",
        type=whole(0, _MAX_QUEUE),
        default=128,
        help="requests that may wait; more get 503 (default: 128)",
    )
    group.add_argument(
        "--drain",
        metavar="SECONDS",
        type=real(0, 86_400),
        default=30.0,
        help="how long running answers may go on after Ctrl-C or SIGTERM (default: 30)",
    )
    group.add_argument(
        "--stuck",
        metavar="SECONDS",
        type=real(0, 86_400),
        default=300.0,
        help="how long one step may take before the model's process is taken to hang, and is "
        "started again; 0 waits for ever (default: 300)",
    )


def _add_sessions(parser: Parser) -> None:
    group = parser.add_argument_group("sessions")
    group.add_argument(
        "--sessions",
        metavar="DIR",
        type=Path,
        help="keep conversations here when the server ends, so that the next one does not compute "
        "them again; by default none are kept",
    )
    group.add_argument(
        "--sessions-quota",
        metavar="SIZE",
        type=size_bytes,
        default=8 << 30,
        help="what that directory may hold; those used longest ago go first (default: 8GiB)",
    )


def _add_network(parser: Parser) -> None:
    group = parser.add_argument_group("network")
    group.add_argument(
        "--host", metavar="NAME", default="127.0.0.1", help="where to listen (default: 127.0.0.1)"
    )
    group.add_argument(
        "--port",
        metavar="N",
        type=whole(0, _MAX_PORT),
        default=DEFAULT_PORT,
        help=f"port to listen on; 0 takes a free one (default: {DEFAULT_PORT})",
    )
    group.add_argument(
        "--api-key",
        metavar="KEY",
        action="append",
        default=[],
        type=options.utf8,
        help="let in only who shows this key; may be repeated. Others can see it in the list of "
        "processes: better use --api-key-file or CORRAL_API_KEY",
    )
    group.add_argument(
        "--api-key-file", metavar="FILE", type=Path, help="file with keys, one on each line"
    )
    group.add_argument(
        "--alias",
        metavar="NAME",
        action="append",
        default=[],
        type=options.utf8,
        help="a further name of the model; * accepts any name; may be repeated",
    )
    group.add_argument(
        "--allowed-host",
        metavar="NAME",
        action="append",
        default=[],
        help="a name by which clients may call this server, beside localhost; may be repeated",
    )
    group.add_argument(
        "--cors-origin",
        metavar="ORIGIN",
        action="append",
        default=[],
        help="let pages of this origin ask, such as https://example.org; may be repeated",
    )


def _keys(parsed: Namespace) -> tuple[str, ...]:
    keys = [*parsed.api_key]
    if settings().api_key is not None:
        keys.append(settings().api_key)
    if parsed.api_key_file is not None:
        keys += _keys_in(parsed.api_key_file)
    if not all(key.strip() == key and key for key in keys):
        raise UsageError("an API key is empty, or has spaces around it")
    return tuple(keys)


def _keys_in(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_KEY_FILE_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read keys from {path}: {error}") from error
    keys = [line.strip() for line in text.splitlines() if line.strip()]
    if not keys:
        raise UsageError(f"there is no key in {path}: put one on each line")
    return keys
