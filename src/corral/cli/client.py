"""Asks a running server: what `corral ps`, `load`, `unload`, `pin` and `plan --server` share."""

import http.client
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from corral.cli.serve_options import DEFAULT_PORT
from corral.config import settings
from corral.errors import ResourceError, UsageError

if TYPE_CHECKING:
    from corral.cli.arguments import Parser

DEFAULT_SERVER = f"http://127.0.0.1:{DEFAULT_PORT}"
_LIMIT_S = 60.0
_MOST_BYTES = 64 << 20


def add_server(parser: "Parser") -> None:
    """Add --server and --api-key."""
    parser.add_argument(
        "--server",
        metavar="URL",
        default=DEFAULT_SERVER,
        help=f"address of the server (default: {DEFAULT_SERVER})",
    )
    parser.add_argument(
        "--api-key", metavar="KEY", help="key to show; better in the environment: CORRAL_API_KEY"
    )


class Client:
    """Sends requests to one server."""

    def __init__(self, address: str, key: str | None = None) -> None:
        """Speak to an address such as http://127.0.0.1:8080; the key is by default the setting's.

        Raises:
            UsageError: the address is none.
        """
        parts = urlsplit(address if "//" in address else f"http://{address}")
        try:
            port = parts.port
        except ValueError as error:
            raise UsageError(f"{address!r} is no address of a server: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{address!r} is no address of a server; expected {DEFAULT_SERVER}")
        self._address = address
        self._is_secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, port
        self._prefix = parts.path.rstrip("/")
        self._key = key or settings().api_key

    def get(self, path: str) -> dict[str, object]:
        """Return the reply to a GET; raises as `_ask` does."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: Mapping[str, object]) -> dict[str, object]:
        """Return the reply to a POST; raises as `_ask` does."""
        return self._ask("POST", path, json.dumps(body).encode())

    def _ask(self, method: str, path: str, body: bytes | None) -> dict[str, object]:
        """Return a reply.

        Raises:
            ResourceError: nobody answers there, or no server of corral does.
            CorralError: what the server refuses the request with.
        """
        kind = http.client.HTTPSConnection if self._is_secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=_LIMIT_S)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            connection.request(method, self._prefix + path, body, headers)
            response = connection.getresponse()
            content = response.read(_MOST_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise ResourceError(
                f"no server answers at {self._address} ({error}); corral serve starts one, "
                "--server says where it is"
            ) from error
        finally:
            connection.close()
        return self._read(response.status, content)

    def _read(self, status: int, content: bytes) -> dict[str, object]:
        try:
            reply = json.loads(content)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise ResourceError(f"what answers at {self._address} is no server of corral")
        if status < 400:
            return reply
        told = reply.get("error")
        error = told if isinstance(told, dict) else {}
        message = str(error.get("message", f"status {status}"))
        if status == 404 and error.get("code") == "not_found":
            message = (
                f"the server at {self._address} has one model: serve with --models or --config"
            )
        from corral.contract.events import error_of

        raise error_of(_code_of(status, error.get("code")), message)


def _code_of(status: int, code: object) -> str:
    """Return the code of the error class that is nearest to what a server said."""
    if status in (400, 401, 403, 404, 421):
        return "model_not_found" if code == "model_not_found" else "usage"
    return str(code) if isinstance(code, str) else "resource"
