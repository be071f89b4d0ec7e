"""Every refusal: its status, the field that it names, and that nothing reached the service."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corral.api.bodies import is_deeper
from corral.api.settings import ApiSettings, Limits
from served import ScriptedService, until
from unit.api.conftest import Asked

CHAT, TEXT, LLAMA = "/v1/chat/completions", "/v1/completions", "/completion"
HI = [{"role": "user", "content": "hi"}]
NAMED = {"type": "function", "function": {"name": "f"}}


def chat(**fields):
    return CHAT, {"messages": HI, **fields}


def text(**fields):
    return TEXT, {"prompt": "hi", **fields}


def said(message):
    return CHAT, {"messages": [message]}


REFUSED = [
    ((CHAT, {}), None),
    ((CHAT, {"messages": None}), "messages"),
    ((CHAT, {"messages": "hi"}), "messages"),
    ((CHAT, {"messages": []}), "messages"),
    ((CHAT, {"messages": [123]}), "messages[0]"),
    (said({}), "messages[0]"),
    (said({"role": 123, "content": ""}), "messages[0].role"),
    (said({"role": "robot", "content": ""}), "messages[0].role"),
    (said({"role": "user", "content": 123}), "messages[0].content"),
    (said({"role": "user", "content": [{"type": "image_url"}]}), "messages[0].content[0].type"),
    (said({"role": "assistant", "tool_calls": [{}]}), "messages[0].tool_calls[0]"),
    (chat(max_tokens=-2), "max_tokens"),
    (chat(max_tokens=2**63), "max_tokens"),
    (chat(max_tokens=1.5), "max_tokens"),
    (chat(max_tokens=True), "max_tokens"),
    (chat(n=0), "n"),
    (chat(n=-1), "n"),
    (chat(n=10**9), "n"),
    (chat(temperature=-1), "temperature"),
    (chat(temperature=1e308), "temperature"),
    (chat(temperature="hot"), "temperature"),
    (chat(top_p=0), "top_p"),
    (chat(top_p=2), "top_p"),
    (chat(top_k=-2), "top_k"),
    (chat(top_k=2**31), "top_k"),
    (chat(repeat_penalty=1e38), "repeat_penalty"),
    (chat(dry_penalty_last_n=-3), "dry_penalty_last_n"),
    (chat(dry_sequence_breakers=[""]), "dry_sequence_breakers[0]"),
    (chat(seed=2**64), "seed"),
    (chat(seed=-2), "seed"),
    (chat(stop=""), "stop[0]"),
    (chat(stop=["x"] * 100), "stop"),
    (chat(stop=5), "stop"),
    (chat(logprobs=True, top_logprobs=21), "top_logprobs"),
    (chat(logprobs=False, top_logprobs=2), "top_logprobs"),
    (chat(logit_bias={"x": 1}), "logit_bias"),
    (chat(logit_bias={"-1": 1}), "logit_bias"),
    (chat(logit_bias={"256": 1}), "logit_bias[0].token"),
    (chat(logit_bias={"1": 101}), "logit_bias[0].bias"),
    (chat(logit_bias={"1": True}), "logit_bias"),
    (chat(logit_bias=[[1]]), "logit_bias"),
    (chat(logit_bias=[["word", 1]]), "logit_bias"),
    (chat(logit_bias={str(i): 0 for i in range(5000)}), "logit_bias"),
    (chat(response_format={"type": "xml"}), "response_format.type"),
    (chat(response_format={"type": "json_schema"}), "response_format.json_schema"),
    (chat(response_format={}), "response_format"),
    (chat(grammar="x", json_schema={}), "response_format"),
    (chat(json_schema=5), "json_schema"),
    (chat(json_schema={"enum": ["x"] * 100_000}), "json_schema"),
    (chat(tools=[{"type": "web", "function": {"name": "f"}}]), "tools[0].type"),
    (chat(tools=[NAMED, NAMED]), "tools[1].name"),
    (chat(tools=[{"function": {"name": "x" * 1000}}]), "tools[0].name"),
    (chat(tool_choice="required"), "tool_choice"),
    (chat(tool_choice="sometimes"), "tool_choice"),
    (chat(tool_choice=NAMED), "tool_choice"),
    (chat(chat_template_kwargs=[1]), "chat_template_kwargs"),
    (chat(model="../../etc/passwd"), "model"),
    (chat(model="x" * 10**6), "model"),
    ((TEXT, {"prompt": []}), "prompt"),
    ((TEXT, {"prompt": [[]]}), "prompt[0]"),
    ((TEXT, {"prompt": [-1]}), "prompt"),
    ((TEXT, {"prompt": [999]}), "prompt[0]"),
    ((TEXT, {"prompt": [1.0]}), "prompt[0]"),
    ((TEXT, {"prompt": [1, "x"]}), "prompt"),
    ((TEXT, {"prompt": ["x"] * 1000}), "prompt"),
    ((TEXT, {"prompt": ["x"] * 200, "n": 2}), "n"),
    (text(best_of=500), "best_of"),
    (text(suffix="end"), "suffix"),
    (text(echo=True, logprobs=1), "echo"),
    (text(logprobs=21), "logprobs"),
    ((LLAMA, {"prompt": [1, [2]]}), "prompt"),
    ((LLAMA, {"prompt": "x", "n_probs": 21}), "n_probs"),
    ((LLAMA, {"prompt": [1, "x" * 300_000, "x" * 300_000]}), "prompt"),
    (("/tokenize", {"content": "x" * 600_000}), "content"),
    (("/v1/embeddings", {"input": "x", "encoding_format": "hex"}), "encoding_format"),
]


@pytest.mark.parametrize(
    ("request_", "param"), REFUSED, ids=lambda value: str(value)[:40].replace(" ", "")
)
def test_wrong_fields_are_named(ask, service, request_, param):
    """What cannot be is refused as a client's mistake, and its field is named."""
    path, body = request_
    response = ask("POST", path, json=body)
    error = response.json()["error"]
    assert response.status_code == (404 if param == "model" else 400), error
    assert error["param"] == param
    assert error["type"] in ("invalid_request_error", "not_found_error")
    assert len(error["message"]) < 500
    assert service.requests == []


DEEP = b'{"messages":' + b"[" * 100_000
BROKEN = [
    b"",
    b'"text"',
    b"[]",
    b"42",
    b"null",
    b'{"messages":',
    b'{"messages":[]} x',
    b'\xef\xbb\xbf{"messages":[]}',
    '{"messages":[]}'.encode("utf-16"),
    b'{"messages":[],"temperature":NaN}',
    b'{"messages":[],"temperature":1e999}',
    b'{"messages":[{"role":"user","content":"\\ud800"}]}',
    b'{"messages":[{"role":"user","content":"\xff"}]}',
    b'{"messages":[{"role":"user","content":"hi"}],"nobody_knows":"\xff"}',
    b'{"messages":[],"seed":' + b"9" * 5000 + b"}",
    b'{"messages":[],"x":[' + b"1," * 1_100_000 + b"1]}",
    b'{"messages":[],"x":["' + b'",' * 1_100_000 + b'"]}',
    DEEP,
    DEEP + b"]" * 100_000 + b"}",
    b'{"messages":[],"chat_template_kwargs":{"x":' + b"[" * 500 + b"]" * 500 + b"}}",
]


@pytest.mark.parametrize("body", BROKEN, ids=lambda body: repr(body[:30]))
def test_broken_bodies_are_the_clients_mistake(ask, service, body):
    """What is no JSON object, or nests too deeply, is refused before anything looks at it."""
    response = ask("POST", CHAT, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert service.requests == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "application/x-www-form-urlencoded"}, 200),
        ({"Content-Type": ""}, 200),
        ({"Content-Type": "text/plain", "Sec-Fetch-Site": "same-site"}, 415),
        ({"Content-Type": "text/plain", "Referer": "http://localhost/"}, 415),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, 415),
        ({"Content-Type": "application/json", "Content-Length": "99999999999"}, 413),
        ({"Content-Type": "application/json", "Content-Length": "9" * 1000}, 413),
    ],
)
def test_bodies_are_json_and_not_too_large(ask, headers, status):
    """Other types, compressed bodies and announced giants are refused unread."""
    body = json.dumps({"messages": HI}).encode()
    assert ask("POST", CHAT, content=body, headers=headers).status_code == status


def test_a_body_that_grows_too_large_is_not_read_on(service):
    """Without an announced length the size is counted while reading."""
    asked = Asked(service, ApiSettings(model="m", limits=Limits(body_bytes=1000)))

    async def pieces():
        for _ in range(10):
            yield b" " * 200

    response = asked("POST", TEXT, content=pieces(), headers={"Content-Type": "application/json"})
    assert response.status_code == 413
    assert response.headers["connection"] == "close"


def test_an_overlong_prompt_is_told_as_llama_server_does(ask):
    """Clients learn how long the prompt is and what fits."""
    response = ask.post(TEXT, prompt="x" * 100)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "exceed_context_size_error"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (100, 64)


def test_a_full_queue_says_when_to_come_again(service):
    """More requests than may wait get 503 with Retry-After; what was begun for them is ended."""
    service.capacity = 2
    response = Asked(service, ApiSettings(model="m")).post(TEXT, prompt="many 1000", n=3)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert response.json()["error"]["code"] == "queue_full"
    until(lambda: {request.request_id for request in service.requests} <= set(service.cancelled))
    until(lambda: service.running == 0)


def test_a_lost_worker_says_when_to_come_again(ask, service):
    """While the worker is gone, requests are refused with Retry-After."""
    service.lost = True
    response = ask.post(TEXT, prompt="hi")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "worker_lost")
    assert "retry-after" in response.headers


def test_unknown_routes_and_methods(ask):
    """What is not there gets an error object, too."""
    assert ask.get("/nope").json()["error"]["type"] == "not_found_error"
    wrong = ask.get(CHAT)
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert ask("TRACE", "/v1/models").status_code == 405


@pytest.mark.parametrize("failure", [RuntimeError, MemoryError])
def test_what_nobody_foresaw_tells_nothing(ask, service, failure):
    """An unexpected error is a 500 without its text."""

    def submit(request, deliver):
        raise failure("/home/someone/x.py")

    service.submit = submit
    response = ask.post(TEXT, prompt="hi")
    assert response.status_code == 500
    assert "someone" not in response.text
    assert response.json()["error"]["type"] == "server_error"


def test_requests_are_logged_without_what_they_say(ask, caplog):
    """The log has method, path and status, and nothing of bodies, queries and keys."""
    caplog.set_level("INFO", "corral")
    key = {"Authorization": "Bearer sk-secret"}
    ask("POST", f"{TEXT}?x=sk-query", json={"prompt": "echo private"}, headers=key)
    (record,) = caplog.records
    assert record.getMessage().startswith("POST /v1/completions 200 in ")
    assert not any(word in caplog.text for word in ("private", "sk-"))


def test_commas_in_texts_are_no_values(ask):
    """A text may have as many as fit the body."""
    body = {"messages": [{"role": "user", "content": "[," * 1_100_000}]}
    response = ask("POST", CHAT, json=body)
    assert response.json()["error"]["type"] == "exceed_context_size_error"


def test_depth_is_counted_without_what_is_in_strings():
    """Brackets within strings do not nest, escaped quotes do not end strings."""
    assert not is_deeper(rb'{"a":"[[[[\"[[[["}', 2)
    assert not is_deeper(b"[[1],[2],[3],[4]]", 2)
    assert is_deeper(b"[[[1]]]", 2)
    assert is_deeper(b'[{"a":[1]}]', 2)
    assert not is_deeper(b'[{"a":1}]' * 1, 2)


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def fields_of(described, name):
    return sorted(described["components"]["schemas"][name]["properties"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_body_is_the_servers_fault(data):
    """Whatever stands in whatever field of whatever route, the answer is no 5xx."""
    asked = Asked(ScriptedService(), ApiSettings(model="m"))
    described = asked.get("/openapi.json").json()
    bodies = {
        path: operation["post"]["requestBody"]["content"]["application/json"]["schema"]
        for path, operation in described["paths"].items()
        if "post" in operation
    }
    path = data.draw(st.sampled_from(sorted(bodies)))
    is_list = bodies[path].get("type") == "array"
    one = bodies[path]["items"] if is_list else bodies[path]
    names = fields_of(described, one["$ref"].rpartition("/")[2])
    good = {"messages": HI, "prompt": "hi", "input": "hi", "content": "hi", "tokens": [1]}
    body = {name: value for name, value in good.items() if name in names}
    body |= data.draw(st.dictionaries(st.sampled_from(names), _json, max_size=3))
    assert asked("POST", path, json=[body] if is_list else body).status_code < 500


@settings(max_examples=200, deadline=None)
@given(st.text('[]{}"\\a', max_size=40))
def test_depth_is_what_a_reader_counts(text):
    """One that goes through the text mark by mark finds the same."""
    level = deepest = 0
    is_inside = is_escaped = is_unbalanced = False
    for mark in text:
        if is_inside:
            is_inside = is_escaped or mark != '"'
            is_escaped = mark == "\\" and not is_escaped
        elif mark == "\\":
            return  # no JSON has it there: whatever follows is not read
        elif mark == '"':
            is_inside = True
        elif mark in "[{":
            level += 1
        elif mark in "]}":
            level -= 1
        deepest, is_unbalanced = max(deepest, level), is_unbalanced or level < 0
    expected = deepest > 2 or is_unbalanced or level != 0
    is_looked_at = text.count("[") + text.count("{") > 2
    assert is_deeper(text.encode(), 2) == (expected and is_looked_at)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 8_000_000 + b"]" * 8_000_000,
        b"[]" * 8_000_000,
        (b"[" * 64 + b"]" * 64) * 100_000,
        b"[" * 70 + b'"' + b'\\"' * 8_000_000,
        b"[" * 70 + b'"\\' * 8_000_000,
        b"[" * 70 + b'"",' * 5_000_000,
        b"[" * 70 + b'"[",' * 4_000_000,
    ],
    ids=["deep", "many", "both", "escapes", "quotes", "empty", "strings"],
)
def test_depth_is_counted_in_one_pass(body):
    """No body of the largest size takes time that grows with its square: it would not end here."""
    assert is_deeper(body, 64)
