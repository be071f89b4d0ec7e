"""What `corral serve` is asked: one model or many, where to listen, who may ask."""

import ipaddress
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from corral.cli import arguments as options
from corral.cli.arguments import LoadOptions, Parser, real, size_bytes, whole
from corral.cli.output import note
from corral.config import settings
from corral.errors import UsageError

if TYPE_CHECKING:
    from corral.router.config import RouterConfig, ServerSettings

DEFAULT_PORT = 8080
_MAX_PORT = 65_535
_MAX_PARALLEL = 1024
_MAX_QUEUE = 65_536
_MAX_KEY_FILE_BYTES = 1 << 20
_OF_A_MODEL = (
    *("device", "split", "gpu_layers", "context", "kv_type", "threads"),
    *("context_shift", "keep", "embeddings", "parallel", "queue", "lora"),
)


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
    """Where conversations outlive the process; None keeps none, or of many models those in the
    cache directory."""
    sessions_bytes: int
    is_json: bool
    models: tuple[str, ...] = ()
    """Folders of models."""
    config: Path | None = None

    @property
    def is_of_many(self) -> bool:
        """Whether many models are served, each loaded when it is wanted."""
        return bool(self.models) or self.config is not None

    def read_config(self) -> "RouterConfig":
        """Read the configuration, or make one of the options.

        Raises:
            InvalidArgument: with every mistake that is in the file.
        """
        from corral.router.config import EVERY_MODEL, RouterConfig, ServerSettings, read_config
        from corral.router.entry import Preset

        if self.config is not None:
            return read_config(self.config)
        load = self.load
        preset = Preset(
            name=EVERY_MODEL,
            devices=load.devices,
            split=load.split,
            context=load.context,
            parallel=self.parallel,
            kv_type=load.kv_type,
            context_shift=load.context_shift,
            keep=load.keep,
            embeddings=self.embeddings,
            threads=load.threads,
            queue=self.queue,
            drain_s=self.drain_s,
        )
        return RouterConfig(server=ServerSettings(models=self.models), others=preset)


def parse(given: Sequence[str]) -> ServeOptions:
    """Take a command line.

    Raises:
        UsageError: naming what is wrong with it.
        InvalidArgument: with every mistake of a configuration.
    """
    parser = Parser(
        "serve",
        "[-m MODEL | --models DIR | --config FILE] [OPTIONS]",
        "Serve a model, or many that are loaded when they are wanted, over HTTP: OpenAI's routes, "
        "llama-server's, metrics and a page.",
    )
    options.add_json(parser)
    group = parser.add_argument_group("model")
    shown = f"{options.MODEL_HELP} (default: demo)"
    group.add_argument("-m", "--model", metavar="MODEL", help=shown)
    group.add_argument(
        "--models",
        metavar="DIR",
        action="append",
        default=[],
        help="serve every GGUF file below this folder; may be repeated",
    )
    group.add_argument(
        "--config", metavar="FILE", type=Path, help="serve the models of a configuration (TOML)"
    )
    options.add_load_options(group)
    options.add_shift(group)
    group.add_argument(
        "--embeddings", action="store_true", help="answer /v1/embeddings too, by the last token"
    )
    _add_capacity(parser)
    _add_sessions(parser)
    _add_network(parser)
    parsed = parser.parse_args(given)
    _require_one_source(parsed)
    _require_none_of_a_model(parsed, parser)
    server = _server_settings(parsed)
    return ServeOptions(
        load=LoadOptions.of(parsed),
        embeddings=parsed.embeddings,
        parallel=parsed.parallel,
        queue=parsed.queue,
        host=server.host if parsed.host is None else parsed.host,
        port=server.port if parsed.port is None else parsed.port,
        keys=_keys(parsed, server),
        aliases=tuple(parsed.alias),
        allowed_hosts=tuple(n.lower() for n in (*server.allowed_hosts, *parsed.allowed_host)),
        cors_origins=(*server.cors_origins, *parsed.cors_origin),
        drain_s=server.drain if parsed.drain is None else parsed.drain,
        stuck_s=parsed.stuck,
        sessions=_sessions(parsed, server),
        sessions_bytes=server.sessions_quota
        if parsed.sessions_quota is None
        else parsed.sessions_quota,
        is_json=parsed.json,
        models=tuple(parsed.models),
        config=parsed.config,
    )


def _require_one_source(parsed: Namespace) -> None:
    sources = {"-m": parsed.model, "--models": parsed.models, "--config": parsed.config}
    given = [name for name, value in sources.items() if value]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} say different things: give one of them")
    if parsed.models and parsed.lora:
        raise UsageError("--lora changes one model: name the adapters of each in a configuration")
    if parsed.models and parsed.gpu_layers is not None:
        raise UsageError("--gpu-layers is for one model: with several, memory decides")
    if (parsed.models or parsed.config) and parsed.alias:
        raise UsageError("--alias names one model: give aliases in a configuration")
    if not given:
        parsed.model = options.DEFAULT_MODEL


def _require_none_of_a_model(parsed: Namespace, parser: Parser) -> None:
    """Refuse options of a model where a configuration has them, rather than not heed them."""
    if parsed.config is None:
        return
    given = [name for name in _OF_A_MODEL if getattr(parsed, name) != parser.get_default(name)]
    if given:
        options_given = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"with --config, {options_given} belongs into it, under [models.'*']")


def _sessions(parsed: Namespace, server: "ServerSettings") -> Path | None:
    given: Path | None = parsed.sessions
    return Path(server.sessions) if given is None and server.sessions else given


def _server_settings(parsed: Namespace) -> "ServerSettings":
    from corral.router.config import ServerSettings, read_config

    return ServerSettings() if parsed.config is None else read_config(parsed.config).server


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
        help="what that directory may hold; those used longest ago go first (default: 8GiB)",
    )


def _add_network(parser: Parser) -> None:
    group = parser.add_argument_group("network")
    group.add_argument("--host", metavar="NAME", help="where to listen (default: 127.0.0.1)")
    group.add_argument(
        "--port",
        metavar="N",
        type=whole(0, _MAX_PORT),
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


def _keys(parsed: Namespace, server: "ServerSettings") -> tuple[str, ...]:
    keys = [*parsed.api_key]
    if settings().api_key is not None:
        keys.append(settings().api_key)
    file = parsed.api_key_file or server.api_key_file
    if file is not None:
        keys += _keys_in(Path(file))
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


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host name or address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def url(host: str, port: int) -> str:
    """Return the address of a server for people to click at."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def warn_if_open(serve: ServeOptions) -> None:
    """Note that others may use the server, if they may."""
    if not is_loopback(serve.host) and not serve.keys:
        note(
            f"anybody who reaches {serve.host} may use this server: --api-key-file or "
            "CORRAL_API_KEY lets in only who has a key"
        )
