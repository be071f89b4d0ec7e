"""What a client is told when something fails: OpenAI's error object, with a right status.

Nothing of this process is in a reply: no path, no traceback, no text of a foreign error.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from starlette.responses import Response

from corral.errors import (
    Closed,
    ContextExceeded,
    CorralError,
    InternalError,
    InvalidArgument,
    LifecycleError,
    ModelNotFound,
    ModelUnloaded,
    OutOfMemory,
    QueueFull,
    WorkerLost,
)
from corral.log import logger

_log = logger(__name__)
_RETRY_SOON_S = 1
_RETRY_LATER_S = 5
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    501: "not_supported_error",
    503: "unavailable_error",
    504: "timeout_error",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """What is told of an error."""

    status: int
    message: str
    kind: str = ""
    """OpenAI's `type`; by default it follows from the status."""
    param: str | None = None
    """Which field of the body is wrong."""
    code: str | int | None = None
    extra: Mapping[str, object] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, object]:
        """Return the error object."""
        kind = self.kind or _KINDS.get(
            self.status, "invalid_request_error" if self.status < 500 else "server_error"
        )
        told = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": {**told, **self.extra}}

    def response(self) -> Response:
        """Return the response that tells it."""
        return Response(
            msgspec.json.encode(self.body()),
            status_code=self.status,
            headers=dict(self.headers),
            media_type="application/json",
        )


class Refused(Exception):
    """Carries a problem of HTTP itself to whoever answers the client."""

    def __init__(self, problem: Problem) -> None:
        """Keep the problem."""
        super().__init__(problem.message)
        self.problem = problem


def refused(status: int, message: str, *, code: str, param: str | None = None) -> Refused:
    """Return what is to be raised to answer with a status and a message."""
    return Refused(Problem(status, message, code=code, param=param))


def problem_of(error: Exception, *, names: Mapping[str, str] | None = None) -> Problem:
    """Return what is told of an error; `names` says how clients call the contract's fields."""
    match error:
        case Refused():
            return error.problem
        case ContextExceeded():
            return _context_problem(error)
        case InvalidArgument():
            field_name = _client_field(error.field, names or {})
            return Problem(400, str(error), param=field_name, code=error.code)
        case OutOfMemory():
            return _memory_problem(error)
        case QueueFull() | ModelUnloaded():
            return _unavailable(error, _RETRY_SOON_S)
        case WorkerLost():
            return _unavailable(error, _RETRY_LATER_S)
        case Closed() | LifecycleError():
            return Problem(503, "the server is shutting down", code=error.code)
        case ModelNotFound():
            return Problem(404, "there is no such model", code=error.code)
        case InternalError():
            _log.error("%s: %s", error.code, str(error))
            return Problem(500, "internal error; the server's log says more", code=error.code)
        case CorralError():
            return Problem(error.http_status, str(error), code=error.code)
        case _:
            _log.error("unexpected %s", type(error).__name__, exc_info=error)
            return Problem(500, "internal error; the server's log says more", code="internal")


def _context_problem(error: ContextExceeded) -> Problem:
    counts = {"n_prompt_tokens": error.prompt_tokens, "n_ctx": error.context}
    return Problem(
        400,
        str(error),
        kind="exceed_context_size_error",
        code=400,
        extra={name: count for name, count in counts.items() if count is not None},
    )


def _memory_problem(error: OutOfMemory) -> Problem:
    told: dict[str, object] = {
        "needed_bytes": error.needed_bytes,
        "available_bytes": error.available_bytes,
        "holders": list(error.holders) or None,
    }
    is_passing = error.http_status == 503
    return Problem(
        error.http_status,
        str(error),
        code=error.code,
        extra={name: value for name, value in told.items() if value is not None},
        headers={"Retry-After": str(_RETRY_LATER_S)} if is_passing else {},
    )


def _unavailable(error: CorralError, retry_s: int) -> Problem:
    return Problem(503, str(error), code=error.code, headers={"Retry-After": str(retry_s)})


def _client_field(name: str, names: Mapping[str, str]) -> str | None:
    """Return a field as clients write it: messages[0].role for the contract's messages[0] role."""
    if not name:
        return None
    first, *rest = name.split(" ")
    head, bracket, index = first.partition("[")
    first = names.get(head, head) + bracket + index
    if rest and rest[-1].isdigit():  # "prompt token 3"
        return f"{first}[{rest[-1]}]"
    return ".".join([first, *rest])
