"""A script can stand in for an engine: the seam needs nothing of either side."""

import subprocess
import sys
from concurrent.futures import Future

import pytest

from corral.contract.events import FinishEvent, FinishReason, TokenEvent
from corral.contract.messages import GenerationRequest, TextPrompt
from corral.contract.questions import (
    Answer,
    Question,
    ServiceStatistics,
    StatisticsQuestion,
    TokenizeQuestion,
)
from corral.contract.service import Deliver, Service, awaited
from corral.errors import Closed, TimeLimitExceeded


class Script:
    """Answers every request with the same word."""

    def __init__(self) -> None:
        self.finished = 0

    def submit(self, request: GenerationRequest, deliver: Deliver) -> None:
        deliver(TokenEvent(request_id=request.request_id, token=1, text="word"))
        deliver(FinishEvent(request_id=request.request_id, reason=FinishReason.STOP))
        self.finished += 1

    def cancel(self, request_id: str) -> None:
        pass

    def inquire(self, question: Question) -> Future[Answer]:
        coming: Future[Answer] = Future()
        if isinstance(question, StatisticsQuestion):
            coming.set_result(ServiceStatistics(finished_requests=self.finished))
        return coming

    def ask(self, question: Question, *, timeout_s: float) -> Answer:
        return awaited(self.inquire(question), question, timeout_s)


def test_a_script_is_a_service():
    """Requests go in, events come out in order, and the statistics tell of them."""
    service: Service = Script()
    events = []
    service.submit(GenerationRequest(request_id="a", prompt=TextPrompt("Hi")), events.append)
    service.cancel("unknown")
    assert [type(event) for event in events] == [TokenEvent, FinishEvent]
    assert service.ask(StatisticsQuestion(), timeout_s=1).finished_requests == 1


def test_a_question_without_an_answer_is_given_up():
    """Whoever answers sees that nobody waits any more; one that is cancelled there is an error."""
    service, question = Script(), TokenizeQuestion("x")
    coming = service.inquire(question)
    with pytest.raises(TimeLimitExceeded, match="TokenizeQuestion"):
        awaited(coming, question, 0.001)
    assert coming.cancelled()
    with pytest.raises(Closed):
        awaited(coming, question, 1.0)


def test_light_imports():
    """The contract and what lies below it load no NumPy, Numba or compiler."""
    code = (
        "import sys, corral.contract.service, corral.config, corral.log, corral.paths;"
        "print([name for name in ('numpy', 'numba', 'llvmlite', 'tokenizers', 'jinja2') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
