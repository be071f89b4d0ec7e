"""`corral serve`: a model behind an OpenAI-compatible HTTP API; serve_many.py is for many.

    resolve the file ─▶ bind the port ─▶ start the worker ─▶ serve, 503 until it is ready ─▶ drain

The worker is a process of its own; this one loads no model.
"""

import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from corral.cli.output import finish, note, print_json, say
from corral.cli.progress import ProgressDisplay
from corral.cli.serve_options import ServeOptions, is_loopback, parse, url, warn_if_open
from corral.errors import CorralError, ResourceError

if TYPE_CHECKING:
    from corral.api.readings import DeviceState
    from corral.api.server import Server
    from corral.api.settings import ApiSettings
    from corral.contract.sampling import SamplingParams
    from corral.contract.worker import WorkerSpec, WorkerStatus
    from corral.gguf.metadata import Metadata
    from corral.router.supervisor import Supervisor

_LOOK_S = 0.2


def execute(given: Sequence[str]) -> int:
    """Serve until a signal, and return the exit code."""
    serve = parse(given)
    if serve.is_of_many:
        from corral.cli.serve_many import serve_many

        return serve_many(serve)
    return _serve_one(serve)


def _serve_one(serve: ServeOptions) -> int:
    from corral.api.app import make_app
    from corral.api.server import RunOptions, Server, bind
    from corral.hub.resolve import resolve

    with ProgressDisplay() as display:
        path = resolve(serve.load.model, progress=display)
    api = _api_settings(serve, path)
    warn_if_open(serve)
    with bind(serve.host, serve.port) as bound:
        address = url(serve.host, bound.getsockname()[1])
        with _supervised(_spec(serve, path), serve.stuck_s or None) as worker:
            app = make_app(worker, api, worker=lambda: worker.status, devices=read_devices)
            server = Server(app, RunOptions(drain_s=serve.drain_s, limits=api.limits))
            watch = _Watch(worker, server, serve, address)
            try:
                server.run_on(bound, on_started=watch.start)
            finally:
                watch.end()
            if serve.sessions is not None:
                _tell_saved(worker)
    if watch.failure is not None:
        raise watch.failure
    return 0


def _tell_saved(worker: "Supervisor") -> None:
    """Have the worker save its conversations and end, and say what became of them."""
    saved = worker.drain()
    if saved is None:
        note("no conversation was saved: the model's process ended before")
    elif saved.reason:
        note(f"conversations saved: {saved.sessions}; others were not: {saved.reason}")
    else:
        note(f"conversations saved: {saved.sessions} ({saved.tokens:,} tokens)")


def _supervised(spec: "WorkerSpec", stuck_s: float | None) -> "Supervisor":
    from corral.router.supervisor import supervise

    return supervise(spec, stuck_s=stuck_s)


def _spec(serve: ServeOptions, path: Path) -> "WorkerSpec":
    from corral.contract.worker import AdapterSpec, WorkerSpec

    return WorkerSpec(
        model=str(path),
        devices=serve.load.devices,
        split=serve.load.split,
        gpu_layers=serve.load.gpu_layers,
        context=serve.load.context,
        parallel=serve.parallel,
        kv_type=serve.load.kv_type,
        context_shift=serve.load.context_shift,
        keep=serve.load.keep,
        threads=serve.load.threads,
        embeddings=serve.embeddings,
        adapters=tuple(
            AdapterSpec(str(Path(file).resolve()), scale) for file, scale in serve.load.adapters
        ),
        queue_capacity=serve.queue,
        drain_s=serve.drain_s,
        sessions=None if serve.sessions is None else str(serve.sessions.resolve()),
        sessions_bytes=serve.sessions_bytes,
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


def read_devices() -> "list[DeviceState]":
    """Return the devices of this machine as the page shows them."""
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
                self._tell_restored()
                with suppress(BrokenPipeError, ResourceError):  # nobody has to read it
                    self._announce()
            case WorkerState.RESTARTING:
                note(f"the model's process ended ({status.error}); starting it again")
            case WorkerState.FAILED:
                self.failure = error_of(status.error_code, status.error)
                self._server.stop()

    def _tell_restored(self) -> None:
        restored = self._worker.restored if self._serve.sessions is not None else None
        if restored is not None:
            what = f"{restored.sessions} ({restored.tokens:,} tokens)"
            note(restored.reason or f"conversations known from before: {what}")

    def _announce(self) -> None:
        if self._serve.is_json:
            print_json({"url": self._address, "model": self._serve.load.model})
        else:
            say(f"{self._serve.load.model} is served at {self._address}")
        finish()
