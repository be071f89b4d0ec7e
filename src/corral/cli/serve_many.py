"""`corral serve --models` and `--config`: many models, each loaded when it is wanted.

    configuration ─▶ workers of a dead router ended ─▶ port ─▶ catalog ─▶ router ─▶ serve ─▶ drain

SIGHUP reads the configuration and the folders again. This process loads no model, no array and no
driver: workers do.
"""

import functools
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from corral.cli.output import finish, note, print_json, say
from corral.cli.serve_options import ServeOptions, is_loopback, url, warn_if_open
from corral.config import settings
from corral.contract.fleet import FleetEvent, ModelState
from corral.contract.sampling import SamplingParams
from corral.errors import CorralError, ResourceError
from corral.paths import CacheTree

if TYPE_CHECKING:
    from corral.api.settings import ApiSettings
    from corral.gguf.metadata import Metadata
    from corral.router.catalog import Catalog
    from corral.router.entry import ModelEntry
    from corral.router.orphans import Records
    from corral.router.router import Router
    from corral.router.sight import Sight

_SHOWN_STATES = (ModelState.READY, ModelState.FAILED, ModelState.DRAINING, ModelState.UNLOADED)


def serve_many(serve: ServeOptions) -> int:
    """Serve until a signal, and return the exit code."""
    from corral.api.app import make_fleet_app
    from corral.api.server import RunOptions, Server, bind
    from corral.cli.serve import read_devices
    from corral.router.orphans import Records

    api = _api_settings(serve)
    warn_if_open(serve)
    records = Records(CacheTree(settings().cache).workers())
    for pid in records.sweep():
        note(f"ended worker {pid}, which a server that is gone had left")
    with ExitStack() as stack:
        bound = stack.enter_context(bind(serve.host, serve.port))
        catalog = stack.enter_context(_catalog(serve))
        router = _router(serve, catalog, records)
        stack.callback(router.close)
        stack.callback(router.subscribe(_tell))
        stack.enter_context(_reloading_at_hangup(router))
        app = make_fleet_app(router, api, devices=read_devices)
        server = Server(app, RunOptions(drain_s=serve.drain_s, limits=api.limits))
        address = url(serve.host, bound.getsockname()[1])
        server.run_on(bound, on_started=lambda: _announce(serve, router, address))
    return 0


def _catalog(serve: ServeOptions) -> "Catalog":
    from corral.hub.resolve import resolve
    from corral.router.catalog import Catalog
    from corral.router.header_index import HeaderIndex
    from corral.router.machine import machine_readings
    from corral.router.planner import Planner

    tree = CacheTree(settings().cache)
    has_cards = any(reading.name != "cpu" for reading in machine_readings())
    return Catalog(
        serve.read_config,
        Planner(),
        HeaderIndex(tree.headers_file()),
        kinds=("cpu", "cuda") if has_cards else ("cpu",),
        resolve=resolve,
        cache_folder=tree.models(),
    )


def _router(serve: ServeOptions, catalog: "Catalog", records: "Records") -> "Router":
    from corral.router.children import Keeping, WorkerChild
    from corral.router.moves import Patience
    from corral.router.router import Router

    server = catalog.config.server
    folder = serve.sessions or CacheTree(settings().cache).sessions()
    stuck_s = serve.stuck_s or None
    keeping = Keeping(str(folder.resolve()), serve.sessions_bytes)
    return Router(
        catalog,
        functools.partial(WorkerChild, records=records, keeping=keeping, stuck_s=stuck_s),
        functools.partial(_read, catalog),
        sampling=_sampling,
        policy=server.policy,
        patience=Patience(most_waiting=server.waiting),
    )


def _read(catalog: "Catalog") -> "Sight":
    from corral.router.machine import (
        card_context_bytes,
        machine_of,
        machine_readings,
        used_by_processes,
    )
    from corral.router.sight import Sight

    readings = machine_readings()
    machine = machine_of(readings, catalog.config, card_context_bytes)
    return Sight(machine, used_by_processes(readings))


def _api_settings(serve: ServeOptions) -> "ApiSettings":
    from corral.api.security import digest
    from corral.api.settings import LOOPBACK_HOSTS, ApiSettings

    own = set() if is_loopback(serve.host) else {socket.gethostname().lower()}
    return ApiSettings(
        model="",
        key_digests=tuple(digest(key) for key in serve.keys),
        allowed_hosts=LOOPBACK_HOSTS | own | {serve.host.lower()} | set(serve.allowed_hosts),
        allows_addresses=not is_loopback(serve.host),
        cors_origins=serve.cors_origins,
    )


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    metadata: "Metadata"


def _sampling(entry: "ModelEntry") -> SamplingParams:
    """Return what the makers of a model advise, and over it what its preset says."""
    advised = dict(_advice(entry.paths[0], entry.modified_s)) if entry.paths else {}
    return SamplingParams(**{**advised, **entry.preset.sampling})  # type: ignore[arg-type]


@functools.lru_cache(maxsize=1024)
def _advice(path: str, modified_s: float) -> dict[str, float]:
    from corral.cli.sampling import advice
    from corral.gguf.reader import read_header

    try:
        header = read_header(Path(path), skip_arrays=True)
    except (CorralError, OSError):  # the load will say what is wrong with it
        return {}
    return advice(_File(Path(path).name, header.metadata))


@contextmanager
def _reloading_at_hangup(router: "Router") -> Iterator[None]:
    """Have SIGHUP read everything again; what is wrong is noted, and changes nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def reload() -> None:
        try:
            changes = router.reload()
        except CorralError as error:
            note(f"nothing was changed: {error}")
        else:
            note("; ".join(changes) or "nothing has changed")

    def begin(number: int, frame: FrameType | None) -> None:
        threading.Thread(target=reload, name="corral-reload", daemon=True).start()

    before = signal.signal(signal.SIGHUP, begin)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def _tell(event: FleetEvent) -> None:
    """Note what happened to a model."""
    if event.state in _SHOWN_STATES:
        note(f"{event.model} is {event.state.value}: {event.reason}")


def _announce(serve: ServeOptions, router: "Router", address: str) -> None:
    count = len(router.names())
    with suppress(BrokenPipeError, ResourceError):  # nobody has to read it
        if serve.is_json:
            print_json({"url": address, "models": count})
        else:
            say(f"{count} models are served at {address}")
            if count == 0:
                say("no GGUF file was found: add some and send SIGHUP, or POST /models/reload")
        finish()
