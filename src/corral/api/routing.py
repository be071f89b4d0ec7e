"""Makes routes whose handlers may raise: every error becomes a reply that says what went wrong."""

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from corral.api.errors import problem_of
from corral.api.exchange import ClientGone
from corral.api.translate import PARAMS

Handler = Callable[[Request], Awaitable[Response]]
_encoder = msgspec.json.Encoder()


def route(path: str, handler: Handler, *, method: str = "POST") -> Route:
    """Return a route to a handler."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except ClientGone:
            return Response(status_code=499)  # nobody reads it
        except Exception as error:
            return problem_of(error, names=PARAMS).response()

    return Route(path, answer, methods=[method], name=f"{method} {path}")


def json_reply(value: object, *, status: int = 200) -> Response:
    """Return a value as JSON."""
    return Response(_encoder.encode(value), status_code=status, media_type="application/json")
