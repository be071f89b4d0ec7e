"""The contract on a socket: frames of msgpack, each behind its length.

    router                          worker
       │── Hello ─────────────────────▶│   frame: length in 4 bytes, little-endian; msgpack
       │◀──────────────────── Hello ───│
       │── Start ─────────────────────▶│
       │◀─────────────── Progress* ────│
       │◀────────── Ready or Failed ───│
       │── Submit, Cancel, Ask … ─────▶│   and Forget, Stop
       │◀── Happened, Answered, Refused│
       │◀──────────────────── Saved? ──│   when it ends

Whatever has another version, a frame too long or a message that cannot be read ends a connection.
It knows no process: who is at the other end does not matter.
"""

import socket
import struct
import threading
from typing import Generic, TypeVar

import msgspec

from corral.contract.events import Event
from corral.contract.messages import GenerationRequest
from corral.contract.questions import Answer, Description, Question
from corral.contract.sessions import SessionsRestored, SessionsSaved
from corral.contract.worker import WorkerSpec
from corral.errors import InvalidArgument, ProtocolError

VERSION = 7
"""Of what crosses a socket; whoever changes a message raises it."""
MAX_FRAME_BYTES = 256 << 20
_PIECE_BYTES = 1 << 20
_LENGTH = struct.Struct("<I")


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first frame of each side; its form never changes."""

    version: int = VERSION
    name: str = "corral"


class Start(msgspec.Struct, frozen=True, tag="start"):
    """What the worker is to hold."""

    spec: WorkerSpec


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """An answer is wanted; its events come in `Happened`."""

    request: GenerationRequest


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """An answer is wanted no more."""

    request_id: str


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """A question, with a number that comes back with its answer."""

    number: int
    question: Question


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """Nobody waits for the answer to a question any more."""

    number: int


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """The worker is to end, and what runs gets so many seconds."""

    drain_s: float


Command = Start | Submit | Cancel | Ask | Forget | Stop


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """What a worker does while it loads."""

    stage: str
    done: int
    total: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The model is loaded."""

    description: Description
    restored: SessionsRestored | None = None
    """What it knows of earlier conversations; None if none are kept."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The worker ends because of an error."""

    code: str
    message: str


class Complained(msgspec.Struct, frozen=True, tag="complained"):
    """An error that somebody has to know of, whatever becomes of requests."""

    message: str


class Saved(msgspec.Struct, frozen=True, tag="saved"):
    """The last conversations are on disk; nothing else is said after that."""

    sessions: SessionsSaved


class Happened(msgspec.Struct, frozen=True, tag="happened"):
    """Events of any requests, in order: all those of one step."""

    events: tuple[Event, ...]


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """The answer to a question."""

    number: int
    answer: Answer


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Why a question has no answer."""

    number: int
    code: str
    message: str


Told = Progress | Ready | Failed | Complained | Saved
"""What a worker says of itself."""
Report = Told | Happened | Answered | Refused

_Incoming = TypeVar("_Incoming")
_encoder = msgspec.msgpack.Encoder()
_hello = msgspec.msgpack.Decoder(Hello)
_questions: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
"""Reads what a worker is told."""
reports: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)
"""Reads what a worker says."""


def require_readable(question: Question) -> None:
    """Refuse a question that the other side could not read: that would end the connection.

    Raises:
        InvalidArgument: a field is of another type than it may be.
    """
    try:
        _questions.decode(_written(question))
    except msgspec.MsgspecError as error:
        kind = type(question).__name__
        raise InvalidArgument(f"a {kind} holds what it may not: {error}") from error


def _written(message: msgspec.Struct) -> bytes:
    try:
        return _encoder.encode(message)
    except (UnicodeEncodeError, OverflowError, TypeError) as error:
        raise InvalidArgument(
            f"{type(message).__name__.lower()} holds what no message can: {error}; expected whole "
            "characters and numbers of 64 bits"
        ) from error


class Channel(Generic[_Incoming]):
    """Frames over one connected socket; any thread may send, one at a time receives."""

    def __init__(
        self, connection: socket.socket, incoming: msgspec.msgpack.Decoder[_Incoming]
    ) -> None:
        """Own a socket whose other end sends what `incoming` reads."""
        self._socket = connection
        self._incoming = incoming
        self._sending = threading.Lock()

    def greet(self) -> None:
        """Exchange versions; to be called once, before anything else.

        Raises:
            ProtocolError: the other side speaks another version, or not this language.
            EOFError: it is gone.
        """
        self._send_frame(_encoder.encode(Hello()))
        frame = self._receive_frame()
        if frame is None:
            raise EOFError("the other side closed the connection without a greeting")
        try:
            hello = _hello.decode(frame)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ProtocolError(f"the other side does not greet: {error}") from error
        if hello != Hello():
            raise ProtocolError(
                f"the other side speaks version {hello.version} of {hello.name[:40]!r}, this one "
                f"version {VERSION} of 'corral': run both from one installation"
            )

    def send(self, message: Command | Report) -> None:
        """Send a message whole.

        Raises:
            InvalidArgument: it is longer than a frame may be, or holds what cannot be written, such
                as half of a surrogate pair; nothing was sent.
            OSError: the other side is gone.
        """
        frame = _written(message)
        if len(frame) > MAX_FRAME_BYTES:
            raise InvalidArgument(
                f"a message takes {len(frame)} bytes between processes, expected at most "
                f"{MAX_FRAME_BYTES}: send less text"
            )
        self._send_frame(frame)

    def receive(self) -> _Incoming | None:
        """Wait for a message; None when the other side is gone.

        Raises:
            ProtocolError: what arrives is no message.
        """
        frame = self._receive_frame()
        if frame is None:
            return None
        try:
            return self._incoming.decode(frame)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ProtocolError(f"a message cannot be read: {error}") from error

    def shut(self) -> None:
        """Let both directions end, whoever waits for them; a second call does nothing."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other side is gone, or we were here before
            return

    def close(self) -> None:
        """Close the socket; whoever receives must have been told by `shut` before."""
        self._socket.close()

    def _send_frame(self, frame: bytes) -> None:
        head = _LENGTH.pack(len(frame))
        with self._sending:
            if len(frame) <= _PIECE_BYTES:
                self._socket.sendall(head + frame)
            else:  # not copied: it may be as long as a body
                self._socket.sendall(head)
                self._socket.sendall(frame)

    def _receive_frame(self) -> bytes | bytearray | None:
        head = self._receive_bytes(_LENGTH.size)
        if head is None:
            return None
        (length,) = _LENGTH.unpack(head)
        if length > MAX_FRAME_BYTES:
            raise ProtocolError(
                f"a frame of {length} bytes is announced, expected at most {MAX_FRAME_BYTES}"
            )
        return self._receive_bytes(length)

    def _receive_bytes(self, count: int) -> bytearray | None:
        """Return exactly so many bytes, or None if the other side ends before."""
        received = bytearray()
        while len(received) < count:
            try:  # in pieces: an announced length costs no memory before its bytes are there
                piece = self._socket.recv(min(count - len(received), _PIECE_BYTES))
            except OSError:
                return None
            if not piece:
                return None
            received += piece
        return received
