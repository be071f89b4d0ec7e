"""One line of the log for each request: method, path, status, time; never what was said."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral.log import logger

_log = logger(__name__)
_LONGEST_PATH = 200


class AccessLog:
    """ASGI middleware around everything: what falls through all others is logged here."""

    def __init__(self, app: ASGIApp) -> None:
        """Stand around an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and log how it ended."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        status = 0

        async def send_and_see(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        what = f"{scope['method']} {scope['path'][:_LONGEST_PATH]}"
        try:
            await self._app(scope, receive, send_and_see)
        except Exception:
            _log.error("%s failed", what, exc_info=True)
            raise
        finally:
            _log.info("%s %d in %.1f ms", what, status, 1e3 * (time.monotonic() - began))
