"""Parts of a worker that need no process of their own; `unit/router` tests whole ones."""

import os
import socket
import struct
from concurrent.futures import Future

import pytest

from corral.contract import wire
from corral.contract.events import TokenEvent
from corral.contract.questions import (
    ServiceStatistics,
    StatisticsQuestion,
    TokenizeQuestion,
    TokensAnswer,
)
from corral.contract.worker import WorkerExit, WorkerSpec
from corral.errors import TemplateError
from corral.log import logger
from corral.worker.complaints import complaining
from corral.worker.outbox import Outbox
from corral.worker.worker import Worker, _seldom, main


@pytest.fixture
def ends():
    """Return a worker's channel and the bare socket at its other end."""
    near, far = socket.socketpair()
    yield wire.Channel(near, wire.commands), wire.Channel(far, wire.reports)
    near.close()
    far.close()


def token(number):
    return TokenEvent(request_id="a", token=number)


def test_the_events_of_a_step_go_in_one_frame(ends):
    """Nothing is sent between, and a step without events sends nothing."""
    near, far = ends
    outbox = Outbox(near)
    for step in ((1, 2, 3), (), (4,)):
        for number in step:
            outbox.put(token(number))
        outbox.flush()
    outbox.send(wire.Progress("x", 1, 1))
    outbox.close()
    assert far.receive() == wire.Happened((token(1), token(2), token(3)))
    assert far.receive() == wire.Happened((token(4),))
    assert far.receive() == wire.Progress("x", 1, 1)


def test_an_answer_too_long_is_refused(ends, monkeypatch):
    """Whoever asked is told, and what follows is sent."""
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 200)
    near, far = ends
    outbox = Outbox(near)
    outbox.send(wire.Answered(7, TokensAnswer(tuple(range(999)))))
    outbox.send(wire.Progress("x", 1, 1))
    outbox.close()
    refused = far.receive()
    assert (refused.number, refused.code) == (7, "invalid_argument")
    assert far.receive() == wire.Progress("x", 1, 1)


def test_nobody_at_the_other_end_is_no_error(ends):
    """What is said to nobody is gone, and the worker ends as it would."""
    near, far = ends
    far.shut()
    outbox = Outbox(near)
    for _ in range(3):
        outbox.send(wire.Progress("x", 1, 1))
    outbox.close()


def test_errors_in_the_log_are_passed_on(ends):
    """Nobody reads a worker's standard error; warnings and what comes later stay there."""
    near, far = ends
    outbox, log = Outbox(near), logger("corral.engine.anything")
    with complaining(outbox):
        log.warning("small")
        log.error("%s is wrong", "this")
    log.error("later")
    outbox.send(wire.Progress("x", 1, 1))
    outbox.close()
    assert far.receive() == wire.Complained("this is wrong")
    assert far.receive() == wire.Progress("x", 1, 1)


class Busy:
    """A service that answers questions about itself, and no other until it is let go."""

    def __init__(self):
        self.coming = []

    def inquire(self, question):
        """Answer at once, or later."""
        coming = Future()
        if isinstance(question, StatisticsQuestion):
            coming.set_result(ServiceStatistics(steps=5))
        else:
            self.coming.append(coming)
        return coming


def test_how_it_is_can_be_asked_however_busy_it_is(ends):
    """A worker with as many long questions as there may be still tells of itself."""
    near, far = ends
    worker, service = Worker(near, WorkerSpec(model="m")), Busy()
    worker._service = service
    for number in range(40):
        worker._obey(wire.Ask(number, TokenizeQuestion("x")))
    worker._obey(wire.Ask(99, StatisticsQuestion()))
    assert far.receive() == wire.Answered(99, ServiceStatistics(steps=5))
    for coming in service.coming:
        coming.set_result(TokensAnswer(()))
    assert {far.receive().number for _ in range(40)} == set(range(40))
    worker._outbox.close()


def test_what_nobody_waits_for_is_given_up(ends):
    """A question that is forgotten is cancelled and not answered; others and strangers are not."""
    near, far = ends
    worker, service = Worker(near, WorkerSpec(model="m")), Busy()
    worker._service = service
    for number in range(3):
        worker._obey(wire.Ask(number, TokenizeQuestion("x")))
    worker._obey(wire.Forget(1))
    worker._obey(wire.Forget(77))
    assert [coming.cancelled() for coming in service.coming] == [False, True, False]
    service.coming[2].cancel()  # as a service does that closes
    service.coming[0].set_exception(TemplateError("no"))
    found = [far.receive(), far.receive()]
    assert [(one.number, one.code) for one in found] == [(2, "closed"), (0, "template")]
    assert not worker._inquiries
    worker._outbox.close()


def test_progress_is_told_seldom():
    """Each stage's beginning and end, and little between."""
    told = []
    pass_on = _seldom(lambda *what: told.append(what))
    for stage in ("kernels", "read"):
        for done in range(1000):
            pass_on(stage, done, 999)
    assert {("kernels", 0, 999), ("kernels", 999, 999)} <= set(told)
    assert {("read", 0, 999), ("read", 999, 999)} <= set(told)
    assert len(told) < 200


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (b"", WorkerExit.PARENT_GONE),
        (struct.pack("<I", 1) + b"\xc1", WorkerExit.PROTOCOL),
    ],
)
def test_without_a_greeting_a_worker_ends(said, code, monkeypatch):
    """A parent that is gone, and one that speaks nonsense, are told apart."""
    monkeypatch.setattr("corral.worker.worker.die_with", lambda parent: True)
    monkeypatch.setattr("corral.log.configure", lambda verbosity: None)
    near, far = socket.socketpair()
    with far:
        far.sendall(said)
        far.shutdown(socket.SHUT_WR)
        assert main(["--fd", str(near.detach()), "--parent", "1"]) is code


def test_an_orphan_ends_at_once(monkeypatch):
    """The parent may die before the system is asked to tell of it."""
    monkeypatch.setattr("corral.worker.worker.die_with", lambda parent: parent == os.getpid())
    assert main(["--fd", "99", "--parent", "1"]) is WorkerExit.PARENT_GONE
