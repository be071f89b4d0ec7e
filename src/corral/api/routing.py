"""Makes routes whose handlers may raise: every error becomes a reply that says what went wrong."""

import inspect
from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from corral.api.errors import problem_of
from corral.api.presence import ClientGone
from corral.api.translate import params_of

Handler = Callable[[Request], Awaitable[Response]]
_encoder = msgspec.json.Encoder()
_GONE = 499
"""Nobody reads this status; nginx's logs made it known."""


class ApiRoute(Route):
    """A route that knows what it is for and what body it takes."""

    def __init__(self, path: str, handler: Handler, method: str, body: type | None) -> None:
        """Lead a method of a path to a handler, whose docstring says what it does."""

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except ClientGone:
                return Response(status_code=_GONE)
            except Exception as error:
                return problem_of(error, names=params_of(body)).response()

        super().__init__(path, answer, methods=[method], name=f"{method} {path}")
        self.summary = (inspect.getdoc(handler) or "").partition("\n")[0]
        self.method = method
        self.body = body


def get(path: str, handler: Handler) -> ApiRoute:
    """Return a route that reads."""
    return ApiRoute(path, handler, "GET", None)


def post(path: str, handler: Handler, body: type) -> ApiRoute:
    """Return a route that takes a body."""
    return ApiRoute(path, handler, "POST", body)


def json_reply(value: object, *, status: int = 200) -> Response:
    """Return a value as JSON."""
    return Response(_encoder.encode(value), status_code=status, media_type="application/json")
