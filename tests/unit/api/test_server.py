"""A real server on a socket: clients that stream, leave, dawdle or misbehave; draining."""

import gc
import json
import re
import socket
import threading

import httpx
import openai
import pytest

from corral.api.exchange import Exchange
from corral.api.mailroom import Inbox
from corral.api.server import bind
from corral.api.settings import ApiSettings, Limits
from corral.errors import ResourceError
from served import until

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.fixture
def client(served):
    """Return OpenAI's client of a server that runs."""
    with openai.OpenAI(base_url=f"{served().url}/v1", api_key="none", max_retries=0) as client:
        yield client


def said(text):
    return [{"role": "user", "content": text}]


def connect(server):
    """Return a socket to a server."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def post(path, **fields):
    """Return a request's bytes."""
    body = json.dumps(fields).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def test_openai_client_chats(client):
    """OpenAI's client reads replies, streams, usage, logprobs and reasoning-free text."""
    reply = client.chat.completions.create(model="scripted", messages=said("echo a b"))
    assert reply.choices[0].message.content == "a b"
    assert reply.usage.prompt_tokens_details.cached_tokens == 1
    stream = client.chat.completions.create(
        model="scripted",
        messages=said("echo a b c"),
        stream=True,
        logprobs=True,
        top_logprobs=1,
        stream_options={"include_usage": True},
    )
    parts = list(stream)
    texts = [part.choices[0].delta.content for part in parts if part.choices]
    assert "".join(text or "" for text in texts) == "a b c"
    assert parts[-1].usage.completion_tokens == 3
    logged = [part.choices[0].logprobs for part in parts if part.choices]
    assert [item.content[0].token for item in logged if item] == ["a", " b", " c"]


def test_openai_client_calls_tools(client):
    """OpenAI's client puts a streamed tool call together."""
    request = {"model": "scripted", "messages": said('call weather {"a":1}'), "tools": [TOOL]}
    with client.chat.completions.stream(**request) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"a": 1})
    assert any(event.type == "tool_calls.function.arguments.delta" for event in events)


def test_openai_client_wants_structure(client, service):
    """A schema given by OpenAI's client reaches the service, and its answer the client."""
    shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    reply = client.chat.completions.create(
        model="scripted", messages=said('echo {"a":1}'), response_format=shape
    )
    assert json.loads(reply.choices[0].message.content) == {"a": 1}
    assert json.loads(service.requests[0].constraint.text) == SCHEMA


def test_openai_client_embeds_and_completes(client):
    """OpenAI's client asks for base64 and gets numbers; its older completions work, too."""
    (entry,) = client.embeddings.create(model="scripted", input="ab").data
    assert sum(value * value for value in entry.embedding) == pytest.approx(1)
    assert client.completions.create(model="scripted", prompt="echo a").choices[0].text == "a"
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").id == "scripted"


def test_openai_client_sees_errors_as_it_knows_them(client):
    """Each refusal is the error class that OpenAI's client has for it."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="scripted", messages=said("x"), temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4", messages=said("x"))
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="scripted", messages=said("fail"))


def test_a_failure_amid_a_stream_is_told_in_it(served, service):
    """What fails after the beginning is an error object in the stream, which has no [DONE]."""
    server = served()
    body = {"prompt": "many 100000", "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: {")
        service.fail_all("worker_lost", "the worker is gone")
        rest = [line for line in lines if line]
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "worker_lost"


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("end", ["close", "half"])
def test_a_client_that_leaves_ends_its_request(served, service, is_stream, end):
    """Whoever hangs up, streaming or not, is cancelled; nothing goes on for nobody."""
    server = served()
    with connect(server) as client:
        client.sendall(post("/v1/completions", prompt="many 100000", stream=is_stream, n=2))
        until(lambda: service.running == 2)
        if end == "half":
            client.shutdown(socket.SHUT_WR)
            until(lambda: service.running == 0)
    until(lambda: service.running == 0)
    assert len(service.cancelled) == 2


def test_a_reader_that_never_reads_is_cancelled(served, service):
    """Events for a client who does not take them are bounded; then its request ends."""
    service.pace_s = 0.0
    server = served(ApiSettings(model="m", limits=Limits(queued_events=200)))
    with connect(server) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(post("/v1/completions", prompt="many 10000000", stream=True))
        until(lambda: service.cancelled, seconds=30)
        until(lambda: service.running == 0)
        other = httpx.post(f"{server.url}/v1/completions", json={"prompt": "echo a"})
        assert other.json()["choices"][0]["text"] == "a"


def test_a_request_has_a_limit_of_time(served, service):
    """An answer that takes too long is ended and says so."""
    server = served(ApiSettings(model="m", limits=Limits(request_s=0.2)))
    response = httpx.post(f"{server.url}/v1/completions", json={"prompt": "many 100000"})
    assert response.status_code == 504
    until(lambda: service.running == 0)


def test_a_silent_stream_is_kept_alive(served, service):
    """While no token comes a stream gets comments, which clients skip."""
    service.pace_s = 0.5
    server = served(ApiSettings(model="m", ping_s=0.05, headers_s=0.05))
    body = {"prompt": "many 2", "stream": True}
    response = httpx.post(f"{server.url}/v1/completions", json=body)
    assert ": ping\n\n" in response.text
    assert response.text.endswith("data: [DONE]\n\n")


def test_what_comes_together_is_written_together(served, service):
    """Tokens of one step are one write: as many chunks of the transfer as there were steps."""
    server = served()
    with connect(server) as client:
        client.sendall(post("/v1/completions", prompt="echo " + "a " * 20, stream=True))
        data = b""
        while b"0\r\n\r\n" not in data:
            data += client.recv(65536)
    body = data.partition(b"\r\n\r\n")[2]
    is_size = re.compile(rb"[0-9a-f]+")
    sizes = [line for line in body.split(b"\r\n") if is_size.fullmatch(line)]
    assert len(sizes) <= 3
    assert data.count(b"data: ") == 22


def test_slow_heads_and_bodies_are_cut_off(served):
    """Who does not finish a head is hung up on; who does not finish a body is told."""
    server = served(ApiSettings(model="m", limits=Limits(head_s=0.3, body_s=0.3)))
    with connect(server) as head, connect(server) as body, connect(server) as idle:
        head.sendall(b"GET /health HT")
        body.sendall(post("/v1/completions", prompt="x" * 50)[:-20])
        assert head.recv(100) == b""
        assert b" 408 " in body.recv(1000)
        assert idle.recv(100) == b""


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000,
        b"GET /" + b"x" * 100_000,
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 garbage\r\n\r\n",
    ],
    ids=["header", "target", "lengths", "coding", "garbage"],
)
def test_malformed_requests_are_refused(served, raw):
    """Heads that are too long or contradict themselves end the connection, not the server."""
    server = served()
    with connect(server) as client:
        client.sendall(raw)
        answer = client.recv(1000)
        assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 501"))
    assert httpx.get(f"{server.url}/health").status_code == 200


@pytest.mark.parametrize("is_announced", [True, False])
def test_the_sender_of_a_body_too_large_hears_of_it(served, is_announced):
    """It is read to its end, and kept nowhere: a connection that is cut tells nothing."""
    server = served(ApiSettings(model="m", limits=Limits(body_bytes=1000)))
    body = b" " * (8 << 20)
    content = body if is_announced else iter([body[: 1 << 20]] * 8)
    response = httpx.post(f"{server.url}/v1/completions", content=content)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/embeddings", {"input": ["echo a", "wait", "wait"]}),
        ("/tokenize", {"content": "wait"}),
        ("/detokenize", {"tokens": [*b"wait"]}),
        ("/apply-template", {"messages": said("wait")}),
        ("/completion", {"prompt": ["wait", 5]}),
        ("/v1/completions", {"prompt": [*b"wait"], "echo": True}),
    ],
)
def test_a_client_that_leaves_gives_its_questions_up(served, service, path, fields):
    """Whoever answers is told that nobody waits any more; others are answered."""
    server = served()
    with connect(server) as connection:
        connection.sendall(post(path, **fields))
        until(lambda: service.endless)
        assert not any(coming.cancelled() for coming in service.endless)
    until(lambda: all(coming.cancelled() for coming in service.endless))
    assert httpx.post(f"{server.url}/tokenize", json={"content": "a"}).json() == {"tokens": [97]}


def test_a_question_that_fails_gives_up_those_beside_it(served, service):
    """Nobody computes the others of a request that is answered with an error."""
    server = served(ApiSettings(model="scripted", limits=Limits(ask_s=0.2)))
    reply = httpx.post(f"{server.url}/v1/embeddings", json={"input": ["wait", "wait"]})
    assert (reply.status_code, reply.json()["error"]["code"]) == (504, "time_limit_exceeded")
    until(lambda: len(service.endless) == 2 and all(one.cancelled() for one in service.endless))


def test_who_waits_for_leave_to_send_gets_none_for_too_much(served):
    """`Expect: 100-continue` spares both sides the body."""
    server = served(ApiSettings(model="m", limits=Limits(body_bytes=1000)))
    with connect(server) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n"
            b"Expect: 100-continue\r\n\r\n"
        )
        assert client.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_reading_what_is_too_large_has_an_end(served):
    """A body without end is no way to hold a connection."""
    server = served(ApiSettings(model="m", limits=Limits(body_bytes=1000, discard_s=0.2)))
    with connect(server) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n800\r\n" + b" " * 2048 + b"\r\n"
        )
        assert client.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_draining_lets_answers_end_and_takes_no_more(served, service):
    """After the signal running streams end as if nothing were; new clients find nobody."""
    server = served()
    body = {"prompt": "many 40", "stream": True}
    with (
        httpx.stream("GET", f"{server.url}/corral/events") as events,
        httpx.stream("POST", f"{server.url}/v1/completions", json=body) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        assert json.loads(next(events.iter_lines()).removeprefix("data: "))["state"] == "ready"
        server.stop()
        rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
    server.thread.join(10)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health")
    assert service.cancelled == []


def test_draining_has_an_end(served, service):
    """What still runs when time is up is cancelled, and its client is told."""
    server = served(drain_s=0.2)
    body = {"prompt": "many 100000", "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        server.stop()
        rest = [line for line in lines if line]
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "closed"
    server.thread.join(10)
    assert not server.thread.is_alive()
    until(lambda: service.running == 0)


def test_a_port_in_use_is_told(served):
    """Two servers on one port: the second says which and what to do."""
    server = served()
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(ResourceError, match=f"cannot listen on 127.0.0.1:{port}: .* --port"):
        bind("127.0.0.1", port)


def test_many_clients_at_once(served, service):
    """Each client gets its own answer, whatever others ask and whoever leaves."""
    server = served()
    got = {}

    def ask(letter):
        body = {"prompt": f"echo {f'{letter}{letter} ' * 15}", "stream": letter in "aeiou"}
        response = httpx.post(f"{server.url}/v1/completions", json=body, timeout=30)
        got[letter] = response.text.count(letter * 2)

    threads = [threading.Thread(target=ask, args=(letter,)) for letter in "abcdefghijkmnopq"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(got) == 16
    assert all(count >= 15 for count in got.values()), got
    assert service.running == 0


def test_nothing_is_left_of_what_ended(served, service):
    """However requests end, no object of theirs stays."""
    server = served()
    for number in range(60):
        prompt = ("echo a", "many 100000", "fail", "x" * 100)[number % 4]
        is_stream = number % 8 < 4
        with connect(server) as client:
            client.sendall(post("/v1/completions", prompt=prompt, stream=is_stream))
            if prompt != "many 100000":
                assert client.recv(12) == b"HTTP/1.1 200" or prompt != "echo a"
    until(lambda: service.running == 0)
    until(lambda: not live(Exchange, Inbox))


def live(*kinds):
    """Return the objects of some kinds that are still there."""
    gc.collect()
    return [found for found in gc.get_objects() if type(found) in kinds]
