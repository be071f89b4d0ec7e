"""What tickets stand for: a request to be answered, or a model to be held for questions."""

from concurrent.futures import Future
from typing import Protocol

from corral.contract.events import ErrorEvent, Event, FinishEvent, FinishReason, error_event
from corral.contract.fleet import Hold
from corral.contract.messages import GenerationRequest
from corral.contract.service import Deliver, Service
from corral.errors import CorralError, WorkerLost

_MOST_TRIES = 3
"""Processes that may die before one of them begins to answer a request."""


class Counter(Protocol):
    """Where tickets are given back."""

    def release(self, ticket: str) -> None:
        """Take note that a ticket is used no more."""
        ...

    def put_back(self, ticket: str, generation: int) -> None:
        """Let a ticket wait again: that process of its model is dead."""
        ...


class Claim(Protocol):
    """Somebody with a ticket."""

    def granted(self, service: Service, generation: int) -> None:
        """Use the model now; returns soon and raises nothing."""
        ...

    def denied(self, error: CorralError) -> None:
        """Take the error; the ticket is gone."""
        ...


class Run:
    """A request from its arrival to its last event.

    One whose process dies before it began to be answered waits for the next process: nobody was
    told anything yet.
    """

    def __init__(self, counter: Counter, request: GenerationRequest, deliver: Deliver) -> None:
        """Answer a request whose id is its ticket."""
        self._counter = counter
        self._request = request
        self._deliver = deliver
        self._service: Service | None = None
        self._generation = 0
        self._tries = 0
        self._has_begun = False
        self._is_lost = False
        self._is_cancelled = False

    @property
    def ticket(self) -> str:
        """The request's id."""
        return self._request.request_id

    def granted(self, service: Service, generation: int) -> None:
        """Submit the request to the process."""
        if self._is_cancelled:
            self._end(FinishReason.CANCELLED)
            return
        self._service, self._generation = service, generation
        self._tries += 1
        try:
            service.submit(self._request, self._take)
        except WorkerLost as error:
            self._lose(error)
        except CorralError as error:
            self._fail(error)
        else:
            if self._is_cancelled:
                service.cancel(self.ticket)

    def denied(self, error: CorralError) -> None:
        """Tell why it is not answered."""
        self._deliver(error_event(self.ticket, error))
        self._deliver(FinishEvent(request_id=self.ticket, reason=FinishReason.ERROR))

    def cancel(self, *, is_waiting: bool) -> None:
        """End soon; one that waits ends at once."""
        self._is_cancelled = True
        if is_waiting:
            self._end(FinishReason.CANCELLED)
        elif self._service is not None:
            self._service.cancel(self.ticket)

    def _take(self, event: Event) -> None:
        """Pass an event on; called by a thread of the process's service."""
        match event:
            case ErrorEvent(code=WorkerLost.code) if self._may_wait():
                self._is_lost = True
            case FinishEvent() if self._is_lost:
                self._is_lost = False
                self._lose(WorkerLost(""))
            case FinishEvent():
                self._deliver(event)
                self._counter.release(self.ticket)
            case _:
                self._has_begun = True
                self._deliver(event)

    def _may_wait(self) -> bool:
        return not self._has_begun and self._tries < _MOST_TRIES

    def _lose(self, error: WorkerLost) -> None:
        if self._is_cancelled:
            self._end(FinishReason.CANCELLED)
        elif self._may_wait():
            self._counter.put_back(self.ticket, self._generation)
        else:
            self._fail(error)

    def _fail(self, error: CorralError) -> None:
        self._deliver(error_event(self.ticket, error))
        self._end(FinishReason.ERROR)

    def _end(self, reason: FinishReason) -> None:
        self._deliver(FinishEvent(request_id=self.ticket, reason=reason))
        self._counter.release(self.ticket)


class HeldModel:
    """A model that stays until it is given back."""

    def __init__(self, counter: Counter, ticket: str, service: Service) -> None:
        """Hold a model by a ticket."""
        self._counter = counter
        self._ticket = ticket
        self.service = service

    def release(self) -> None:
        """Give the model back; a second call does nothing."""
        self._counter.release(self._ticket)


class Holding:
    """Somebody who waits for a model to ask it something."""

    def __init__(self, counter: Counter, ticket: str) -> None:
        """Wait with a ticket; who cancels the future gives it back."""
        self.future: Future[Hold] = Future()
        self._counter = counter
        self._ticket = ticket
        self.future.add_done_callback(self._forget_if_cancelled)

    def granted(self, service: Service, generation: int) -> None:
        """Hand the model over."""
        del generation
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(HeldModel(self._counter, self._ticket, service))

    def denied(self, error: CorralError) -> None:
        """Tell why there is none."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)

    def _forget_if_cancelled(self, future: "Future[Hold]") -> None:
        if future.cancelled():
            self._counter.release(self._ticket)
