"""`corral serve` with a tiny model and its real worker, asked over a socket."""

import json
import signal
import socket

import httpx
import openai
import pytest

import adapters
import tiny
from running import serving

CONTEXT = 1024
LONG = {"prompt": "th", "max_tokens": 240, "ignore_eos": True, "seed": 3}
MANY = {**LONG, "stream": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Return a server of a tiny model, one for all tests of this file."""
    folder = tmp_path_factory.mktemp("served")
    path = tiny.write(folder / "tiny.gguf", context_length=CONTEXT)
    with serving(path, folder / "cache", "--queue", "0", "--embeddings") as running:
        yield running


def pieces(response):
    """Yield the JSON of a stream's events."""
    for line in response.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def test_adapters(tmp_path):
    """A served model takes adapters along: listed, scaled for all, and chosen by requests."""
    base = tiny.write(tmp_path / "tiny.gguf", context_length=CONTEXT)
    style, facts = (adapters.write(tmp_path / f"{seed}.gguf", seed) for seed in (0, 1))
    asked = {"prompt": "th", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    given = "--lora", f"{style}:0", "--lora", f"{facts}:0.5"
    with serving(base, tmp_path / "cache", *given) as running:

        def text(**more):
            reply = httpx.post(f"{running.url}/completion", json=asked | more, timeout=60)
            return reply.raise_for_status().json()["content"]

        listed = httpx.get(f"{running.url}/lora-adapters").json()
        assert [(one["path"], one["scale"]) for one in listed] == [("0.gguf", 0.0), ("1.gguf", 0.5)]
        found = {
            "default": text(),
            "none": text(lora=[]),
            "first": text(lora=[{"id": 0, "scale": 1.0}]),
        }
        assert len(set(found.values())) == 3
        assert text(lora=[{"id": 1, "scale": 0.5}]) == found["default"]
        httpx.post(f"{running.url}/lora-adapters", json=[{"id": 0, "scale": 1.0}])
        assert text() == found["first"]
        unknown = asked | {"lora": [{"id": 9, "scale": 1}]}
        assert httpx.post(f"{running.url}/completion", json=unknown).status_code == 400
        memory = httpx.get(f"{running.url}/corral/status").json()
        assert "adapter" in str(memory)


def test_openai_client(server):
    """OpenAI's client gets the same answer whole and streamed, with counts and logprobs."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        asked = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 12,
            "seed": 1,
            "logprobs": True,
            "top_logprobs": 2,
            "extra_body": {"ignore_eos": True},
        }
        whole = client.chat.completions.create(**asked)
        parts = list(
            client.chat.completions.create(
                **asked, stream=True, stream_options={"include_usage": True}
            )
        )
    text = "".join(p.choices[0].delta.content or "" for p in parts if p.choices)
    assert text == whole.choices[0].message.content
    assert whole.usage.completion_tokens == parts[-1].usage.completion_tokens == 12
    assert len(whole.choices[0].logprobs.content) == 12
    assert whole.choices[0].finish_reason == "length"


WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "now": {"type": "boolean"}},
    "required": ["city", "now"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
HI = [{"role": "user", "content": "Hi"}]


def fits(text):
    """Whether a text is what WEATHER describes."""
    found = json.loads(text)
    return set(found) == {"city", "now"} and found["city"] in ("Rome", "Oslo")


def test_openai_client_gets_calls_and_structure(server):
    """A tool's arguments and an answer fit their schema, whole and streamed."""
    asked = {"model": "tiny", "messages": HI, "max_tokens": 120, "seed": 1}
    schema = {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER}}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        create = client.chat.completions.create
        structured = create(**asked, response_format=schema).choices[0]
        whole = create(**asked, tools=[TOOL], tool_choice="required").choices[0]
        parts = [*create(**asked, tools=[TOOL], tool_choice="required", stream=True)]
    assert fits(structured.message.content)
    (call, *_) = whole.message.tool_calls
    assert call.function.name == "weather"
    assert fits(call.function.arguments)
    pieces = [call for part in parts for call in part.choices[0].delta.tool_calls or ()]
    first = [piece.function for piece in pieces if piece.index == 0]
    assert first[0].name == "weather"
    assert "".join(f.arguments or "" for f in first) == call.function.arguments


def test_openai_client_embeds(server):
    """Vectors of length 1, the same alone and among others."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        both = client.embeddings.create(model="tiny", input=["the th", "other"]).data
        alone = client.embeddings.create(model="tiny", input="the th").data
    assert both[0].embedding == alone[0].embedding != both[1].embedding
    assert len(alone[0].embedding) == tiny.WIDTH
    assert sum(value * value for value in alone[0].embedding) == pytest.approx(1.0, rel=1e-5)


def test_answers_do_not_depend_on_who_else_asks(server):
    """Two choices are two seeds; each is what it would be alone."""
    asked = {"prompt": "th", "max_tokens": 20, "ignore_eos": True}
    both = server.post("/v1/completions", **asked, n=2, seed=5).json()["choices"]
    alone = [
        server.post("/v1/completions", **asked, seed=seed).json()["choices"][0]["text"]
        for seed in (5, 6)
    ]
    assert [choice["text"] for choice in both] == alone


def test_tokens_and_templates(server):
    """Tokens, text and template are those of the file."""
    tokens = server.post("/tokenize", content="the th").json()["tokens"]
    assert server.post("/detokenize", tokens=tokens).json() == {"content": "the th"}
    rendered = server.post("/apply-template", messages=[{"role": "user", "content": "Hi"}])
    assert rendered.json()["prompt"].endswith("Hi<|im_end|>\n<|im_start|>assistant\n")


def test_a_prompt_that_does_not_fit(server):
    """The client is told how long its prompt is and what would fit."""
    response = server.post("/v1/completions", prompt="ab" * 600)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "exceed_context_size_error"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (1200, CONTEXT)


def test_a_client_that_leaves_gives_its_place_free(server):
    """Whoever hangs up is no longer answered, and others are."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    body = json.dumps({**MANY, "n": 2}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert client.recv(100).startswith(b"HTTP/1.1 200")
    server.until(lambda: server.status()["requests"]["running"] == 0)
    answer = server.post("/v1/completions", prompt="th", max_tokens=1, ignore_eos=True)
    assert answer.json()["usage"]["completion_tokens"] == 1


def test_a_lost_worker_is_replaced(server):
    """A stream ends with an error when the worker is killed; the next one answers the same."""
    before = server.post("/v1/completions", **LONG).json()["choices"][0]["text"]
    with httpx.stream("POST", f"{server.url}/v1/completions", json=MANY, timeout=60) as response:
        told = pieces(response)
        next(told)
        server.worker().kill()
        last = list(told)[-1]
    assert last["error"]["code"] == "worker_lost"
    server.until(lambda: server.status()["restarts"] == 1)
    server.until(lambda: httpx.get(f"{server.url}/health").status_code == 200)
    after = server.post("/v1/completions", **LONG).json()["choices"][0]["text"]
    assert after == before


def test_a_stopped_worker_does_not_stop_the_server(server):
    """While a worker hangs, the server still tells that something is wrong."""
    worker = server.worker()
    worker.send_signal(signal.SIGSTOP)
    try:
        response = httpx.get(f"{server.url}/health", timeout=30)
        assert response.status_code == 503
        assert httpx.get(f"{server.url}/v1/models/other").status_code == 404
    finally:
        worker.send_signal(signal.SIGCONT)
    server.until(lambda: httpx.get(f"{server.url}/health").status_code == 200)


def test_the_end(server):
    """SIGTERM ends server and worker, and is no failure."""
    worker = server.worker()
    server.process.terminate()
    assert server.process.wait(60) == 0
    assert not worker.is_running()
