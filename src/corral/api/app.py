"""Makes the ASGI application of a service.

AccessLog ──▶ Gate ──▶ routes, one file a family ──▶ Serving ──▶ contract.service.Service
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import ModuleType

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from corral.api import (
    chat,
    completions,
    embeddings,
    fleet_models,
    fleet_watch,
    health,
    llama,
    lora,
    metrics,
    models,
    openapi,
    page,
    props,
    status,
    tokens,
)
from corral.api.access import AccessLog
from corral.api.errors import Problem
from corral.api.readings import ReadDevices, Readings
from corral.api.security import PUBLIC, Gate
from corral.api.serving import Serving, ServingMany, ServingOne
from corral.api.settings import ApiSettings
from corral.contract.fleet import Fleet
from corral.contract.service import Service
from corral.contract.worker import WorkerState, WorkerStatus

_ASKING = (chat, completions, embeddings, llama, lora, tokens, props)
_FOR_ONE = (*_ASKING, models, health, metrics, status, openapi)
_FOR_MANY = (*_ASKING, fleet_models, fleet_watch, status, openapi)


def ready() -> WorkerStatus:
    """Return the status of a service that needs no worker."""
    return WorkerStatus(state=WorkerState.READY)


def make_app(
    service: Service,
    settings: ApiSettings,
    *,
    worker: Callable[[], WorkerStatus] = ready,
    devices: ReadDevices | None = None,
) -> Starlette:
    """Return an application that answers from a service.

    `worker` tells of the service's process and returns at once; `devices` reads device memory and
    may take its time: it is called in a thread, at most once a second. While the application
    lives, `app.state.serving` is what its routes share.
    """

    def serve(app: Starlette) -> Serving:
        serving = ServingOne(service, settings, status=worker, readings=Readings(devices))
        app.state.status_feed = status.StatusFeed(serving)
        return serving

    return _application(settings, _FOR_ONE, serve)


def make_fleet_app(
    fleet: Fleet, settings: ApiSettings, *, devices: ReadDevices | None = None
) -> Starlette:
    """Return an application that answers from many models, each loaded when it is wanted.

    `devices` is as for `make_app`. The settings' model and aliases do not count.
    """

    def serve(app: Starlette) -> Serving:
        serving = ServingMany(fleet, settings, readings=Readings(devices))
        app.state.status_feed = fleet_watch.FleetFeed(serving)
        return serving

    return _application(settings, _FOR_MANY, serve)


def _application(
    settings: ApiSettings,
    families: Sequence[ModuleType],
    serve: Callable[[Starlette], Serving],
) -> Starlette:
    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        app.state.serving = serving = serve(app)
        try:
            yield
        finally:
            serving.close()

    app = Starlette(
        routes=[*(route for family in families for route in family.routes()), *page.mounts()],
        middleware=[
            Middleware(AccessLog),
            Middleware(Gate, settings=settings, public=PUBLIC | page.paths()),
        ],
        exception_handlers={HTTPException: _unrouted},
        lifespan=life,
    )
    app.router.redirect_slashes = False
    return app


async def _unrouted(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for these only"
    text = {404: "there is no such route", 405: "this route has another method"}
    headers = dict(error.headers or {})
    return Problem(
        error.status_code,
        text.get(error.status_code, "the request cannot be answered"),
        code="not_found" if error.status_code == 404 else "method_not_allowed",
        headers=headers,
    ).response()
