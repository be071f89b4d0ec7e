"""The only seam between whoever wants answers (API, router, library) and whoever makes them.

An engine is a Service, and so is a worker at the other end of a socket, and a script in a test.
"""

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Protocol

from corral.contract.events import Event
from corral.contract.messages import GenerationRequest
from corral.contract.questions import Answer, Question
from corral.errors import Closed, TimeLimitExceeded

Deliver = Callable[[Event], None]
"""Takes one event. It is called from a thread of the service and must return at once: it puts the
event into a queue, and neither blocks nor raises."""


class Service(Protocol):
    """Typed requests in, events out.

    The events of a request are any number of TokenEvents, at most one ErrorEvent, and one
    FinishEvent, which is always the last. Every method may be called from any thread.
    """

    def submit(self, request: GenerationRequest, deliver: Deliver) -> None:
        """Queue a request and return; its events go to `deliver`.

        What is wrong with a request may be raised here or arrive as its ErrorEvent.

        Raises:
            InvalidArgument: a field is out of range, or the id belongs to a live request.
            ContextExceeded: the prompt is longer than the context.
            QueueFull: as many requests wait as may.
            WorkerLost: the process that holds the model is gone and not yet back.
            Closed: the service is closed.
        """
        ...

    def cancel(self, request_id: str) -> None:
        """End a request soon, with reason CANCELLED; an unknown or finished one is no error."""
        ...

    def inquire(self, question: Question) -> Future[Answer]:
        """Ask a question and return what its answer will come in; cancel that to give up.

        What is given up is not worked on any more, unless that has begun and takes no time.

        Raises:
            CorralError: WorkerLost, Closed and QueueFull as `submit`; whatever else the answering
                side raises comes in place of the answer.
        """
        ...

    def ask(self, question: Question, *, timeout_s: float) -> Answer:
        """Wait for the answer to a question, for so many seconds at most.

        Raises:
            TimeLimitExceeded: there is none after that time; the question was given up.
            CorralError: whatever the answering side raises, and as `inquire`.
        """
        ...


def awaited(coming: Future[Answer], question: Question, timeout_s: float) -> Answer:
    """Return an answer when it is there, or give its question up.

    Raises:
        TimeLimitExceeded: there was none after so many seconds.
        Closed: nobody will answer any more.
        CorralError: it came in place of the answer.
    """
    try:
        return coming.result(timeout_s)
    except FutureTimeout:
        coming.cancel()
        raise late(question, timeout_s) from None
    except CancelledError:
        raise Closed("whoever was asked is closed") from None


def settled(given: Answer) -> Future[Answer]:
    """Return an answer that is there already."""
    coming: Future[Answer] = Future()
    coming.set_result(given)
    return coming


def late(question: Question, timeout_s: float) -> TimeLimitExceeded:
    """Return what is raised when there is no answer in time."""
    return TimeLimitExceeded(f"a {type(question).__name__} was not answered in {timeout_s:g} s")
