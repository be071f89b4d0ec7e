"""Who may ask at all: decided before any route is looked up, on every path but
the health check and the files of the page, which are the same for everybody.

    Host      names this server, or a page elsewhere points its own name at us (DNS rebinding)
    Origin    is this server or a page that was allowed; otherwise nothing may be posted
    key       is one of ours, if there are any; compared in constant time

The key is a bearer token or an X-Api-Key.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral.api.errors import Problem
from corral.api.settings import ApiSettings

PUBLIC = frozenset({"/health", "/v1/health"})
_MAX_KEY_BYTES = 4096
_SAFE = ("GET", "HEAD", "OPTIONS")
_HARDENING = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_PAGE = (
    (
        b"content-security-policy",
        # Nothing inline, nothing from elsewhere; where browsers know how, no text becomes markup.
        b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
        b"require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    (b"x-frame-options", b"DENY"),
)


def digest(key: str) -> bytes:
    """Return what is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def namespace(key_digest: bytes) -> str:
    """Return the namespace of a key's keys and values; it tells nothing about the key."""
    return hashlib.sha256(b"corral namespace\0" + key_digest).hexdigest()[:32]


def find(given: str | None, digests: Iterable[bytes]) -> bytes | None:
    """Return the digest that a given key has, in a time that no digest has a part in."""
    own = digest(given if given is not None else "")
    matches = [known for known in digests if hmac.compare_digest(known, own)]
    return matches[0] if matches and given is not None else None


def given_key(headers: Headers) -> str | None:
    """Return the key that a request shows; one that shows several shows none."""
    shown = headers.getlist("authorization") + headers.getlist("x-api-key")
    if len(shown) != 1 or len(shown[0]) > _MAX_KEY_BYTES:
        return None
    if not headers.getlist("authorization"):
        return shown[0]
    scheme, _, value = shown[0].partition(" ")
    return value.strip() if scheme.lower() == "bearer" else None


def host_name(host: str) -> str | None:
    """Return the name in a Host header, without its port; None if it is none."""
    try:
        parts = urlsplit(f"//{host}")
        parts.port  # noqa: B018 - looking at it checks it
    except ValueError:
        return None
    if not host or parts.netloc != host or parts.username is not None:
        return None
    return parts.hostname


def is_address(name: str) -> bool:
    """Whether the name of a host is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Gate:
    """ASGI middleware that lets through who may ask, and adds headers that protect the page."""

    def __init__(
        self, app: ASGIApp, settings: ApiSettings, public: frozenset[str] = PUBLIC
    ) -> None:
        """Stand before an application; anybody may read what is at public paths."""
        self._app = app
        self._settings = settings
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer those who may not ask; pass on the others."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        extra = [*_HARDENING, *(_PAGE if scope["method"] in ("GET", "HEAD") else ())]
        extra += self._cors(headers.get("origin"))
        answer = self._refusal(scope, headers) or self._preflight(scope, headers)

        async def send_more(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        await (answer or self._app)(scope, receive, send_more)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_own_host(hosts[0]):
            text = "this server does not answer to that Host; --allowed-host adds one"
            return Problem(421, text, code="wrong_host").response()
        origin = headers.get("origin")
        if scope["method"] not in _SAFE and not self._is_allowed_origin(origin, hosts[0]):
            text = "pages of that Origin may not ask; --cors-origin lets them"
            return Problem(403, text, code="wrong_origin").response()
        is_public = scope["path"] in self._public and scope["method"] in ("GET", "HEAD")
        if is_public or self._is_preflight(scope, headers):
            return None
        return self._key_refusal(scope, headers)

    def _key_refusal(self, scope: Scope, headers: Headers) -> Response | None:
        if not self._settings.key_digests:
            return None
        known = find(given_key(headers), self._settings.key_digests)
        if known is None:
            text = "a valid API key is needed, as Authorization: Bearer KEY"
            told = {"WWW-Authenticate": "Bearer"}
            return Problem(401, text, code="invalid_api_key", headers=told).response()
        scope["corral.namespace"] = namespace(known)
        return None

    def _is_own_host(self, host: str) -> bool:
        name, settings = host_name(host), self._settings
        if name is None:
            return False
        allowed = settings.allowed_hosts
        return (
            "*" in allowed
            or name.lower() in allowed
            or (settings.allows_addresses and is_address(name))
        )

    def _is_allowed_origin(self, origin: str | None, host: str) -> bool:
        if origin is None:
            return True
        return self._is_cors_origin(origin) or origin in (f"http://{host}", f"https://{host}")

    def _is_cors_origin(self, origin: str) -> bool:
        allowed = self._settings.cors_origins
        return "*" in allowed or origin in allowed

    def _cors(self, origin: str | None) -> list[tuple[bytes, bytes]]:
        if not self._settings.cors_origins:
            return []
        vary = [(b"vary", b"Origin")]
        if origin is None or not self._is_cors_origin(origin):
            return vary
        # No credentials: pages elsewhere show a key, not what a browser remembers.
        return [*vary, (b"access-control-allow-origin", origin.encode("latin-1"))]

    def _is_preflight(self, scope: Scope, headers: Headers) -> bool:
        return (
            scope["method"] == "OPTIONS"
            and "access-control-request-method" in headers
            and self._is_cors_origin(headers.get("origin", ""))
        )

    def _preflight(self, scope: Scope, headers: Headers) -> Response | None:
        if not self._is_preflight(scope, headers):
            return None
        told = {
            "access-control-allow-methods": "GET, POST",
            "access-control-allow-headers": "authorization, content-type, x-api-key",
            "access-control-max-age": "600",
        }
        return Response(status_code=204, headers=told)
