"""One client's requests from submission to their last event, whatever becomes of the client.

    open ──▶ take … take ──▶ close         close cancels what has not ended

The client who goes away, the server that stops, a reader who is too slow and a limit of time all
end `take` with an exception; `close` then cancels at the service.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from starlette.types import Receive

from corral.api.model import Model
from corral.api.presence import ClientGone, gone
from corral.contract.events import (
    ErrorEvent,
    Event,
    FinishEvent,
    FinishReason,
    TokenEvent,
    as_error,
)
from corral.contract.messages import GenerationRequest
from corral.errors import Closed, CorralError, ResourceError, TimeLimitExceeded

if TYPE_CHECKING:
    from corral.api.serving import Serving


class Exchange:
    """Requests that are answered together; each event comes out once, in order."""

    def __init__(
        self, serving: "Serving", model: Model, requests: Sequence[GenerationRequest]
    ) -> None:
        """Prepare to submit requests whose ids are free."""
        self.requests = tuple(requests)
        self._serving = serving
        self._model = model
        self._inbox = serving.enter(self)
        self._places = {request.request_id: n for n, request in enumerate(requests)}
        self._open: set[str] = set()
        self._watch: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._began = time.monotonic()
        self._last_token: dict[str, float] = {}

    @classmethod
    async def open(
        cls,
        serving: "Serving",
        model: Model,
        requests: Sequence[GenerationRequest],
        receive: Receive,
    ) -> Self:
        """Submit requests, and watch for the client's end from now on.

        Raises:
            CorralError: the service refuses one; the others are cancelled.
        """
        size = await model.known_vocabulary()
        for request in requests:
            request.validate(vocabulary_size=size)
        exchange = cls(serving, model, requests)
        try:
            exchange._begin(receive)
            for request in requests:
                await exchange._submit(request)
        except BaseException:
            exchange.close()
            raise
        return exchange

    async def _submit(self, request: GenerationRequest) -> None:
        """Hand a request over.

        The client may leave, or the caller be cancelled, before the service knows the request, and
        what was cancelled by then meant nothing to it: so it is cancelled once more.
        """
        self._open.add(request.request_id)
        handing = asyncio.ensure_future(self._model.submit(request, self._inbox.deliver))

        def known(done: "asyncio.Future[None]") -> None:
            is_refused = done.cancelled() or done.exception() is not None
            if not is_refused and request.request_id not in self._open:
                self._model.cancel(request.request_id)

        handing.add_done_callback(known)
        await asyncio.shield(handing)

    def _begin(self, receive: Receive) -> None:
        loop = asyncio.get_running_loop()
        limit_s = self._serving.settings.limits.request_s
        error = TimeLimitExceeded(f"the answer took longer than {limit_s:g} s")
        self._timer = loop.call_later(limit_s, self.end, error)
        self._watch = loop.create_task(self._watch_client(receive))

    async def _watch_client(self, receive: Receive) -> None:
        await gone(receive)
        self.end(ClientGone())

    @property
    def is_complete(self) -> bool:
        """Whether the last event of every request was taken."""
        return not self._open

    def place(self, event: Event) -> int:
        """Return which of the requests an event belongs to."""
        return self._places[event.request_id]

    def end(self, reason: Exception) -> None:
        """Cancel what runs, and have whoever takes events get an exception."""
        self._inbox.end(reason)
        self._cancel()

    def end_slowly_read(self) -> None:
        """End the exchange because its client takes events more slowly than they come."""
        self.end(ResourceError("the client reads more slowly than its answer grows"))

    async def take(self, within_s: float) -> list[Event]:
        """Return the events that came, or nothing after so many seconds.

        Raises:
            ClientGone: the client went away.
            CorralError: a request failed, took too long, or the server stops.
        """
        events = await self._inbox.take(within_s)
        if events:
            self._note(events)
        return events

    def _note(self, events: Sequence[Event]) -> None:
        now = time.monotonic()
        meters = self._model.meters
        failure: CorralError | None = None
        for event in events:
            match event:
                case TokenEvent():
                    before = self._last_token.get(event.request_id)
                    if before is None:
                        meters.first_token(now - self._began)
                    else:
                        meters.next_token(now - before)
                    self._last_token[event.request_id] = now
                case FinishEvent():
                    self._open.discard(event.request_id)
                    meters.finished(event, now - self._began)
                    if event.reason is FinishReason.CANCELLED:  # not by us: we no longer listen
                        failure = failure or Closed("the answer was cancelled: the server stops")
                case ErrorEvent():
                    failure = failure or as_error(event)
        if failure is not None:
            raise failure

    async def rest(self, events: list[Event]) -> list[Event]:
        """Return all events of all requests, of which the first were already taken."""
        while not self.is_complete:
            events += await self.take(self._serving.settings.limits.request_s)
        return events

    def close(self) -> None:
        """Cancel what has not ended; a second call does nothing."""
        if self._timer is not None:
            self._timer.cancel()
        if self._watch is not None:
            self._watch.cancel()
        self._serving.leave(self)
        self._cancel()

    def _cancel(self) -> None:
        left, self._open = self._open, set()
        for request_id in left:
            self._model.cancel(request_id)
