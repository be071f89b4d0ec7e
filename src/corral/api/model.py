"""One model as routes see it: it answers requests and questions, whoever holds it.

SoleModel    a service that is there, or is not: then 503
RoutedModel  one of many, loaded when it is wanted: then who asks waits

A call into a service may wait for a lock or a socket of its own, so it happens in a thread.
"""

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol, TypeVar

from corral.api.callers import Callers, begun, cancel_in_thread
from corral.api.errors import Problem, Refused
from corral.api.meters import ModelMeters
from corral.api.settings import ApiSettings
from corral.contract.fleet import Fleet, Hold, ModelState
from corral.contract.messages import GenerationRequest
from corral.contract.questions import (
    Answer,
    DescribeQuestion,
    Description,
    Question,
    ServiceStatistics,
    StatisticsQuestion,
)
from corral.contract.sampling import SamplingParams
from corral.contract.service import Deliver, Service, late
from corral.contract.worker import WorkerState, WorkerStatus
from corral.errors import InternalError, WorkerLost

_A = TypeVar("_A", bound=Answer)
_LOOK_S = 1.0
_LOADING_HEADERS_S = 0.25
_LOADING_PING_S = 3.0
_NOT_READY = {
    WorkerState.LOADING: ("Loading model", 2),
    WorkerState.RESTARTING: ("the model's process ended and is being started again", 5),
    WorkerState.FAILED: ("the model cannot be served; the server's log says why", 60),
    WorkerState.CLOSED: ("the server is shutting down", 5),
}


def not_ready(state: WorkerState) -> Refused:
    """Return what refuses a request that nobody answers in a state: 503, and when to come again."""
    message, retry_s = _NOT_READY[state]
    return Refused(Problem(503, message, code=503, headers={"Retry-After": str(retry_s)}))


class Model(Protocol):
    """A model that requests name."""

    name: str
    meters: ModelMeters

    def require_ready(self) -> None:
        """Accept a request only while there is somebody to answer it; raises Refused."""
        ...

    async def sampling(self) -> SamplingParams:
        """Return what counts where a request does not say."""
        ...

    async def submit(self, request: GenerationRequest, deliver: Deliver) -> None:
        """Hand a request over; raises CorralError if it is refused."""
        ...

    def cancel(self, request_id: str) -> None:
        """Have a request ended soon, without waiting for it."""
        ...

    async def ask(self, question: Question, kind: type[_A]) -> _A:
        """Return the answer to a question; raises CorralError."""
        ...

    async def describe(self) -> Description:
        """Return what the model is, asked once for each process that ran it."""
        ...

    async def known_vocabulary(self) -> int | None:
        """Return the number of tokens there are; None while that is not known here."""
        ...

    async def statistics(self) -> ServiceStatistics:
        """Return what is held now; many who look at once ask it once."""
        ...

    def pace(self, settings: ApiSettings) -> ApiSettings:
        """Return the settings of a stream that begins now."""
        ...


async def call(
    service: Service,
    threads: ThreadPoolExecutor,
    question: Question,
    kind: type[_A],
    limit_s: float,
) -> _A:
    """Return a service's answer; who is cancelled gives the question up; raises CorralError."""
    try:
        async with asyncio.timeout(limit_s):
            answer = await begun(threads, functools.partial(service.inquire, question))
    except TimeoutError:
        raise late(question, limit_s) from None
    if not isinstance(answer, kind):
        raise InternalError(f"asked for {kind.__name__}, got {type(answer).__name__}")
    return answer


class SoleModel:
    """The model of a server that has one."""

    def __init__(
        self,
        service: Service,
        settings: ApiSettings,
        callers: Callers,
        *,
        status: Callable[[], WorkerStatus],
        meters: ModelMeters,
    ) -> None:
        """Ask a service; `status` tells of its worker and returns at once."""
        self.name = settings.model
        self.meters = meters
        self._service = service
        self._settings = settings
        self._callers = callers
        self._status = status
        self._known: tuple[int, Description] | None = None
        self._looking: asyncio.Future[ServiceStatistics] | None = None

    def require_ready(self) -> None:
        """Refuse with 503 while the model is not loaded."""
        state = self._status().state
        if state is not WorkerState.READY:
            raise not_ready(state)

    async def sampling(self) -> SamplingParams:
        """Return the server's own."""
        return self._settings.sampling

    async def submit(self, request: GenerationRequest, deliver: Deliver) -> None:
        """Hand a request to the service."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._callers.submit, self._service.submit, request, deliver)

    def cancel(self, request_id: str) -> None:
        """Have a request ended soon."""
        cancel_in_thread(self._callers, self._service.cancel, request_id)

    async def ask(self, question: Question, kind: type[_A]) -> _A:
        """Return the service's answer."""
        limit_s = self._settings.limits.ask_s
        async with self._callers.questions:
            return await call(self._service, self._callers.ask, question, kind, limit_s)

    async def describe(self) -> Description:
        """Return what the service runs."""
        restarts = self._status().restarts
        if self._known is None or self._known[0] != restarts:
            told = await self._look(DescribeQuestion(), Description)
            self._known = (restarts, told)
        return self._known[1]

    async def known_vocabulary(self) -> int:
        """Return the number of tokens there are."""
        return (await self.describe()).vocabulary_size

    async def statistics(self) -> ServiceStatistics:
        """Return what the service holds now."""
        if self._looking is None or self._looking.done():
            question = self._look(StatisticsQuestion(), ServiceStatistics)
            self._looking = asyncio.ensure_future(question)
        return await asyncio.shield(self._looking)

    async def _look(self, question: Question, kind: type[_A]) -> _A:
        return await call(self._service, self._callers.look, question, kind, _LOOK_S)

    def pace(self, settings: ApiSettings) -> ApiSettings:
        """Return the usual settings: the model is there."""
        return settings


class RoutedModel:
    """One of many models, kept by somebody who loads it when it is wanted."""

    def __init__(
        self,
        fleet: Fleet,
        name: str,
        settings: ApiSettings,
        callers: Callers,
        *,
        meters: ModelMeters,
    ) -> None:
        """Ask a model of a fleet, by its own name."""
        self.name = name
        self.meters = meters
        self._fleet = fleet
        self._settings = settings
        self._callers = callers
        self._known: tuple[int, Description] | None = None

    def require_ready(self) -> None:
        """Accept everything: who comes waits for the load."""

    async def sampling(self) -> SamplingParams:
        """Return what its makers advise, and what its preset says."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._callers.ask, self._fleet.sampling, self.name)

    async def submit(self, request: GenerationRequest, deliver: Deliver) -> None:
        """Have a request answered when the model is loaded."""
        submit = functools.partial(self._fleet.submit, self.name, request, deliver)
        await asyncio.get_running_loop().run_in_executor(self._callers.submit, submit)

    def cancel(self, request_id: str) -> None:
        """Have a request ended soon; a load that was started goes on."""
        cancel_in_thread(self._callers, self._fleet.cancel, request_id)

    async def ask(self, question: Question, kind: type[_A]) -> _A:
        """Return the model's answer, once it is loaded."""
        hold = functools.partial(self._fleet.hold, self.name)
        held = await begun(self._callers.submit, hold, take_back=Hold.release)
        try:
            limit_s = self._settings.limits.ask_s
            async with self._callers.questions:
                return await call(held.service, self._callers.ask, question, kind, limit_s)
        finally:
            held.release()

    async def describe(self) -> Description:
        """Return what the model is; it is loaded for that if it was not yet."""
        generation = self._fleet.model_status(self.name).generation
        if self._known is None or self._known[0] != generation:
            told = await self.ask(DescribeQuestion(), Description)
            self._known = (self._fleet.model_status(self.name).generation, told)
        return self._known[1]

    async def known_vocabulary(self) -> int | None:
        """Return the number of tokens there are, if its process told; nobody waits for it."""
        generation = self._fleet.model_status(self.name).generation
        is_known = self._known is not None and self._known[0] == generation
        return self._known[1].vocabulary_size if is_known and self._known else None

    async def statistics(self) -> ServiceStatistics:
        """Return what the model holds now; nothing is loaded for that.

        Raises:
            WorkerLost: it is not loaded.
        """
        service = self._fleet.peek(self.name)
        if service is None:
            raise WorkerLost(f"{self.name} is not loaded")
        look = self._callers.look
        return await call(service, look, StatisticsQuestion(), ServiceStatistics, _LOOK_S)

    def pace(self, settings: ApiSettings) -> ApiSettings:
        """Return settings that let a client who waits for a load see that it goes on."""
        if self._fleet.model_status(self.name).state is ModelState.READY:
            return settings
        return replace(settings, headers_s=_LOADING_HEADERS_S, ping_s=_LOADING_PING_S)
