"""Connections: heads that are read strictly, and room for who asks."""

import json

import httpx
import pytest

from corral.api.connection import MAX_HEADERS, flaw_of_head, flaw_of_request
from corral.api.settings import ApiSettings, Limits
from served import until
from unit.api.test_server import connect, post

GOOD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
END = b"\r\n"
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(
    ("data", "flaw"),
    [
        (GOOD + END, None),
        (GOOD + END + b"\n\n \n", None),
        (GOOD, None),
        (b"", None),
        (GOOD + b"X: 1\n\r\n", "without CR"),
        (GOOD + b"X: 1\r2\r\n" + END, "without CR"),
        (GOOD + b"X: \0\r\n" + END, "without CR"),
        (GOOD.replace(b"\r\n", b"\n") + b"\n", "without CR"),
        (GOOD + b"X: 1\r\n 2\r\n" + END, "folded"),
        (GOOD + b"\tX: 1\r\n" + END, "folded"),
        (GOOD + b"X: 1\r\n" * (MAX_HEADERS - 1) + END, None),
        (GOOD + b"X: 1\r\n" * MAX_HEADERS + END, "headers"),
        (GOOD + b"X: " + b"1" * 1000 + END + END, "bytes"),
        (GOOD + b"X: " + b"1" * 1000, "bytes"),
    ],
)
def test_flaws_of_heads(data, flaw):
    """Only what every reader reads alike is well, and only the head is looked at."""
    found = flaw_of_head(data, 1000)
    assert found is None if flaw is None else flaw in found


def test_a_body_has_one_length():
    """Two ways to tell it are two lengths."""
    length, coding = (b"Content-Length", b"5"), (b"transfer-encoding", b"chunked")
    assert flaw_of_request([length]) is flaw_of_request([coding]) is None
    assert flaw_of_request([length, coding]) is not None


@pytest.mark.parametrize(
    "data",
    [
        CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n",
        CHUNKED + b"\r\nx\r\n",
        CHUNKED + b"\r\n-1\r\n",
        CHUNKED.replace(b"\r\n", b"\n") + b"\n0\r\n\r\n",
        GOOD + b"X: 1\r\n folded\r\n\r\n",
        GOOD + b"X: 1\r\n" * 10_000 + b"\r\n",
    ],
)
def test_what_is_no_http_is_told_so_and_closed(served, data):
    """With an error object like all others; what comes behind is not read as a request."""
    server = served()
    with connect(server) as client:
        client.sendall(data + post("/v1/completions", prompt="echo hidden"))
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.count(b"HTTP/1.1 ") == 1
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] in ("invalid_http", "incomplete_body")
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_garbage_amid_an_answer_ends_the_connection_only(served, service):
    """It is too late for another status."""
    server = served()
    with connect(server) as client:
        client.sendall(CHUNKED + b"\r\n")
        body = b'{"prompt": "many 100000", "stream": true}'
        client.sendall(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        assert client.recv(1000).startswith(b"HTTP/1.1 200 ")
        client.sendall(b"\0garbage\r\n\r\n" * 100)
    until(lambda: service.running == 0)
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_idle_connections_make_room(served):
    """Whoever asks is let in, however many only hold the line; the oldest of them go."""
    server = served(ApiSettings(model="m", limits=Limits(connections=4)))
    idle = [connect(server) for _ in range(12)]
    try:
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert idle[0].recv(1) == b""
        idle[-1].sendall(GOOD + END)
        assert idle[-1].recv(1000).startswith(b"HTTP/1.1 200 ")
    finally:
        for each in idle:
            each.close()


def test_a_kept_connection_makes_room_too(served):
    """Between two requests it is idle."""
    server = served(ApiSettings(model="m", limits=Limits(connections=1)))
    with connect(server) as kept:
        kept.sendall(GOOD + END)
        answer = b""
        while not answer.endswith(b"}"):
            answer += kept.recv(1000)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert kept.recv(1000) == b""


def test_who_is_answered_is_not_cut_off_for_others(served, service):
    """More than may be answered at once are told to come again."""
    server = served(ApiSettings(model="m", limits=Limits(connections=2)))
    body = {"prompt": "many 100000", "stream": True}
    with (
        httpx.stream("POST", f"{server.url}/v1/completions", json=body) as one,
        httpx.stream("POST", f"{server.url}/v1/completions", json=body) as two,
    ):
        streams = [one.iter_lines(), two.iter_lines()]
        for lines in streams:
            assert next(lines)
        refused = httpx.get(f"{server.url}/health")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error"]["code"] == "too_many"
        for lines in streams:
            assert next(line for line in lines if line)
    until(lambda: service.running == 0)
