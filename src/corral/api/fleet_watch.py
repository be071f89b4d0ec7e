"""How a server of many models is: /health, /metrics, /corral/fleet, events of models.

The page's status of all of them is made here, too; status.py serves it.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from corral.api.errors import Problem
from corral.api.fleet_models import in_thread
from corral.api.meters import CONTENT_TYPE
from corral.api.presence import gone
from corral.api.routing import ApiRoute, get, json_reply
from corral.api.serving import ServingMany, many_of
from corral.api.sse import HEADERS, PING, encode
from corral.api.status import (
    Blocks,
    Feed,
    Progress,
    Rates,
    RequestCounts,
    StatusReply,
    held_devices,
    rates_between,
)
from corral.contract.fleet import FleetEvent, FleetStatus, ModelState, ModelStatus
from corral.contract.questions import MemoryRow, ServiceStatistics
from corral.errors import CorralError

_MOST_EVENTS = 1000
"""That may wait for one client; one who reads more slowly is let go."""


def routes() -> list[ApiRoute]:
    """Return the routes of this file."""
    return [
        get("/health", health),
        get("/v1/health", health),
        get("/metrics", metrics),
        get("/corral/fleet", fleet),
        get("/models/events", events),
    ]


async def health(request: Request) -> Response:
    """Tell ok, or 503 while stopping, or when requests wait long and nothing is being loaded."""
    serving = many_of(request)
    serving.require_open()
    told = await in_thread(serving, serving.fleet.status)
    if told.longest_wait_s > serving.settings.stuck_s:
        text = f"a request waits for its model since {told.longest_wait_s:.0f} s"
        return Problem(503, text, code=503).response()
    return json_reply({"status": "ok"})


async def metrics(request: Request) -> Response:
    """Return all series."""
    serving = many_of(request)
    told = await in_thread(serving, serving.fleet.status)
    held = await _statistics(serving, told)
    text = serving.meters.exposition(told, held)
    return Response(text, headers={"Content-Type": CONTENT_TYPE})


async def fleet(request: Request) -> Response:
    """Return what is known of every model and device."""
    serving = many_of(request)
    return json_reply(await in_thread(serving, serving.fleet.status))


async def events(request: Request) -> Response:
    """Stream what happens to models, from now on."""
    return EventStream(many_of(request))


async def _statistics(serving: ServingMany, told: FleetStatus) -> dict[str, ServiceStatistics]:
    """Return what each loaded model holds; what does not answer is left out."""
    held: dict[str, ServiceStatistics] = {}
    for model in told.models:
        if model.state is ModelState.READY:
            with suppress(CorralError):
                held[model.name] = await serving.find(model.name).statistics()
    return held


class FleetFeed(Feed):
    """Tells of many models at once."""

    def __init__(self, serving: ServingMany) -> None:
        """Tell of a fleet."""
        super().__init__()
        self._serving = serving
        self._before: dict[str, ServiceStatistics] = {}

    async def _make(self, elapsed_s: float) -> StatusReply:
        serving = self._serving
        told = await in_thread(serving, serving.fleet.status)
        held = await _statistics(serving, told)
        rates = [rates_between(self._before.get(name), held[name], elapsed_s) for name in held]
        self._before = held
        devices = await serving.readings.newest()
        loading = next((one for one in told.models if one.state is ModelState.LOADING), None)
        names = {device.memory: device.name for device in told.devices}
        memory = tuple(row for one in told.models for row in _rows(one, names))
        return StatusReply(
            model=_shown(told),
            state="ready",
            progress=Progress(loading.stage, loading.done, loading.total) if loading else None,
            restarts=sum(one.crashes for one in told.models),
            error=None,
            context=None,
            devices=held_devices(devices, memory),
            requests=RequestCounts(
                running=sum(one.running_requests for one in held.values()),
                waiting=told.waiting + sum(one.waiting_requests for one in held.values()),
                finished=sum(one.finished_requests for one in held.values()),
            ),
            tokens_per_s=Rates(
                prompt=sum(one.prompt for one in rates),
                generation=sum(one.generation for one in rates),
            ),
            kv=_blocks(held),
            slots=tuple(slot for one in held.values() for slot in one.slots),
            models=tuple(one for one in told.models if one.generation or one.is_pinned),
        )


def _rows(model: ModelStatus, names: dict[str, str]) -> list[MemoryRow]:
    """Return what a model holds by the names of devices; all as weights until its process tells."""
    return [
        MemoryRow(names.get(held.device, held.device), lifetime, size, size)
        for held in model.held
        for lifetime, size in (held.lifetimes or {"weights": held.planned_bytes}).items()
    ]


def _shown(told: FleetStatus) -> str:
    loaded = [one.name for one in told.models if one.state is ModelState.READY]
    return ", ".join(loaded) or f"{len(told.models)} models"


def _blocks(held: dict[str, ServiceStatistics]) -> Blocks:
    return Blocks(
        sum(one.kv_blocks_used for one in held.values()),
        sum(one.kv_blocks_total for one in held.values()),
    )


class EventStream(Response):
    """Sends what happens to models until the client leaves or the server stops."""

    def __init__(self, serving: ServingMany) -> None:
        """Tell what a fleet tells."""
        self._serving = serving
        self.status_code = 200
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Queue[FleetEvent | None] = asyncio.Queue()

        def listen(event: FleetEvent) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(waiting.put_nowait, event)

        end = self._serving.fleet.subscribe(listen)
        watches = [
            asyncio.create_task(_put_at_end(gone(receive), waiting)),
            asyncio.create_task(_put_at_end(self._serving.stopping.wait(), waiting)),
        ]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS]})
            await _write(send, PING)
            while waiting.qsize() <= _MOST_EVENTS:
                try:
                    async with asyncio.timeout(self._serving.settings.ping_s):
                        event = await waiting.get()
                except TimeoutError:
                    await _write(send, PING)
                    continue
                if event is None:
                    break
                await _write(send, encode(event))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            end()
            for watch in watches:
                watch.cancel()


async def _put_at_end(ending: Awaitable[object], waiting: asyncio.Queue[FleetEvent | None]) -> None:
    await ending
    waiting.put_nowait(None)


async def _write(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})
