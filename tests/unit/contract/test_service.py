"""A script can stand in for an engine: the seam needs nothing of either side."""

import subprocess
import sys

from corral.contract.events import FinishEvent, FinishReason, TokenEvent
from corral.contract.messages import GenerationRequest, TextPrompt
from corral.contract.questions import Answer, Question, ServiceStatistics, StatisticsQuestion
from corral.contract.service import Deliver, Service


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

    def ask(self, question: Question, *, timeout_s: float) -> Answer:
        assert isinstance(question, StatisticsQuestion)
        return ServiceStatistics(finished_requests=self.finished)


def test_a_script_is_a_service():
    """Requests go in, events come out in order, and the statistics tell of them."""
    service: Service = Script()
    events = []
    service.submit(GenerationRequest(request_id="a", prompt=TextPrompt("Hi")), events.append)
    service.cancel("unknown")
    assert [type(event) for event in events] == [TokenEvent, FinishEvent]
    assert service.ask(StatisticsQuestion(), timeout_s=1).finished_requests == 1


def test_light_imports():
    """The contract and what lies below it load no NumPy, Numba or compiler."""
    code = (
        "import sys, corral.contract.service, corral.config, corral.log, corral.paths;"
        "print([name for name in ('numpy', 'numba', 'llvmlite', 'tokenizers', 'jinja2') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
