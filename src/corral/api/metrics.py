"""GET /metrics: everything that was counted, in Prometheus's text format."""

from starlette.requests import Request
from starlette.responses import Response

from corral.api.meters import CONTENT_TYPE
from corral.api.routing import ApiRoute, get
from corral.api.serving import one_of


def routes() -> list[ApiRoute]:
    """Return the routes of this file."""
    return [get("/metrics", metrics)]


async def metrics(request: Request) -> Response:
    """Return all series."""
    serving = one_of(request)
    serving.require_open()
    text = serving.meters.exposition(
        await serving.model.statistics(), await serving.model.describe()
    )
    return Response(text, headers={"Content-Type": CONTENT_TYPE})
