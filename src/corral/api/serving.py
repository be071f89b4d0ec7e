"""What all routes share: the service, the settings, who waits, and whether the server stops."""

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.requests import Request

from corral.api.errors import Problem, Refused, refused
from corral.api.exchange import Exchange
from corral.api.mailroom import Inbox, Mailroom
from corral.api.meters import Meters
from corral.api.readings import Readings
from corral.api.settings import ApiSettings
from corral.contract.messages import GenerationRequest
from corral.contract.questions import (
    Answer,
    DescribeQuestion,
    Description,
    Question,
    ServiceStatistics,
    StatisticsQuestion,
)
from corral.contract.service import Deliver, Service
from corral.contract.worker import WorkerState, WorkerStatus
from corral.errors import Closed, CorralError, InternalError
from corral.log import logger

_log = logger(__name__)
_A = TypeVar("_A", bound=Answer)
_SUBMIT_THREADS = 4
_ASK_THREADS = 16
_LOOK_S = 1.0
_NOT_READY = {
    WorkerState.LOADING: ("Loading model", 2),
    WorkerState.RESTARTING: ("the model's process ended and is being started again", 5),
    WorkerState.FAILED: ("the model cannot be served; the server's log says why", 60),
    WorkerState.CLOSED: ("the server is shutting down", 5),
}


class Serving:
    """One service behind HTTP; made in the event loop that it belongs to.

    A call into the service may wait for a lock or a socket of its own, so it happens in a thread.
    """

    def __init__(
        self,
        service: Service,
        settings: ApiSettings,
        *,
        status: Callable[[], WorkerStatus],
        readings: Readings,
    ) -> None:
        """Serve a service; `status` tells of its worker and returns at once."""
        self.settings = settings
        self.status = status
        self.readings = readings
        self.meters = Meters(settings.model)
        self.stopping = asyncio.Event()
        """Set when no new requests are taken."""
        self._service = service
        self._submitters = ThreadPoolExecutor(_SUBMIT_THREADS, "corral-api-submit")
        self._askers = ThreadPoolExecutor(_ASK_THREADS, "corral-api-ask")
        self._looker = ThreadPoolExecutor(1, "corral-api-look")
        """What tells how the service is does not wait for long questions to it."""
        self._exchanges: dict[Exchange, None] = {}
        self._mailroom = Mailroom()
        self._known: tuple[int, Description] | None = None
        self._looking: asyncio.Future[ServiceStatistics] | None = None

    def enter(self, exchange: Exchange) -> Inbox:
        """Know an exchange until it leaves, and return an inbox for its events."""
        self._exchanges[exchange] = None
        capacity = self.settings.limits.queued_events
        return Inbox(self._mailroom, capacity=capacity, on_overfull=exchange.end_slowly_read)

    def leave(self, exchange: Exchange) -> None:
        """Forget an exchange that ended."""
        self._exchanges.pop(exchange, None)

    async def submit(self, request: GenerationRequest, deliver: Deliver) -> None:
        """Hand a request to the service.

        Raises:
            CorralError: the service refuses it.
        """
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._submitters, self._service.submit, request, deliver)

    def cancel(self, request_id: str) -> None:
        """Have a request ended soon, without waiting for it."""
        try:
            self._submitters.submit(self._cancel, request_id)
        except RuntimeError:  # closed: the service ends everything by itself
            _log.debug("request %s is left to the service, which closes", request_id)

    def _cancel(self, request_id: str) -> None:
        try:
            self._service.cancel(request_id)
        except CorralError as error:
            _log.debug("cannot cancel %s: %s", request_id, error)

    async def ask(self, question: Question, kind: type[_A]) -> _A:
        """Return the service's answer to a question.

        Raises:
            CorralError: whatever the service raises.
        """
        return await self._ask(self._askers, question, kind, self.settings.limits.ask_s)

    async def _ask(
        self, threads: ThreadPoolExecutor, question: Question, kind: type[_A], limit_s: float
    ) -> _A:
        call = functools.partial(self._service.ask, question, timeout_s=limit_s)
        answer = await asyncio.get_running_loop().run_in_executor(threads, call)
        if not isinstance(answer, kind):
            raise InternalError(f"asked for {kind.__name__}, got {type(answer).__name__}")
        return answer

    async def describe(self) -> Description:
        """Return what the service runs, asked once for each process that ran it."""
        restarts = self.status().restarts
        if self._known is None or self._known[0] != restarts:
            self._known = (
                restarts,
                await self._ask(self._looker, DescribeQuestion(), Description, _LOOK_S),
            )
        return self._known[1]

    async def statistics(self) -> ServiceStatistics:
        """Return what the service holds now; many who look at once ask it once."""
        if self._looking is None or self._looking.done():
            question = self._ask(self._looker, StatisticsQuestion(), ServiceStatistics, _LOOK_S)
            self._looking = asyncio.ensure_future(question)
        return await asyncio.shield(self._looking)

    def require_ready(self) -> None:
        """Accept a request only while there is somebody to answer it.

        Raises:
            Refused: 503, with when to come again.
        """
        state = WorkerState.CLOSED if self.stopping.is_set() else self.status().state
        if state is WorkerState.READY:
            return
        message, retry_s = _NOT_READY[state]
        headers = {"Retry-After": str(retry_s)}
        raise Refused(Problem(503, message, code=503, headers=headers))

    def require_model(self, name: str | None) -> None:
        """Accept the name of the model that is served, an alias, or none.

        Raises:
            Refused: 404 for any other.
        """
        settings = self.settings
        if name is None or name in (settings.model, *settings.aliases) or "*" in settings.aliases:
            return
        message = f"there is no model {name[:60]!r} here; /v1/models lists what is"
        raise refused(404, message, code="model_not_found", param="model")

    def stop(self) -> None:
        """Take no more requests; those that run go on."""
        self.stopping.set()

    def end_all(self) -> None:
        """End what still runs, each with an error that says why."""
        for exchange in list(self._exchanges):
            exchange.end(Closed("the server is shutting down"))

    def close(self) -> None:
        """End everything and let the threads go."""
        self.stop()
        self.end_all()
        self._askers.shutdown(wait=False, cancel_futures=True)
        self._looker.shutdown(wait=False, cancel_futures=True)
        self._submitters.shutdown(wait=False)


def serving_of(request: Request) -> Serving:
    """Return what the application of a request serves."""
    serving: Serving = request.app.state.serving
    return serving


def namespace_of(request: Request) -> str:
    """Return the namespace of a request's key; keys and values are shared within it only."""
    return str(request.scope.get("corral.namespace", ""))
