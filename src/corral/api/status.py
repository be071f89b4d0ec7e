"""GET /corral/status and /corral/events: what the page shows, one object a second."""

import asyncio
import time
from abc import ABC, abstractmethod
from contextlib import suppress

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from corral.api.presence import gone
from corral.api.readings import DeviceState
from corral.api.routing import ApiRoute, get, json_reply
from corral.api.serving import ServingOne, serving_of
from corral.api.sse import HEADERS, encode
from corral.contract.fleet import ModelStatus
from corral.contract.questions import Description, MemoryRow, ServiceStatistics, SlotState
from corral.contract.worker import WorkerState, WorkerStatus
from corral.errors import CorralError

LIFETIMES = ("weights", "state", "scratch", "records", "staging", "context")
_EVERY_S = 1.0


class HeldDevice(msgspec.Struct, kw_only=True):
    """A device, and what is held of it, in bytes; a number that nobody knows is null."""

    name: str
    title: str
    total_bytes: int | None
    free_bytes: int | None
    foreign_bytes: int | None
    held: dict[str, int]


class RequestCounts(msgspec.Struct):
    """How many requests there are."""

    running: int = 0
    waiting: int = 0
    finished: int = 0


class Rates(msgspec.Struct):
    """Tokens a second, over the last second or since the last look."""

    prompt: float = 0.0
    generation: float = 0.0


class Blocks(msgspec.Struct):
    """Blocks of the KV cache."""

    used_blocks: int = 0
    total_blocks: int = 0


class Progress(msgspec.Struct):
    """What a worker does while it loads."""

    stage: str
    done: int
    total: int


class StatusReply(msgspec.Struct, kw_only=True):
    """Everything at one moment."""

    model: str
    state: str
    progress: Progress | None
    restarts: int
    error: str | None
    context: int | None
    devices: list[HeldDevice]
    requests: RequestCounts
    tokens_per_s: Rates
    kv: Blocks
    slots: tuple[SlotState, ...]
    models: tuple[ModelStatus, ...] = ()
    """Of a server that has many."""


def routes() -> list[ApiRoute]:
    """Return the routes of this file."""
    return [get("/corral/status", status), get("/corral/events", events)]


async def status(request: Request) -> Response:
    """Return the state of everything: devices, requests, speed, blocks."""
    return json_reply(await feed_of(request).newest())


async def events(request: Request) -> Response:
    """Stream the state of everything, once a second."""
    return StatusStream(feed_of(request), serving_of(request).stopping)


def feed_of(request: Request) -> "Feed":
    """Return what makes the statuses of a request's application."""
    feed: Feed = request.app.state.status_feed
    return feed


class Feed(ABC):
    """Makes one status a second, however many look."""

    def __init__(self) -> None:
        """Begin without one."""
        self._lock = asyncio.Lock()
        self._made_at = float("-inf")
        self._newest: StatusReply | None = None

    async def newest(self) -> StatusReply:
        """Return the status as it was at most a second ago."""
        async with self._lock:
            now = time.monotonic()
            if self._newest is None or now - self._made_at >= _EVERY_S * 0.9:
                self._newest = await self._make(now - self._made_at)
                self._made_at = now
            return self._newest

    @abstractmethod
    async def _make(self, elapsed_s: float) -> StatusReply:
        """Return the state of everything now, so long after the one before."""


class StatusFeed(Feed):
    """Tells of one model."""

    def __init__(self, serving: ServingOne) -> None:
        """Tell of a service."""
        super().__init__()
        self._serving = serving
        self._before: ServiceStatistics | None = None

    async def _make(self, elapsed_s: float) -> StatusReply:
        serving = self._serving
        worker = serving.status()
        held: ServiceStatistics | None = None
        runs: Description | None = None
        if worker.state is WorkerState.READY:
            with suppress(CorralError):  # what cannot be told now is left out
                held, runs = await serving.model.statistics(), await serving.model.describe()
        rates = rates_between(self._before, held, elapsed_s)
        self._before = held
        devices = await serving.readings.newest()
        return status_reply(serving.settings.model, worker, runs, held, (devices, rates))


def status_reply(
    model: str,
    worker: WorkerStatus,
    runs: Description | None,
    held: ServiceStatistics | None,
    measured: tuple[tuple[DeviceState, ...], Rates],
) -> StatusReply:
    """Return the status of what is known; what is unknown is empty."""
    devices, rates = measured
    counts = held or ServiceStatistics()
    loading = worker.state in (WorkerState.LOADING, WorkerState.RESTARTING)
    return StatusReply(
        model=model,
        state=worker.state.value,
        progress=Progress(worker.stage, worker.done, worker.total) if loading else None,
        restarts=worker.restarts,
        error=worker.error_code or None,
        context=runs.context if runs else None,
        devices=held_devices(devices, runs.memory if runs else ()),
        requests=RequestCounts(
            counts.running_requests, counts.waiting_requests, counts.finished_requests
        ),
        tokens_per_s=rates,
        kv=Blocks(counts.kv_blocks_used, counts.kv_blocks_total),
        slots=counts.slots,
    )


def rates_between(
    before: ServiceStatistics | None, now: ServiceStatistics | None, elapsed_s: float
) -> Rates:
    """Return tokens a second between two looks; 0 where there is only one, or a new worker."""
    if before is None or now is None or now.steps < before.steps:
        return Rates()
    computed = _computed(now) - _computed(before)
    generated = _generated(now) - _generated(before)
    return Rates(max(computed, 0) / elapsed_s, max(generated, 0) / elapsed_s)


# The service counts requests that have ended; those that run are added from their slots.


def _computed(statistics: ServiceStatistics) -> int:
    running = (
        min(slot.computed_tokens, slot.prompt_tokens) - slot.cached_tokens
        for slot in statistics.slots
    )
    return statistics.prompt_tokens - statistics.cached_tokens + sum(running)


def _generated(statistics: ServiceStatistics) -> int:
    return statistics.generated_tokens + sum(s.generated_tokens for s in statistics.slots)


def held_devices(
    devices: tuple[DeviceState, ...], memory: tuple[MemoryRow, ...]
) -> list[HeldDevice]:
    """Return every device with what the model holds of it.

    To whoever reads a device from outside, what the model's process holds is foreign, too: so on
    its devices, foreign is what is neither free nor held.
    """
    held: dict[str, dict[str, int]] = {}
    for row in memory:
        lifetimes = held.setdefault(row.device, dict.fromkeys(LIFETIMES, 0))
        lifetimes[row.lifetime] = lifetimes.get(row.lifetime, 0) + row.allocated_bytes
    known = {device.name for device in devices}
    unread = [
        DeviceState(name=name, title=name, total_bytes=None, free_bytes=None)
        for name in held
        if name not in known
    ]
    return [_held_device(device, held.get(device.name)) for device in (*devices, *unread)]


def _held_device(device: DeviceState, held: dict[str, int] | None) -> HeldDevice:
    foreign = device.foreign_bytes
    if held is not None and device.total_bytes is not None and device.free_bytes is not None:
        foreign = max(0, device.total_bytes - device.free_bytes - sum(held.values()))
    return HeldDevice(
        name=device.name,
        title=device.title,
        total_bytes=device.total_bytes,
        free_bytes=device.free_bytes,
        foreign_bytes=foreign,
        held=held or dict.fromkeys(LIFETIMES, 0),
    )


class StatusStream(Response):
    """Sends a status a second until the client leaves or the server stops."""

    def __init__(self, feed: Feed, stopping: asyncio.Event) -> None:
        """Tell what a feed tells."""
        self._feed = feed
        self._stopping = stopping
        self.status_code = 200
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything."""
        left = asyncio.create_task(gone(receive))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS]})
            while not left.done() and not stopping.done():
                data = encode(await self._feed.newest())
                await send({"type": "http.response.body", "body": data, "more_body": True})
                await asyncio.wait(
                    (left, stopping), timeout=_EVERY_S, return_when=asyncio.FIRST_COMPLETED
                )
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            left.cancel()
            stopping.cancel()
