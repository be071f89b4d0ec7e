"""GET /v1/models of a server of many, and what may be done with them: load, unload, pin, reload,
and /plan, which says what would happen and does nothing.
"""

import asyncio
import functools
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from corral.api.bodies import read
from corral.api.routing import ApiRoute, get, json_reply, post
from corral.api.serving import ServingMany, many_of
from corral.contract.fleet import ModelState, ModelStatus

_STARTED = int(time.time())
_T = TypeVar("_T")


class ModelBody(msgspec.Struct, kw_only=True):
    """Which model."""

    model: str


class PinBody(msgspec.Struct, kw_only=True):
    """Which model, and whether it is to stay."""

    model: str
    pinned: bool = True


class NoBody(msgspec.Struct, kw_only=True):
    """Nothing needs to be said."""


def routes() -> list[ApiRoute]:
    """Return the routes of this file."""
    return [
        get("/v1/models", models),
        get("/models", models),
        get("/v1/models/{id:path}", model),
        post("/models/load", load, ModelBody),
        post("/models/unload", unload, ModelBody),
        post("/models/pin", pin, PinBody),
        post("/models/reload", reload, NoBody),
        post("/plan", plan, ModelBody),
    ]


async def models(request: Request) -> Response:
    """List every model, loaded or not."""
    serving = many_of(request)
    status = await in_thread(serving, serving.fleet.status)
    return json_reply({"object": "list", "data": [_entry(one) for one in status.models]})


async def model(request: Request) -> Response:
    """Describe one model."""
    serving = many_of(request)
    name = serving.find(request.path_params["id"]).name
    return json_reply(_entry(serving.fleet.model_status(name)))


async def load(request: Request) -> Response:
    """Have a model loaded; the reply does not wait for it."""
    serving, name = await _named(request)
    await in_thread(serving, serving.fleet.load, name)
    return _done(serving, name)


async def unload(request: Request) -> Response:
    """Have a model go when what it answers has ended; the reply does not wait for it."""
    serving, name = await _named(request)
    await in_thread(serving, serving.fleet.unload, name)
    return _done(serving, name)


async def pin(request: Request) -> Response:
    """Keep a model from making room for others and from going when it is idle, or no longer."""
    serving = many_of(request)
    serving.require_open()
    body = await read(request, PinBody, serving.settings.limits)
    name = serving.find(body.model).name
    await in_thread(serving, serving.fleet.pin, name, body.pinned)
    return _done(serving, name)


async def reload(request: Request) -> Response:
    """Read the configuration and the folders again."""
    serving = many_of(request)
    serving.require_open()
    await read(request, NoBody, serving.settings.limits)
    changes = await in_thread(serving, serving.fleet.reload)
    return json_reply({"success": True, "changes": changes})


async def plan(request: Request) -> Response:
    """Say whether a model would fit now, where, and what would go for it."""
    serving, name = await _named(request)
    return json_reply(await in_thread(serving, serving.fleet.plan, name))


async def in_thread(serving: ServingMany, call: Callable[..., _T], *given: object) -> _T:
    """Return what a call into the fleet returns, made in a thread: it may wait."""
    bound = functools.partial(call, *given)
    return await asyncio.get_running_loop().run_in_executor(serving.callers.ask, bound)


async def _named(request: Request) -> tuple[ServingMany, str]:
    serving = many_of(request)
    serving.require_open()
    body = await read(request, ModelBody, serving.settings.limits)
    return serving, serving.find(body.model).name


def _done(serving: ServingMany, name: str) -> Response:
    return json_reply({"success": True, "model": _entry(serving.fleet.model_status(name))})


def _entry(status: ModelStatus) -> dict[str, object]:
    is_loaded = status.state is ModelState.READY
    told = msgspec.to_builtins(status)
    return {
        "id": status.name,
        "object": "model",
        "created": _STARTED,
        "owned_by": "corral",
        "aliases": status.aliases,
        "status": {
            "value": "loaded" if is_loaded else status.state.value,
            "failed": status.state is ModelState.FAILED,
        },
        "corral": told,
    }
