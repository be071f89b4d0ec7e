"""R rows: JSON that is none, and fields that hold what they may not."""

import gzip
import json
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from reliability_json import CASES, Kind, files_of
from reliability_rows import Row, expect, posting, refusing, require
from reliability_server import Server

TEXT, CHAT, TOKENS = "/v1/completions", "/v1/chat/completions", "/tokenize"
JSON_SUITE = "RELIABILITY_JSON_SUITE"
"""Names the variable with the folder of JSONTestSuite's files, if they are there."""
HI = [{"role": "user", "content": "Say hi."}]
_BIG = 1 << 20


def text(**fields: object) -> Mapping[str, object]:
    """Return a small completion with further fields."""
    return {"prompt": "Once", "max_tokens": 2, "temperature": 0, **fields}


def chat(**fields: object) -> Mapping[str, object]:
    """Return a small chat with further fields."""
    return {"messages": HI, "max_tokens": 2, "temperature": 0, **fields}


def field(name: str, *values: object, path: str = TEXT, param: str | None = None) -> object:
    """Return an attempt that gives a field values, each of which is refused by its name."""
    make = chat if path == CHAT else text
    return refusing(path, *(make(**{name: value}) for value in values), param=param or name)


def raw(value: bytes, name: str = "temperature") -> bytes:
    """Return a completion with a field as these bytes."""
    return b'{"prompt": "Once", "max_tokens": 2, "' + name.encode() + b'": ' + value + b"}"


def rows() -> list[Row]:
    """Return all R rows."""
    return [*_json_rows(), *_count_rows(), *_sampling_rows(), *_prompt_rows(), *_other_rows()]


def _json_rows() -> list[Row]:
    deep = b'{"prompt": "Once", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    bomb = gzip.compress(b" " * (64 << 20))
    bad = (400,)
    return [
        Row("R001", "NaN as a number", "400", posting(TEXT, raw(b"NaN"), *bad)),
        Row("R002", "1e999", "400", posting(TEXT, raw(b"1e999"), *bad)),
        Row("R003", "a key twice", "200, the last counts (RFC 8259)", _key_twice),
        Row(
            "R004",
            "UTF-16 body",
            "400",
            posting(TEXT, json.dumps(text()).encode("utf-16"), *bad, code="invalid_json"),
        ),
        Row("R005", "half of a surrogate pair", "400", posting(TEXT, raw(b'"\\ud800"'), *bad)),
        Row("R006", "100,000 brackets deep", "400", posting(TEXT, deep, *bad, code="invalid_json")),
        Row(
            "R007", "integer of 5,000 digits", "400", posting(TEXT, raw(b"9" * 5000, "seed"), *bad)
        ),
        Row("R008", "byte order mark", "400", posting(TEXT, b"\xef\xbb\xbf" + raw(b"1"), *bad)),
        Row("R009", 'body "string"', "400", posting(TEXT, b'"string"', *bad)),
        Row("R010", "body []", "400", posting(TEXT, b"[]", *bad)),
        Row("R011", "body 42", "400", posting(TEXT, b"42", *bad)),
        Row("R012", "body null", "400", posting(TEXT, b"null", *bad)),
        Row(
            "R013", "JSON cut off", "400", posting(TEXT, raw(b"1")[:-1], *bad, code="invalid_json")
        ),
        Row("R014", "wrong Content-Type", "415 from a page, else read as JSON", _content_type),
        Row("R015", "no Content-Type", "415 from a page, else read as JSON", _no_content_type),
        Row(
            "R016",
            "64 MiB packed by gzip",
            "415, not unpacked",
            posting(TEXT, bomb, 415, Content_Encoding="gzip"),
        ),
        Row("R017", "multipart", "400 or 415", _multipart),
        Row("R018", "JSON texts good and bad", "good 200, bad 400, others no 5xx", _json_cases),
    ]


def _key_twice(server: Server) -> None:
    body = b'{"content": "a b c d", "content": "a"}'
    reply = expect(server.post(TOKENS, body), (200,))
    once = expect(server.post(TOKENS, {"content": "a"}), (200,))
    require(reply.body == once.body, "the first one counted")


def _content_type(server: Server) -> None:
    body = json.dumps(text()).encode()
    own = f"http://{server.host}:{server.port}"
    expect(server.post(TEXT, body, Content_Type="text/plain"), (200,))
    expect(server.post(TEXT, body, Content_Type="text/plain", Origin=own), (415,))
    expect(server.post(TEXT, body, Content_Type="text/plain", Sec_Fetch_Site="none"), (415,))


def _no_content_type(server: Server) -> None:
    body = json.dumps(text()).encode()
    expect(server.post(TEXT, body), (200,))
    expect(server.post(TEXT, body, Referer="http://example.org/"), (415,))


def _multipart(server: Server) -> None:
    body = b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\nOnce\r\n--x--\r\n'
    expect(server.post(TEXT, body, Content_Type="multipart/form-data; boundary=x"), (400, 415))


def _json_cases(server: Server) -> None:
    folder = os.environ.get(JSON_SUITE)
    for case in (*CASES, *(files_of(Path(folder)) if folder else ())):
        alone = server.post(TOKENS, case.data)
        inside = server.post(TOKENS, b'{"content": "a", "x": ' + case.data + b"}")
        if case.kind is Kind.GOOD:
            require(inside.status == 200, f"{case.name} is refused")
            require(alone.code != "invalid_json", f"{case.name} is no JSON")
        elif case.kind is Kind.BAD:
            require(inside.status == 400, f"{case.name} inside got {inside.status}")
            require(alone.status == 400, f"{case.name} got {alone.status}")


def _count_rows() -> list[Row]:
    many = {"messages": [{"role": "user", "content": ""}] * 1_000_000}
    turns = [*HI, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    return [
        Row("R019", "messages null", "400 by name", field("messages", None, path=CHAT)),
        Row("R020", "messages text", "400 by name", field("messages", "hi", path=CHAT)),
        Row("R021", "messages [123]", "400 by name", field("messages", [123], path=CHAT)),
        Row("R022", "messages [{}]", "400 by name", field("messages", [{}], path=CHAT)),
        Row(
            "R023",
            "role 123, unknown",
            "400 by name",
            field("messages", [{"role": 1, "content": ""}], [{"role": "x"}], path=CHAT),
        ),
        Row(
            "R024",
            "content 123",
            "400 by name",
            field("messages", [{"role": "user", "content": 1}], path=CHAT),
        ),
        Row(
            "R025",
            "two assistant turns last",
            "200 or 400",
            posting(CHAT, chat(messages=turns), 200, 400),
        ),
        Row(
            "R026", "a million messages", "400 or 413", posting(CHAT, many, 400, 413), within_s=4.0
        ),
        Row("R027", "max_tokens −2", "400 by name", field("max_tokens", -2)),
        Row("R028", "max_tokens 2⁶³", "400 by name", field("max_tokens", 2**63)),
        Row("R029", "max_tokens 1.5", "400 by name", field("max_tokens", 1.5)),
        Row("R030", "max_tokens true", "400 by name", field("max_tokens", True)),
        Row("R031", "n 0", "400 by name", field("n", 0)),
        Row("R032", "n −1", "400 by name", field("n", -1)),
        Row("R033", "n 10⁹; n × max_tokens 16 × 2³⁰", "400; 16 answers within the context", _many),
        Row("R034", "best_of 500", "400 by name", field("best_of", 500)),
    ]


def _many(server: Server) -> None:
    field("n", 10**9)(server)  # type: ignore[operator]
    body = text(max_tokens=2**30, stop=["a", "e", "o", ".", ",", "\n", " "])
    expect(server.post(TEXT, {**body, "n": 16}), (400,))  # there is room for ten
    reply = expect(server.post(TEXT, {**body, "n": 10}), (200,)).json
    require(len(reply["choices"]) == 10, "there are other choices")  # type: ignore[index,call-overload]


def _sampling_rows() -> list[Row]:
    biases = {str(token): 0 for token in range(5000)}
    return [
        Row("R035", "temperature −1", "400 by name", field("temperature", -1)),
        Row("R036", "temperature NaN", "400", posting(TEXT, raw(b"-NaN"), 400)),
        Row("R037", "temperature 10³⁰⁸", "400 by name", field("temperature", 1e308)),
        Row("R038", "top_p 0", "400 by name", field("top_p", 0)),
        Row("R039", "top_p 2", "400 by name", field("top_p", 2)),
        Row("R040", "top_k −2", "400 by name", field("top_k", -2)),
        Row("R041", "top_k 2³¹", "400 by name", field("top_k", 2**31)),
        Row(
            "R042",
            "penalties of 10³⁸",
            "400 by name",
            lambda s: [
                field(name, 1e38)(s)  # type: ignore[operator]
                for name in ("repeat_penalty", "frequency_penalty", "presence_penalty")
            ],
        ),
        Row("R043", "seed 2⁶⁴", "400 by name", field("seed", 2**64, -2)),
        Row(
            "R044", "n_discard −1", "200: unknown, ignored", posting(TEXT, text(n_discard=-1), 200)
        ),
        Row("R045", "n_keep 2³¹", "200: unknown, ignored", posting(TEXT, text(n_keep=2**31), 200)),
        Row("R046", "id_slot 999", "200: unknown, ignored", posting(TEXT, text(id_slot=999), 200)),
        Row("R047", "logprobs 21", "400 by name", field("logprobs", 21)),
        Row("R048", "logprobs 10⁶", "400 by name", field("logprobs", 10**6)),
        Row(
            "R049",
            "logit_bias of a token beyond the vocabulary",
            "400 by name",
            field("logit_bias", {"999999": 1}, {"99999999999": 1}, {"-1": 1}, {"x": 1}),
        ),
        Row("R050", "logit_bias NaN", "400", posting(TEXT, raw(b'{"1": NaN}', "logit_bias"), 400)),
        Row(
            "R051",
            "5,000 biases; biases of ±10⁶; of all tokens −100",
            "400 by name",
            field("logit_bias", biases, {"1": 1e6}, [[1, -1e6]], [[1, 1], [1, 2]]),
        ),
        Row("R052", "100,000 stop texts", "400 by name", field("stop", ["x"] * 100_000)),
        Row(
            "R053",
            "stop texts empty, of 1 MiB, NUL",
            "400 by name; NUL is a text",
            _stops,
        ),
    ]


def _stops(server: Server) -> None:
    field("stop", "", [""], "x" * _BIG, [None])(server)  # type: ignore[operator]
    expect(server.post(TEXT, text(stop=["\0", "\x1b[2J", "\u202e"])), (200,))


def _prompt_rows() -> list[Row]:
    long = "a " * (50 << 20)
    tokens = field("prompt", [999_999], [2**31])
    return [
        Row("R054", "token 999,999", "400 by name", tokens),
        Row("R055", "token −1", "400 by name", field("prompt", [-1], [[-1]])),
        Row("R056", "token 1.0", "400 by name", field("prompt", [1.0], [True])),
        Row(
            "R057",
            "lists within lists of tokens",
            "400 by name",
            field("prompt", [[[1]]], [1, [1]]),
        ),
        Row("R058", "no prompt, an empty one", "400 by name; 200 or 400", _empty),
        Row("R059", "prompt as long as the context", "400, with both lengths", _at_context(0)),
        Row("R060", "prompt longer by one", "400, with both lengths", _at_context(1)),
        Row(
            "R061", "prompt of 100 MiB", "413", posting(TEXT, text(prompt=long), 413), within_s=4.0
        ),
        Row(
            "R084",
            "prompts of 15 MB: digits, in a chat, as tokens",
            "400, not read; at most 128 MiB",
            _long,
            most_bytes=128 << 20,
        ),
        Row("R062", "100,000 prompts", "400 by name", field("prompt", ["a"] * 100_000)),
    ]


def _long(server: Server) -> None:
    digits = "1" * 15_000_000
    expect(server.post(TEXT, text(prompt=digits)), (400,))
    expect(server.post(CHAT, chat(messages=[{"role": "user", "content": digits}])), (400,))
    expect(server.post("/v1/embeddings", {"input": digits}), (400,))
    expect(server.post("/completion", {"prompt": [1, digits]}), (400,))
    expect(server.post(TOKENS, {"content": digits}), (400,))
    expect(server.post(TEXT, b'{"prompt": [' + b"1," * 7_000_000 + b"1]}"), (400,))


def _empty(server: Server) -> None:
    expect(server.post(TEXT, {"max_tokens": 1}), (400,))
    field("prompt", [], None, [[]])(server)  # type: ignore[operator]
    expect(server.post(TEXT, text(prompt="")), (200, 400))
    expect(server.post(CHAT, chat(messages=[{"role": "user", "content": ""}])), (200,))


def _at_context(more: int) -> object:
    def attempt(server: Server) -> None:
        runs = expect(server.ask("GET", "/props"), (200,)).json
        context = runs["default_generation_settings"]["n_ctx"]  # type: ignore[index,call-overload]
        reply = expect(server.post(TEXT, text(prompt=[1] * (context + more))), (400,))
        told = (reply.error.get("n_prompt_tokens"), reply.error.get("n_ctx"))
        require(told == (context + more, context), f"told of {told}")
        expect(server.post(TEXT, text(prompt=[1] * (context - 1), max_tokens=1)), (200,))

    return attempt


def _other_rows() -> list[Row]:
    names = {
        "R063": ("../../etc/passwd", "../../etc/passwd"),
        "R064": ("%2e%2e%2f", "%2e%2e%2f"),
        "R065": ("a name with NUL", "demo\0.gguf"),
        "R066": ("a name of 1 MiB", "x" * _BIG),
        "R067": ("--flag", "--help"),
        "R068": ("U+2215 and U+FF0E", "．．∕demo"),
    }
    named = [
        Row(
            id_, f"model {what}", "404, no file is looked for", posting(TEXT, text(model=name), 404)
        )
        for id_, (what, name) in names.items()
    ]
    return [*named, *_image_rows(), *_tool_rows()]


def _image_rows() -> list[Row]:
    addresses = {
        "R069": ("link-local metadata", "http://169.254.169.254/latest"),
        "R070": ("this machine", "http://127.0.0.1:{port}/"),
        "R071": ("what redirects to this machine", "http://localhost:{port}/redirect"),
        "R072": ("two hosts", "http://example.org\\@127.0.0.1:{port}/"),
        "R073": ("a decimal address", "http://2130706433:{port}/"),
        "R074": ("IPv4 in IPv6", "http://[::ffff:127.0.0.1]:{port}/"),
        "R075": ("a file", "file:///proc/self/environ"),
        "R076": ("15 MiB of data", "data:image/png;base64," + "A" * (15 << 20)),
        "R077": ("a name that may resolve anew", "http://localtest.me:{port}/"),
    }
    return [
        Row(id_, f"image at {what}", "400 by name, nothing is fetched", _image(address))
        for id_, (what, address) in addresses.items()
    ]


def _image(address: str) -> object:
    def attempt(server: Server) -> None:
        with _listening() as (port, heard):
            part = {"type": "image_url", "image_url": {"url": address.replace("{port}", str(port))}}
            body = chat(messages=[{"role": "user", "content": [part]}])
            reply = expect(server.post(CHAT, body), (400,))
            require("messages[0]" in str(reply.error.get("param")), "names another field")
            require(not heard, "something was fetched")

    return attempt


@contextmanager
def _listening() -> Iterator[tuple[int, list[object]]]:
    """Give a port of this machine, and the list of who came."""
    heard: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def take() -> None:
            try:
                heard.append(listener.accept())
            except OSError:
                return  # closed

        threading.Thread(target=take, daemon=True).start()
        yield listener.getsockname()[1], heard
        listener.shutdown(socket.SHUT_RDWR)


def _tool_rows() -> list[Row]:
    def tools(*functions: Mapping[str, object], **more: object) -> Mapping[str, object]:
        return chat(tools=[{"type": "function", "function": item} for item in functions], **more)

    def function(name: str = "f", **parameters: object) -> Mapping[str, object]:
        return {"name": name, "parameters": {"type": "object", **parameters}}

    cycle = function(
        properties={"a": {"$ref": "#/$defs/a"}}, **{"$defs": {"a": {"$ref": "#/$defs/a"}}}
    )
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [
        *HI,
        {"role": "assistant", "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
        {"role": "tool", "tool_call_id": "c", "content": "2"},
    ]
    bad = (400,)
    return [
        Row(
            "R078",
            "tool name of 1 MiB",
            "400 by name",
            refusing(CHAT, tools(function("x" * _BIG)), param="tools"),
        ),
        Row(
            "R079",
            "two tools of one name",
            "400 by name",
            refusing(CHAT, tools(function(), function()), param="tools"),
        ),
        Row(
            "R080",
            "tool parameters that refer to themselves",
            "200 or 400",
            posting(CHAT, tools(cycle, tool_choice="required"), 200, 400),
        ),
        Row(
            "R081",
            "tool_choice unknown",
            "400 by name",
            refusing(
                CHAT,
                tools(function(), tool_choice="x"),
                tools(function(), tool_choice={"type": "function", "function": {"name": "g"}}),
                param="tool_choice",
            ),
        ),
        Row(
            "R082",
            "tool of another type",
            "400 by name",
            refusing(
                CHAT,
                chat(tools=[{"type": "x", "function": {"name": "f"}}]),
                chat(tools=[1]),
                param="tools",
            ),
        ),
        Row(
            "R083",
            "one tool_call id twice",
            "200 or 400",
            posting(CHAT, chat(messages=turns), 200, *bad),
        ),
    ]
