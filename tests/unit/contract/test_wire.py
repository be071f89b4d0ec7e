"""Messages over a socket: they arrive as they were, and whatever else arrives ends it cleanly."""

import math
import socket
import struct
import threading

import msgspec
import pytest

from corral.contract import wire
from corral.contract.events import (
    ContentDelta,
    FinishEvent,
    FinishReason,
    TokenEvent,
    TokenLogprob,
    TokenLogprobs,
    Usage,
)
from corral.contract.messages import (
    ChatPrompt,
    Constraint,
    ConstraintKind,
    GenerationRequest,
    Message,
    TextPrompt,
    TokenPrompt,
)
from corral.contract.questions import EmbedQuestion, TokensAnswer
from corral.contract.sampling import SamplingParams
from corral.contract.worker import WorkerSpec
from corral.errors import InvalidArgument, ProtocolError

CHAT = ChatPrompt((Message("user", "Grüße\ud7ff"),))
REQUEST = GenerationRequest(
    request_id="a",
    prompt=CHAT,
    sampling=SamplingParams(seed=2**64 - 1, logit_bias=((3, -math.inf),)),
    constraint=Constraint(ConstraintKind.REGEX, "a+"),
)
TOKEN = TokenEvent(
    request_id="a",
    token=7,
    text="x",
    deltas=(ContentDelta("x"),),
    logprobs=TokenLogprobs(TokenLogprob(7, -0.5, b"\xff"), (TokenLogprob(8, -1.0),)),
)
FINISH = FinishEvent(request_id="a", reason=FinishReason.LENGTH, usage=Usage(prompt_tokens=3))
COMMANDS = [
    wire.Start(WorkerSpec(model="/m.gguf", visible_devices=("GPU-1",))),
    wire.Submit(REQUEST),
    wire.Submit(GenerationRequest(request_id="b", prompt=TokenPrompt((1, 2)))),
    wire.Cancel("a"),
    wire.Ask(3, EmbedQuestion(TextPrompt("x"))),
    wire.Forget(3),
    wire.Stop(0.5),
]
REPORTS = [
    wire.Progress("read", 1, 2),
    wire.Failed("closed", "x"),
    wire.Happened((TOKEN, FINISH)),
    wire.Answered(3, TokensAnswer((1,), (b"\x00",))),
    wire.Refused(3, "closed", "x"),
]


@pytest.fixture
def ends():
    """Return the channels of a router and a worker."""
    left, right = socket.socketpair()
    router, worker = wire.Channel(left, wire.reports), wire.Channel(right, wire.commands)
    yield router, worker
    router.close()
    worker.close()


@pytest.fixture
def raw():
    """Return a bare socket and the channel of a worker at its other end."""
    left, right = socket.socketpair()
    worker = wire.Channel(right, wire.commands)
    yield left, worker
    left.close()
    worker.close()


def frame(data):
    return struct.pack("<I", len(data)) + data


def test_both_sides_greet(ends):
    """Two of one version go on, whoever speaks first."""
    router, worker = ends
    other = threading.Thread(target=worker.greet)
    other.start()
    router.greet()
    other.join()
    router.send(COMMANDS[3])
    assert worker.receive() == COMMANDS[3]


@pytest.mark.parametrize(
    "hello",
    [
        msgspec.msgpack.encode(wire.Hello(version=wire.VERSION + 1)),
        msgspec.msgpack.encode(wire.Hello(name="other")),
        b"GET / HTTP/1.1\r\n",
        b"",
    ],
)
def test_another_language_is_refused(raw, hello):
    """A version that differs, or no greeting at all, ends the connection with an error."""
    bare, worker = raw
    bare.sendall(frame(hello))
    with pytest.raises(ProtocolError):
        worker.greet()


def test_nobody_there_is_no_greeting(raw):
    """A side that left is told apart from one that speaks nonsense."""
    bare, worker = raw
    bare.shutdown(socket.SHUT_WR)
    with pytest.raises(EOFError):
        worker.greet()


@pytest.mark.parametrize("message", COMMANDS, ids=lambda m: type(m).__name__)
def test_commands_arrive_as_they_were(ends, message):
    """All that a router says."""
    router, worker = ends
    router.send(message)
    assert worker.receive() == message


@pytest.mark.parametrize("message", REPORTS, ids=lambda m: type(m).__name__)
def test_reports_arrive_as_they_were(ends, message):
    """All that a worker says."""
    router, worker = ends
    worker.send(message)
    assert router.receive() == message


def test_long_messages_arrive_whole(ends):
    """What is longer than any buffer of the system comes in pieces and is one again."""
    router, worker = ends
    text = "é" * (2 << 20)
    sent = wire.Submit(GenerationRequest(request_id="a", prompt=TextPrompt(text)))
    sender = threading.Thread(target=router.send, args=(sent,))
    sender.start()
    assert worker.receive() == sent
    sender.join()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<I", wire.MAX_FRAME_BYTES + 1),
        frame(b"\xc1"),
        frame(b""),
        frame(msgspec.msgpack.encode({"type": "unknown"})),
        frame(msgspec.msgpack.encode({"type": "cancel", "request_id": 3})),
        frame(msgspec.msgpack.encode(wire.Progress("x", 1, 2))),
    ],
    ids=["too-long", "no-msgpack", "empty", "unknown", "wrong-type", "wrong-direction"],
)
def test_nonsense_is_a_protocol_error(raw, data):
    """Nothing that arrives is believed."""
    bare, worker = raw
    bare.sendall(data)
    with pytest.raises(ProtocolError):
        worker.receive()


@pytest.mark.parametrize("data", [b"", b"\x05", frame(b"12345")[:-1]])
def test_a_cut_connection_is_the_end(raw, data):
    """Half a frame is none."""
    bare, worker = raw
    bare.sendall(data)
    bare.shutdown(socket.SHUT_WR)
    assert worker.receive() is None


def test_a_frame_too_long_is_not_sent(ends, monkeypatch):
    """Whoever sends too much is told, and the connection goes on."""
    router, worker = ends
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 64)
    with pytest.raises(InvalidArgument, match="send less text"):
        router.send(wire.Submit(GenerationRequest(request_id="a", prompt=TextPrompt("x" * 99))))
    router.send(wire.Cancel("a"))
    assert worker.receive() == wire.Cancel("a")


def test_shutting_wakes_who_waits(ends):
    """A thread that waits for a message is told that there will be none."""
    router, _ = ends
    got = []
    waiting = threading.Thread(target=lambda: got.append(router.receive()))
    waiting.start()
    router.shut()
    router.shut()
    waiting.join()
    assert got == [None]
