"""The near end of a worker's socket, with a script at the far end."""

import socket
import threading
from contextlib import contextmanager

import pytest

from corral.contract import wire
from corral.contract.events import FinishEvent, FinishReason, TokenEvent
from corral.contract.questions import (
    Description,
    DetokenizeQuestion,
    StatisticsQuestion,
    TextAnswer,
    TokenizeQuestion,
)
from corral.errors import (
    InvalidArgument,
    ProtocolError,
    QueueFull,
    TemplateError,
    TimeLimitExceeded,
    WorkerLost,
)
from corral.router.remote import RemoteService
from serving import LIMIT_S, Taker, request, submit

DESCRIPTION = Description(
    model="script",
    architecture="llama",
    device="cpu",
    context=8,
    parallel=1,
    vocabulary_size=9,
    num_parameters=1,
    weights_bytes=1,
    embedding_columns=1,
    chat_template=None,
    bos="",
    eos="",
    kv_type="f16",
    memory=(),
)


class Script:
    """The far end: sends what a test says, and hears what it should."""

    def __init__(self, connection, bare):
        self.bare = bare
        self.channel = wire.Channel(connection, wire.commands)
        self.send, self.hear = self.channel.send, self.channel.receive

    def end(self):
        """Be gone."""
        self.channel.shut()


@contextmanager
def connected(*, is_ready=True, queue_capacity=1):
    """Give a remote service that reads, and the script it speaks to."""
    ours, theirs = socket.socketpair()
    channel, told = wire.Channel(ours, wire.reports), []
    service = RemoteService(channel, told.append, queue_capacity=queue_capacity)
    script = Script(theirs, theirs)
    reading = threading.Thread(target=service.read)
    reading.start()
    try:
        if is_ready:
            script.send(wire.Ready(DESCRIPTION))
            script.send(wire.Progress("known", 1, 1))
            while len(told) < 2:
                threading.Event().wait(0.001)
        yield service, script
    finally:
        script.end()
        reading.join()
        channel.close()
        script.channel.close()


def token(name, number=1):
    return TokenEvent(request_id=name, token=number, text="x")


def finish(name):
    return FinishEvent(request_id=name, reason=FinishReason.STOP)


def test_requests_go_out_and_events_come_in():
    """Each event goes to whoever waits for it, in order; unknown ones to nobody."""
    with connected() as (service, script):
        one, two = submit(service, "one"), submit(service, "two")
        assert script.hear() == wire.Submit(request("one"))
        assert script.hear() == wire.Submit(request("two"))
        script.send(wire.Happened((token("two", 5), token("one"), token("three"), finish("two"))))
        script.send(wire.Happened((token("one", 2), finish("one"), finish("one"))))
        one.finish()
        two.finish()
        assert (one.tokens, two.tokens) == ([1, 2], [5])
        assert service.num_live == 0


def test_cancels_are_passed_on_once_needed():
    """One of an unknown request says nothing."""
    with connected() as (service, script):
        submit(service, "a")
        service.cancel("unknown")
        service.cancel("a")
        assert isinstance(script.hear(), wire.Submit)
        assert script.hear() == wire.Cancel("a")


def test_what_is_wrong_is_seen_before_it_is_sent():
    """Fields, ids and the length of the queue."""
    with connected() as (service, script):
        with pytest.raises(InvalidArgument):
            submit(service, "a", max_tokens=-1)
        submit(service, "a")
        with pytest.raises(InvalidArgument, match="'a'"):
            submit(service, "a")
        submit(service, "b")
        with pytest.raises(QueueFull):
            submit(service, "c")
        script.send(wire.Happened((finish("a"),)))
        assert [script.hear().request.request_id for _ in range(2)] == ["a", "b"]


def test_a_request_too_long_for_a_frame_is_refused(monkeypatch):
    """It is then not live, and the connection goes on."""
    with connected() as (service, script):
        with monkeypatch.context() as patched:
            patched.setattr(wire, "MAX_FRAME_BYTES", 64)
            with pytest.raises(InvalidArgument, match="send less"):
                submit(service, "a")
        submit(service, "a")
        assert script.hear() == wire.Submit(request("a"))


def test_questions_are_answered_by_number():
    """Out of order, refused, and too late."""
    with connected() as (service, script):
        answers = {}

        def ask(text):
            try:
                answers[text] = service.ask(TokenizeQuestion(text), timeout_s=LIMIT_S)
            except TemplateError as error:
                answers[text] = str(error)

        threads = [threading.Thread(target=ask, args=(text,)) for text in ("x", "y")]
        for thread in threads:
            thread.start()
        asked = {heard.question.text: heard.number for heard in (script.hear(), script.hear())}
        script.send(wire.Refused(asked["y"], "template", "no"))
        script.send(wire.Answered(99, TextAnswer("nobody asked")))
        script.send(wire.Answered(asked["x"], TextAnswer("yes")))
        for thread in threads:
            thread.join()
        assert answers == {"x": TextAnswer("yes"), "y": "no"}
        with pytest.raises(TimeLimitExceeded):
            service.ask(StatisticsQuestion(), timeout_s=0.01)
        late = script.hear()
        assert script.hear() == wire.Forget(late.number)
        script.send(wire.Answered(late.number, TextAnswer("too late")))
        assert not service._asked


def test_a_question_that_is_given_up_is_forgotten_at_the_other_end():
    """Once; one that was answered is not."""
    with connected() as (service, script):
        given_up, kept = (service.inquire(TokenizeQuestion(text)) for text in "xy")
        first, second = script.hear(), script.hear()
        given_up.cancel()
        given_up.cancel()
        assert script.hear() == wire.Forget(first.number)
        script.send(wire.Answered(second.number, TextAnswer("yes")))
        assert kept.result(LIMIT_S) == TextAnswer("yes")
        kept.cancel()
        submit(service, "a")
        assert script.hear() == wire.Submit(request("a"))


def test_a_lost_worker_ends_all_that_was_under_way():
    """Requests get an error and an end, questions an error, and nobody waits."""
    with connected() as (service, script):
        takers = [submit(service, name) for name in "ab"]
        failed = []

        def ask():
            try:
                service.ask(StatisticsQuestion(), timeout_s=LIMIT_S)
            except WorkerLost as error:
                failed.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        script.send(wire.Happened((token("a"),)))
        takers[0].next()
        for _ in range(3):
            script.hear()
        script.end()
        assert [taker.finish().reason for taker in takers] == [FinishReason.ERROR] * 2
        assert [taker.error for taker in takers] == ["worker_lost"] * 2
        asking.join()
        assert len(failed) == 1
        for late in (
            lambda: submit(service),
            lambda: service.ask(StatisticsQuestion(), timeout_s=1),
        ):
            with pytest.raises(WorkerLost):
                late()


def test_nonsense_ends_the_connection():
    """What cannot be read is never guessed at."""
    with connected() as (service, script):
        taker = submit(service, "a")
        script.bare.sendall(b"\x01\x00\x00\x00\xc1")
        taker.finish()
        assert taker.error == "protocol"
        with pytest.raises(ProtocolError):
            submit(service, "b")


def test_a_consumer_that_raises_stops_nobody():
    """Its own events are lost, those of others are not."""
    with connected() as (service, script):
        service.submit(request("a"), lambda event: 1 / 0)
        other = submit(service, "b")
        script.send(wire.Happened((token("a"), finish("a"), token("b"), finish("b"))))
        assert other.finish().reason is FinishReason.STOP


def test_nothing_is_taken_before_the_model_is_there():
    """A worker that loads has no room for requests yet."""
    with connected(is_ready=False, queue_capacity=0) as (service, _), pytest.raises(QueueFull):
        service.submit(request("a"), Taker())


def test_what_no_message_can_hold_is_refused_and_harms_nothing():
    """Half of a surrogate pair, numbers without end, wrong types: nothing of it is sent."""
    with connected() as (service, script):
        with pytest.raises(InvalidArgument, match="surrogates"):
            submit(service, "a", "\ud800")
        for tokens in ((1 << 80,), ("x",), (True,)):
            with pytest.raises(InvalidArgument):
                service.ask(DetokenizeQuestion(tokens), timeout_s=LIMIT_S)
        assert service.num_live == 0
        submit(service, "a")
        assert script.hear() == wire.Submit(request("a"))
