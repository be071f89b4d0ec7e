"""`corral serve`: a model behind an OpenAI-compatible HTTP API.

    resolve the file ─▶ bind the port ─▶ start the worker ─▶ serve, 503 until it is ready ─▶ drain

The worker is a process of its own; this one loads no model.
"""

import ipaddress
import socket
import threading
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from corral.cli import arguments as options
from corral.cli.arguments import LoadOptions, Parser, real, whole
from corral.cli.output import finish, note, print_json, say
from corral.cli.progress import ProgressDisplay
from corral.config import settings
from corral.errors import CorralError, ResourceError, UsageError

if TYPE_CHECKING:
    from corral.api.readings import DeviceState
    from corral.api.server import Server
    from corral.api.settings import ApiSettings
    from corral.contract.sampling import SamplingParams
    from corral.contract.worker import WorkerSpec, WorkerStatus
    from corral.gguf.metadata import Metadata
    from corral.router.supervisor import Supervisor

DEFAULT_PORT = 8080
_MAX_PORT = 65_535
_MAX_PARALLEL = 1024
_MAX_QUEUE = 65_536
_MAX_KEY_FILE_BYTES = 1 << 20
_LOOK_S = 0.2


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
    is_json: bool


def execute(given: Sequence[str]) -> int:
    """Serve until a signal, and return the exit code."""
    serve = _parse(given)
    from corral.api.app import make_app
    from corral.api.server import RunOptions, Server, bind
    from corral.hub.resolve import resolve

    with ProgressDisplay() as display:
        path = resolve(serve.load.model, progress=display)
    api = _api_settings(serve, path)
    _warn_if_open(serve)
    with bind(serve.host, serve.port) as bound:
        address = url(serve.host, bound.getsockname()[1])
        with _supervised(_spec(serve, path), serve.stuck_s or None) as worker:
            app = make_app(worker, api, worker=lambda: worker.status, devices=_devices)
            server = Server(app, RunOptions(drain_s=serve.drain_s, limits=api.limits))
            watch = _Watch(worker, server, serve, address)
            try:
                server.run_on(bound, on_started=watch.start)
            finally:
                watch.end()
    if watch.failure is not None:
        raise watch.failure
    return 0


def _supervised(spec: "WorkerSpec", stuck_s: float | None) -> "Supervisor":
    from corral.router.supervisor import supervise

    return supervise(spec, stuck_s=stuck_s)


def _parse(given: Sequence[str]) -> ServeOptions:
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


def _spec(serve: ServeOptions, path: Path) -> "WorkerSpec":
    from corral.contract.worker import WorkerSpec

    return WorkerSpec(
        model=str(path),
        devices=serve.load.devices,
        split=serve.load.split,
        gpu_layers=serve.load.gpu_layers,
        context=serve.load.context,
        parallel=serve.parallel,
        kv_type=serve.load.kv_type,
        threads=serve.load.threads,
        embeddings=serve.embeddings,
        queue_capacity=serve.queue,
        drain_s=serve.drain_s,
    )


def _api_settings(serve: ServeOptions, path: Path) -> "ApiSettings":
    from corral.api.security import digest
    from corral.api.settings import LOOPBACK_HOSTS, MAX_SEQUENCES, STUCK_S, ApiSettings, Limits

    own = set() if is_loopback(serve.host) else {socket.gethostname().lower()}
    name = serve.load.model
    shown = path.stem if Path(name).exists() else name  # where files lie is nobody's business
    return ApiSettings(
        model=shown,
        aliases=tuple(dict.fromkeys((*serve.aliases, path.name, path.stem))),
        key_digests=tuple(digest(key) for key in serve.keys),
        allowed_hosts=LOOPBACK_HOSTS | own | {serve.host.lower()} | set(serve.allowed_hosts),
        allows_addresses=not is_loopback(serve.host),
        cors_origins=serve.cors_origins,
        sampling=_sampling(path),
        stuck_s=min(STUCK_S, serve.stuck_s / 2) if serve.stuck_s else STUCK_S,
        limits=Limits(sequences=min(MAX_SEQUENCES, serve.parallel + serve.queue)),
    )


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    metadata: "Metadata"


def _sampling(path: Path) -> "SamplingParams":
    """Return what the model's makers advise, else the defaults."""
    from corral.cli.loading import blamed
    from corral.cli.sampling import choose
    from corral.gguf.reader import read_header

    with blamed(path):
        header = read_header(path, skip_arrays=True)
    return choose(_File(path.name, header.metadata), {})


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


def _warn_if_open(serve: ServeOptions) -> None:
    if not is_loopback(serve.host) and not serve.keys:
        note(
            f"anybody who reaches {serve.host} may use this server: --api-key-file or "
            "CORRAL_API_KEY lets in only who has a key"
        )


def _devices() -> "list[DeviceState]":
    from corral.api.readings import DeviceState
    from corral.devices.listing import machine_listing

    return [
        DeviceState(
            name=device.name,
            title=device.title,
            total_bytes=device.total_bytes,
            free_bytes=device.free_bytes,
            foreign_bytes=device.foreign_bytes,
        )
        for device in machine_listing().devices
    ]


class _Watch:
    """Shows how far the worker is; stops the server if there will be no worker."""

    def __init__(
        self, worker: "Supervisor", server: "Server", serve: ServeOptions, address: str
    ) -> None:
        self.failure: CorralError | None = None
        self._worker = worker
        self._server = server
        self._serve = serve
        self._address = address
        self._is_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="corral-serve-watch", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self) -> None:
        """End, and wait for it."""
        self._is_ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        from corral.contract.worker import WorkerState

        state: WorkerState | None = None
        with ProgressDisplay() as display:
            while not self._is_ended.is_set():
                status = self._worker.status
                if status.state is not state:
                    state = status.state
                    display.close()
                    self._tell(status)
                if state is WorkerState.LOADING and status.stage:
                    display(status.stage, status.done, status.total)
                if state is WorkerState.FAILED:
                    return
                self._is_ended.wait(_LOOK_S)

    def _tell(self, status: "WorkerStatus") -> None:
        from corral.contract.events import error_of
        from corral.contract.worker import WorkerState

        match status.state:
            case WorkerState.LOADING:
                note(f"loading {self._serve.load.model} for {self._address}")
            case WorkerState.READY:
                with suppress(BrokenPipeError, ResourceError):  # nobody has to read it
                    self._announce()
            case WorkerState.RESTARTING:
                note(f"the model's process ended ({status.error}); starting it again")
            case WorkerState.FAILED:
                self.failure = error_of(status.error_code, status.error)
                self._server.stop()

    def _announce(self) -> None:
        if self._serve.is_json:
            print_json({"url": self._address, "model": self._serve.load.model})
        else:
            say(f"{self._serve.load.model} is served at {self._address}")
        finish()
