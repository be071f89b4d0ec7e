"""Whether a client is still there, and what is done only as long as it is.

The body of a request must have been read before: what comes then is the end of its client.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

_T = TypeVar("_T")


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def gone(receive: Receive) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_there(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """Return what work comes to; it is cancelled when the client leaves.

    Raises:
        ClientGone: the client left first.
        Exception: whatever the work raises.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(gone(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        leaving.cancel()
        working.cancel()
