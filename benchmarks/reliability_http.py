"""H rows, requests: heads that are too long, contradict themselves or show no right to ask."""

import re
from collections.abc import Callable, Mapping

from reliability_rows import Row, expect, require
from reliability_server import Server
from reliability_wire import exchange, head, post

TEXT = "/v1/completions"
KEY = "sk-reliability"
SMALL: Mapping[str, object] = {"prompt": "Once", "max_tokens": 1, "temperature": 0}
_PUBLIC = ("/health", "/v1/health")
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
_HIDDEN = b'{"prompt": "hidden", "max_tokens": 1}'


def rows() -> list[Row]:
    """Return the H rows that one request can try."""
    return [*_head_rows(), *_smuggling_rows(), *_access_rows()]


def sending(*statuses: int, data: bytes, closes: bool = False) -> Callable[[Server], object]:
    """Return an attempt that sends bytes and expects exactly one answer of one of the statuses."""

    def attempt(server: Server) -> None:
        answer = exchange(server, data, quiet_s=1.0)
        found = answer.statuses
        require(len(found) == 1 and found[0] in statuses, f"got {found}: {answer.data[:80]!r}")
        require(answer.is_closed or not closes, "the connection goes on")

    return attempt


def _head_rows() -> list[Row]:
    many = [f"X-{number}: 1" for number in range(10_000)]
    return [
        Row(
            "H004",
            "a header of 1 MiB",
            "4xx, closed",
            sending(400, 431, data=head("GET", "/health", "X: " + "x" * (1 << 20)), closes=True),
        ),
        Row(
            "H005",
            "10,000 headers",
            "4xx, closed",
            sending(400, 431, data=head("GET", "/health", *many), closes=True),
        ),
        Row(
            "H006",
            "a target of 1 MiB",
            "4xx, closed",
            sending(400, 414, 431, data=head("GET", "/" + "x" * (1 << 20)), closes=True),
        ),
        Row("H007", "garbage behind a good request", "200, then 400 and closed", _garbage_behind),
        Row("H029", "TRACE", "401, 404 or 405", _trace),
        Row("H030", "methods nobody knows", "4xx", _unknown_methods),
    ]


def _garbage_behind(server: Server) -> None:
    answer = exchange(server, post(TEXT, **SMALL) + b"\x00\xffgarbage\r\n\r\n", quiet_s=3.0)
    require(answer.statuses == [200, 400], f"got {answer.statuses}")
    require(answer.is_closed, "the connection goes on")


def _trace(server: Server) -> None:
    answer = exchange(server, head("TRACE", "/health", "X-Secret: 1"))
    require(answer.statuses and answer.statuses[0] in (404, 405), f"got {answer.statuses}")
    require(b"X-Secret" not in answer.data, "the request is echoed")


def _unknown_methods(server: Server) -> None:
    for method in ("BREW", "get", "G" * 5000, "PRI"):
        answer = exchange(server, head(method, "/health"))
        found = answer.statuses
        require(len(found) == 1 and 400 <= found[0] < 500, f"{method[:9]} got {found}")


def _smuggling_rows() -> list[Row]:
    """Two readers that see other borders between requests: one answer only, or a refusal."""
    hidden = post(TEXT, **SMALL)
    chunked = "Transfer-Encoding: chunked"
    end = b"0\r\n\r\n"
    bare = b"POST /v1/completions HTTP/1.1\nHost: localhost\nContent-Length: 2\n\n{}"
    return [
        Row(
            "H008",
            "Content-Length and Transfer-Encoding",
            "400, closed",
            sending(
                400,
                data=head("POST", TEXT, "Content-Length: 5", chunked) + end + hidden,
                closes=True,
            ),
        ),
        Row("H009", "two Content-Lengths; +5; 0x5; 5, 6", "400, closed", _lengths),
        Row("H010", "Transfer-Encoding: xchunked and others", "400 or 501, closed", _codings),
        Row(
            "H011",
            "lines that end with LF only",
            "400, closed",
            sending(400, data=bare, closes=True),
        ),
        Row(
            "H012",
            "chunk sizes of −1, 0x2, 21 digits; of 2⁶⁴",
            "400, closed; a body that is waited for",
            _chunk_sizes,
        ),
        Row("H013", "folded header, space before its colon", "400, closed", _odd_headers),
        Row("H031", "chunked body without end", "413, closed", _endless, within_s=5.0),
        Row("H032", "NUL, CR and control characters in heads", "400, closed", _controls),
    ]


def _one_refusal(server: Server, data: bytes, *statuses: int) -> None:
    sending(*statuses, data=data, closes=True)(server)


def _lengths(server: Server) -> None:
    for lines in (
        ("Content-Length: 2", "Content-Length: 3"),
        ("Content-Length: +2",),
        ("Content-Length: 0x2",),
        ("Content-Length: 2, 3",),
        ("Content-Length: -2",),
        ("Content-Length: " + "9" * 30,),
    ):
        data = head("POST", TEXT, *lines) + b"{}" + post(TEXT, **SMALL)
        _one_refusal(server, data, 400, 413)


def _codings(server: Server) -> None:
    for coding in (
        "xchunked",
        "chunked, identity",
        "gzip, chunked",
        "chunked\r\nTransfer-Encoding: x",
        "\x0bchunked",
    ):
        data = (
            head("POST", TEXT, f"Transfer-Encoding: {coding}") + b"0\r\n\r\n" + post(TEXT, **SMALL)
        )
        _one_refusal(server, data, 400, 501)


def _chunk_sizes(server: Server) -> None:
    begun = head("POST", TEXT, "Transfer-Encoding: chunked")
    for size in (b"f" * 21, b"-1", b"0x2", b"+2", b" 2", b"2 x"):
        _one_refusal(server, begun + size + b"\r\n{}\r\n0\r\n\r\n", 400, 413)
    for size in (b"1" + b"0" * 16, b"f" * 16):  # it waits for them, as for every slow body
        answer = exchange(server, begun + size + b"\r\n{}\r\n0\r\n\r\n", quiet_s=0.5)
        require(answer.statuses == [], f"got {answer.statuses}")


def _odd_headers(server: Server) -> None:
    for line in ("X: 1\r\n folded", "X : 1", " X: 1", ": 1", "X"):
        _one_refusal(server, head("GET", "/health", line), 400)


def _controls(server: Server) -> None:
    for line in ("X: a\x00b", "X: a\rb", "X\x01: a", "X: \x7f\x1b[2J\x00"):
        _one_refusal(server, head("GET", "/health", line), 400)
    _one_refusal(server, b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400)
    _one_refusal(server, b"GET / HTTP/1.1\rHost: localhost\r\n\r\n", 400)


def _endless(server: Server) -> None:
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    pieces = [head("POST", TEXT, "Transfer-Encoding: chunked"), *[chunk] * 4096]  # 256 MiB
    answer = exchange(server, *pieces, quiet_s=8.0)
    require(answer.is_closed, "the connection goes on")
    require(answer.statuses in ([413], []), f"got {answer.statuses}")  # [] where it was cut


def _access_rows() -> list[Row]:
    origin = {"Origin": "http://evil.example", "Content_Type": "text/plain"}
    return [
        Row("H014", "Host of others (DNS rebinding)", "421", _hosts),
        Row(
            "H015",
            "page elsewhere posts text/plain",
            "403",
            lambda s: expect(s.post(TEXT, SMALL, **origin), (403,)),
        ),
        Row("H016", "preflight of a page elsewhere", "4xx, opens nothing", _preflight),
        Row("H017", "no key", "401", _keyed(), server="keyed"),
        Row("H018", "wrong key", "401", _keyed("Authorization: Bearer wrong"), server="keyed"),
        Row(
            "H019",
            "key that begins or goes on like ours",
            "401",
            _keyed(
                f"Authorization: Bearer {KEY[:-1]}",
                f"Authorization: Bearer {KEY}x",
                f"Authorization: Bearer {KEY.upper()}",
            ),
            server="keyed",
        ),
        Row(
            "H020",
            "key of 1 MiB, of 8 KiB",
            "4xx",
            _keyed("X-Api-Key: " + "x" * (1 << 20), "X-Api-Key: " + "x" * 8192),
            server="keyed",
        ),
        Row(
            "H021",
            "two keys, one of them right",
            "401",
            _keyed(
                f"Authorization: Bearer {KEY}\r\nAuthorization: Bearer x",
                f"Authorization: Bearer {KEY}\r\nX-Api-Key: {KEY}",
            ),
            server="keyed",
        ),
        Row(
            "H028",
            "every route × method without a key",
            "401 but for the health check",
            _every_route,
            server="keyed",
        ),
    ]


def _hosts(server: Server) -> None:
    for host in (
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1@evil.example",
        "",
        "a b",
        "localhost:99999",
    ):
        answer = exchange(server, head("GET", "/v1/models", host=host), quiet_s=1.0)
        require(
            answer.statuses and answer.statuses[0] in (400, 421), f"{host!r}: {answer.statuses}"
        )
    twice = b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
    require(exchange(server, twice).statuses[0] in (400, 421), "two hosts")
    require(
        exchange(server, b"GET /v1/models HTTP/1.1\r\n\r\n").statuses[0] in (400, 421), "no host"
    )
    absolute = b"GET http://evil.example/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    require(exchange(server, absolute).statuses[0] in (400, 404, 421), "another host in the target")


def _preflight(server: Server) -> None:
    asked = {"Origin": "http://evil.example", "Access_Control_Request_Method": "POST"}
    reply = server.ask("OPTIONS", TEXT, **asked)
    expect(reply, (401, 403, 404, 405))
    names = {name.lower() for name in reply.headers}
    require("access-control-allow-origin" not in names, "the page may read")


def _keyed(*lines: str) -> Callable[[Server], object]:
    def attempt(server: Server) -> None:
        for line in lines or ("X-Nothing: 1",):
            data = post(TEXT, line, **SMALL)
            found = exchange(server, data, quiet_s=1.0).statuses
            allowed = (400, 401, 431) if len(line) > 4096 else (401,)
            require(len(found) == 1 and found[0] in allowed, f"{line[:30]!r} got {found}")

    return attempt


def _every_route(server: Server) -> None:
    paths = expect(server.ask("GET", "/openapi.json"), (200,)).json["paths"]  # type: ignore[index,call-overload]
    for path in (*paths, "/", "/nope", "/docs/", "//health", "/health/../v1/models"):
        for method in _METHODS:
            target = re.sub("{.*?}", "x", path)
            found = exchange(
                server, head(method, target, "Connection: close", "Content-Length: 0")
            ).statuses
            is_public = path in (*_PUBLIC, "/") and method in ("GET", "HEAD")
            require(len(found) == 1, f"{method} {path} got {found}")
            require(is_public or found[0] == 401, f"{method} {path} got {found}")
