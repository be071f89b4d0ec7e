"""H rows, clients: slow ones, idle ones, ones that leave at every moment or never read."""

import contextlib
import resource
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from reliability_http import SMALL, TEXT
from reliability_rows import Row, expect, require
from reliability_server import CANNED, IDLE_S, PATIENCE_S, Server
from reliability_wire import exchange, head, post, trickled

HEAD_S, BODY_S = 10.0, 60.0
"""The limits of the server that is tried."""
_SLACK_S = 3.0
_IDLE = 10_000
LONG = {"prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True, "stream": True}
_PREFILL = {**LONG, "prompt": "word " * 900, "max_tokens": 50}


def rows() -> list[Row]:
    """Return the H rows that need clients of their own."""
    return [
        Row("H001", "a head of 1 byte/s", f"closed after {HEAD_S:g} s", _slow_heads),
        Row("H002", "a body of 1 byte/s, of none", f"408 after {BODY_S:g} s", _slow_bodies),
        Row("H003", "10,000 idle sockets", "others are answered meanwhile", _idle_sockets),
        Row("H022", "gone before the body", "nothing is left", _leaving(_before_body)),
        Row("H023", "gone in the queue", "nothing is left", _gone_in_queue),
        Row("H024", "gone while its prompt is read", "nothing is left", _leaving(_in_prefill)),
        Row("H025", "gone amid a stream; in an answer", "nothing is left", _leaving(_amid_stream)),
        Row("H026", "half-closed after the request", "answered or ended", _half_closed),
        Row("H027", "a reader who never reads", "ended; others are answered", _never_reads),
        Row("H033", "20 requests in one write", "20 answers in order", _pipelined),
    ]


def _slow_heads(server: Server) -> None:
    answer = trickled(server, b"GET /health HTTP/1.1\r\nX: " + b"x" * 99, 1.0, HEAD_S + _SLACK_S)
    require(answer.is_closed, f"after {answer.seconds:.0f} s it goes on")


def _slow_bodies(server: Server) -> None:
    begun = head("POST", TEXT, "Content-Length: 1000")
    most_s = BODY_S + _SLACK_S
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(trickled, server, begun + b" " * 999, 1.0, most_s + 5)
        none = pool.submit(exchange, server, begun, quiet_s=most_s)
    # the head is sent a byte at a time, too: it takes more than its ten seconds
    require(slow.result().is_closed, "a slow body goes on")
    require(none.result().statuses == [408], f"got {none.result().statuses}")


def _idle_sockets(server: Server) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(_IDLE, hard - 200)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 200), hard))
    with contextlib.ExitStack() as held:
        for number in range(count):
            held.enter_context(server.connect(30.0))
            if number % 1000 == 999:
                expect(server.ask("GET", "/health"), (200,))
                expect(server.post(TEXT, SMALL), (200,))
        require(count == _IDLE, f"only {count} sockets could be opened here")


def _leaving(leave: Callable[[Server], None]) -> Callable[[Server], None]:
    """Return an attempt in which ten clients leave, and after which nothing runs."""

    def attempt(server: Server) -> None:
        for _ in range(10):
            leave(server)
        server.until("nothing runs or waits", lambda: not server.live(), IDLE_S)

    return attempt


def _before_body(server: Server) -> None:
    with server.connect() as client:
        client.sendall(head("POST", TEXT, "Content-Length: 1000") + b'{"prompt"')


def _in_prefill(server: Server) -> None:
    with server.connect() as client:
        client.sendall(post(TEXT, **_PREFILL))
        server.until("it runs", lambda: server.live() > 0, IDLE_S)


def _amid_stream(server: Server) -> None:
    with server.connect() as client:
        client.sendall(post(TEXT, **LONG))
        require(client.recv(1000).startswith(b"HTTP/1.1 200"), "no stream")
    with server.connect() as client:
        client.sendall(post(TEXT, **{**LONG, "stream": False}))
        server.until("it runs", lambda: server.live() > 0, IDLE_S)


@contextlib.contextmanager
def _busy(server: Server) -> Iterator[None]:
    """Keep every slot busy in the block."""
    with server.connect() as one, server.connect() as two:
        for client in (one, two):
            client.sendall(post(TEXT, **LONG))
            require(client.recv(1000).startswith(b"HTTP/1.1 200"), "no stream")
        yield


def _gone_in_queue(server: Server) -> None:
    with _busy(server):
        before = server.live()
        waiting = [server.connect() for _ in range(5)]
        for client in waiting:
            client.sendall(post(TEXT, **LONG))
        server.until("they wait", lambda: server.live() >= before + 5, IDLE_S)
        for client in waiting:
            client.close()
        server.until("none waits", lambda: _waiting(server) == 0, IDLE_S)
    server.until("nothing runs", lambda: not server.live(), IDLE_S)


def _waiting(server: Server) -> int:
    text = server.ask("GET", "/metrics").body.decode()
    lines = [line for line in text.splitlines() if line.startswith("corral:requests_waiting ")]
    return int(float(lines[0].split()[1]))


def _half_closed(server: Server) -> None:
    with server.connect(10.0) as client:
        client.sendall(post("/completion", **CANNED))
        client.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
    require(answer == b"" or answer.startswith(b"HTTP/1.1 200"), f"got {answer[:60]!r}")


def _never_reads(server: Server) -> None:
    """Long streams with much beside each token, into the smallest buffer there is."""
    asked = {**LONG, "logprobs": 20, "max_tokens": 300}
    silent = []
    for _ in range(2):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((server.host, server.port))
        client.sendall(post(TEXT, **asked))
        silent.append(client)
    time.sleep(0.2)
    expect(server.ask("GET", "/health"), (200,))
    server.until("the streams have ended", lambda: not server.live(), PATIENCE_S)
    for client in silent:
        client.close()


def _pipelined(server: Server) -> None:
    requests = [post("/tokenize", content="a" * number) for number in range(1, 21)]
    answer = exchange(server, b"".join(requests), quiet_s=2.0)
    require(answer.statuses == [200] * 20, f"got {answer.statuses}")
