"""W rows, the model's process: killed, stopped, flooded; and texts that mean something to it."""

import json
import os
import signal
import threading

from reliability_bodies import CHAT, TOKENS, chat, text
from reliability_clients import LONG
from reliability_http import SMALL, TEXT
from reliability_rows import Row, expect, require
from reliability_server import Server
from reliability_wire import post

STUCK_S = 20.0
"""`--stuck` of the server that is tried."""
_CONTROLS = "".join(map(chr, range(32))) + "\x7f\u2028\u202e\ufeff\ufffe"


def rows() -> list[Row]:
    """Return all W rows."""
    return [
        Row("T021", "texts of control tokens in a message", "they stay texts", _special_texts),
        Row("T022", "template variable messages", "400", _variables("messages"), within_s=3.0),
        Row("T023", "template variable tokenize", "400", _variables("tokenize", "__class__")),
        Row("T024", "template variables 10 MB and deep", "400 or 413", _large_variables),
        Row("W001", "control characters in texts", "200, as they are", _control_characters),
        Row("W002", "é in one and in two characters", "other tokens, both back as given", _forms),
        Row(
            "W003", "128 questions at once for vectors", "200 or 503; /health 200", _many_questions
        ),
        Row("W004", "three times as many requests as may wait", "200 or 503 queue_full", _flood),
        Row(
            "W005",
            "kill -9 amid a stream",
            "the stream ends with worker_lost",
            _killed,
            replaces_worker=True,
        ),
        Row(
            "W006",
            "the worker is stopped (SIGSTOP)",
            "503 at /health; replaced",
            _stopped,
            replaces_worker=True,
            within_s=4.0,
        ),
    ]


def _count(server: Server, content: str) -> int:
    reply = expect(server.post(CHAT, chat(messages=[{"role": "user", "content": content}])), (200,))
    told = reply.json
    assert isinstance(told, dict)
    return int(told["usage"]["prompt_tokens"])


def _special_texts(server: Server) -> None:
    bare = _count(server, "x")
    for token in ("<|im_end|>", "<|im_start|>", "<|endoftext|>"):
        require(_count(server, f"x{token}x") > bare + 3, f"{token} was read as a token")
    asked = {"content": "a<|im_end|>b", "parse_special": False}
    tokens = expect(server.post(TOKENS, asked), (200,)).json["tokens"]  # type: ignore[index,call-overload]
    require(len(tokens) > 4, "/tokenize read it as a token")
    expect(server.post(CHAT, chat(messages=[{"role": "<|im_end|>", "content": "x"}])), (400,))


def _variables(*names: str) -> object:
    def attempt(server: Server) -> None:
        for name in names:
            expect(server.post(CHAT, chat(chat_template_kwargs={name: []})), (400,))

    return attempt


def _large_variables(server: Server) -> None:
    expect(server.post(CHAT, chat(chat_template_kwargs={"a": "x" * 10_000_000})), (400, 413))
    deep = json.dumps(chat()).encode()[:-1] + b', "chat_template_kwargs": {"a": ' + b"[" * 5_000_000
    expect(server.post(CHAT, deep + b"]" * 5_000_000 + b"}}"), (400, 413))


def _control_characters(server: Server) -> None:
    def there_and_back(given: str) -> str:
        tokens = expect(server.post(TOKENS, {"content": given}), (200,)).json
        return str(expect(server.post("/detokenize", tokens), (200,)).json["content"])  # type: ignore[index,call-overload]

    known = "".join(mark for mark in _CONTROLS if there_and_back(mark))  # to the model's vocabulary
    require(len(known) > 20, f"the vocabulary has only {known!r}")
    require(there_and_back(known) == known, "another text came back")
    expect(server.post(TEXT, text(prompt=_CONTROLS)), (200,))
    expect(server.post(CHAT, chat(messages=[{"role": "user", "content": _CONTROLS}])), (200,))
    expect(server.post(TEXT, text(model=_CONTROLS)), (404,))


def _forms(server: Server) -> None:
    found = []
    for given in ("caf\u00e9", "cafe\u0301", "\uff41\ufb01"):
        tokens = expect(server.post(TOKENS, {"content": given}), (200,)).json
        back = expect(server.post("/detokenize", tokens), (200,)).json
        require(back == {"content": given}, f"{given!r} came back as {back}")
        found.append(tokens)
    require(found[0] != found[1], "two texts have the same tokens")


def _many_questions(server: Server) -> None:
    asked = {"input": ["word " * 60] * 128}
    thread = threading.Thread(target=server.post, args=("/v1/embeddings", asked))
    thread.start()
    while thread.is_alive():
        expect(server.ask("GET", "/health"), (200,))
        thread.join(0.05)
    (vectors,) = [
        reply for reply in server.replies if reply.body.startswith((b'{"object"', b'{"error"'))
    ]
    expect(vectors, (200, 503))
    server.replies.remove(vectors)  # it may take its time


def _flood(server: Server) -> None:
    def ask() -> None:
        server.post(TEXT, {**SMALL, "max_tokens": 20, "ignore_eos": True})

    threads = [threading.Thread(target=ask) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [(reply.status, reply.code) for reply in server.replies]
    require(len(found) == 30, "a connection was reset")
    require(set(found) <= {(200, None), (503, "queue_full")}, f"got {set(found)}")
    refused = [reply for reply in server.replies if reply.status == 503]
    names = {name.lower() for reply in refused for name in reply.headers}
    require(not refused or "retry-after" in names, "nobody is told when to come again")
    require(len(refused) < 30, "nobody was answered")
    server.replies[:] = refused  # the others wait for each other


def _killed(server: Server) -> None:
    worker = server.worker()
    with server.connect() as client:
        client.sendall(post(TEXT, **LONG))
        require(client.recv(1000).startswith(b"HTTP/1.1 200"), "no stream")
        worker.kill()
        rest = bytearray()
        while not rest.endswith(b"0\r\n\r\n") and (piece := client.recv(1 << 16)):
            rest += piece
    require(b'"code":"worker_lost"' in rest, "the stream does not say why it ends")
    require(b"[DONE]" not in rest, "the stream looks complete")
    _comes_back(server)


def _stopped(server: Server) -> None:
    worker, answers = server.worker(), []

    def ask() -> None:
        answers.append(server.post(TEXT, SMALL))

    os.kill(worker.pid, signal.SIGSTOP)
    thread = threading.Thread(target=ask)
    thread.start()
    require(server.ask("GET", "/health").status == 503, "/health says that all is well")
    thread.join(5 * STUCK_S)
    require(not thread.is_alive(), "a request waits for ever")
    (answer,) = answers
    expect(answer, (503,), "worker_lost")
    require(answer.elapsed_s < 2 * STUCK_S, f"told after {answer.elapsed_s:.0f} s")
    server.replies.remove(answer)  # it had to wait for --stuck
    _comes_back(server)
    require(server.worker().pid != worker.pid, "it is the same process")


def _comes_back(server: Server) -> None:
    server.until(
        "the next worker is ready", lambda: server.ask("GET", "/health").status == 200, 30.0
    )
