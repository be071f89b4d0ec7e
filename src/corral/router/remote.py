"""A worker at the other end of a socket, as a `Service`: requests out, events in.

One thread reads, by calling `read`; it delivers events and answers. When the connection ends, all
that was under way ends with WorkerLost. It knows no process.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from corral.contract import wire
from corral.contract.events import (
    Event,
    FinishEvent,
    FinishReason,
    error_event,
    error_of,
)
from corral.contract.messages import GenerationRequest
from corral.contract.questions import Answer, Description, Question
from corral.contract.service import Deliver, awaited
from corral.errors import (
    CorralError,
    InvalidArgument,
    ProtocolError,
    QueueFull,
    WorkerLost,
)
from corral.log import logger

Watcher = Callable[[wire.Told], None]
"""Told what a worker says of itself, in the reading thread."""
_log = logger(__name__)


class RemoteService:
    """One connection to one worker, from its greeting to its end."""

    def __init__(
        self, channel: wire.Channel[wire.Report], watch: Watcher, *, queue_capacity: int
    ) -> None:
        """Speak over a channel, whose worker lets so many requests wait."""
        self._channel = channel
        self._watch = watch
        self._queue_capacity = queue_capacity
        self._lock = threading.Lock()
        """Guards all that follows; never held while anything is sent or delivered."""
        self._live: dict[str, Deliver] = {}
        self._asked: dict[int, Future[Answer]] = {}
        self._next_number = 0
        self._most_live = 0
        self._lost: CorralError | None = None
        self._given_up: CorralError | None = None

    def read(self) -> None:
        """Deliver what comes until the connection ends, then end what was under way."""
        try:
            while (report := self._channel.receive()) is not None:
                self._take(report)
            self._lose(self._given_up or WorkerLost("the process that holds the model is gone"))
        except ProtocolError as error:
            self._lose(error)

    def submit(self, request: GenerationRequest, deliver: Deliver) -> None:
        """Queue a request and return; raises as `contract.service.Service` says."""
        request.validate()
        with self._lock:
            self._require_there()
            if request.request_id in self._live:
                raise InvalidArgument(
                    f"request_id {request.request_id!r} belongs to a request that is not finished; "
                    "expected a new one"
                )
            if len(self._live) >= self._most_live:
                raise QueueFull(
                    f"{len(self._live)} requests run or wait, the most there may be: try again "
                    "later, or serve with a larger queue"
                )
            self._live[request.request_id] = deliver
        try:
            self._channel.send(wire.Submit(request))
        except OSError:
            return  # the reading thread sees the end, too, and tells whoever waits
        except CorralError:
            with self._lock:
                self._live.pop(request.request_id, None)
            raise

    def cancel(self, request_id: str) -> None:
        """End a request soon; an unknown or finished one is no error."""
        with self._lock:
            if request_id not in self._live:
                return
        self._tell(wire.Cancel(request_id))

    def inquire(self, question: Question) -> Future[Answer]:
        """Ask a question; raises as `contract.service.Service` says."""
        wire.require_readable(question)
        coming: Future[Answer] = Future()
        with self._lock:
            self._require_there()
            number = self._next_number
            self._next_number += 1
            self._asked[number] = coming
        try:
            self._tell(wire.Ask(number, question))
        except CorralError:
            with self._lock:
                self._asked.pop(number, None)
            raise
        coming.add_done_callback(partial(self._forget, number))
        return coming

    def ask(self, question: Question, *, timeout_s: float) -> Answer:
        """Wait for the answer to a question; raises as `contract.service.Service` says."""
        return awaited(self.inquire(question), question, timeout_s)

    def _forget(self, number: int, coming: Future[Answer]) -> None:
        """Have a question forgotten that was given up."""
        if coming.cancelled():
            with self._lock:
                is_open = self._asked.pop(number, None) is not None
            if is_open:
                self._tell(wire.Forget(number))

    def stop(self, drain_s: float) -> None:
        """Have the worker end, and what runs get so many seconds."""
        self._tell(wire.Stop(drain_s))

    def give_up(self, reason: CorralError) -> None:
        """End the connection, and all that is under way with this error; from any thread."""
        self._given_up = reason
        self._channel.shut()

    @property
    def num_live(self) -> int:
        """Requests under way."""
        return len(self._live)

    def _tell(self, command: wire.Command) -> None:
        try:
            self._channel.send(command)
        except OSError:
            return  # the reading thread sees the end, too

    def _require_there(self) -> None:
        if self._lost is not None:
            raise type(self._lost)(str(self._lost))

    # What follows runs in the reading thread.

    def _take(self, report: wire.Report) -> None:
        match report:
            case wire.Happened(events=events):
                for event in events:
                    self._deliver(event)
            case wire.Answered(number=number, answer=answer):
                self._answer(number, answer)
            case wire.Refused(number=number, code=code, message=message):
                self._answer(number, error_of(code, message))
            case wire.Ready(description=description):
                self._open(description)
                self._watch(report)
            case _:
                self._watch(report)

    def _open(self, description: Description) -> None:
        with self._lock:
            self._most_live = description.parallel + self._queue_capacity

    def _deliver(self, event: Event) -> None:
        is_last = isinstance(event, FinishEvent)
        with self._lock:
            live = self._live
            name = event.request_id
            deliver = live.pop(name, None) if is_last else live.get(name)
        if deliver is None:
            return
        try:
            deliver(event)
        except Exception:  # whoever takes events broke the promise not to raise
            _log.error("an event was not taken", exc_info=True)

    def _answer(self, number: int, answer: Answer | CorralError) -> None:
        with self._lock:
            coming = self._asked.pop(number, None)
        if coming is None or not coming.set_running_or_notify_cancel():
            return  # nobody waits any more
        if isinstance(answer, CorralError):
            coming.set_exception(answer)
        else:
            coming.set_result(answer)

    def _lose(self, error: CorralError) -> None:
        """End all that is under way with an error."""
        with self._lock:
            self._lost = error
            live, asked = list(self._live), list(self._asked)
        for request_id in live:
            self._deliver(error_event(request_id, error))
            self._deliver(FinishEvent(request_id=request_id, reason=FinishReason.ERROR))
        for number in asked:
            self._answer(number, error)
