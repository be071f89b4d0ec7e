"""GET /health: whether a request would be answered now, told to everybody."""

from starlette.requests import Request
from starlette.responses import Response

from corral.api.errors import Problem
from corral.api.routing import ApiRoute, get, json_reply
from corral.api.serving import one_of
from corral.errors import CorralError


def routes() -> list[ApiRoute]:
    """Return the routes of this file."""
    return [
        get("/health", health),
        get("/v1/health", health),
    ]


async def health(request: Request) -> Response:
    """Tell ok, or 503 while loading, restarting, stopping, or when no step ends any more."""
    serving = one_of(request)
    serving.require_open()
    try:
        held = await serving.model.statistics()
    except CorralError:
        return Problem(503, "the model's process does not answer", code=503).response()
    if held.step_age_s > serving.settings.stuck_s:
        text = f"no step of the engine ended for {held.step_age_s:.0f} s"
        return Problem(503, text, code=503).response()
    return json_reply({"status": "ok"})
