"""Reads a request's JSON body within limits of size, time and depth, into one of `schema.py`."""

import asyncio
import re
from contextlib import suppress
from typing import TypeVar, get_origin

import msgspec
from starlette.requests import Request

from corral.api.errors import Problem, Refused, refused
from corral.api.settings import Limits

_T = TypeVar("_T")
_PLACE = re.compile(r" - at `\$\.?(.*?)`$")
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
# It matches wherever it begins and takes nothing back, so each byte is looked at once.
_STRING = re.compile(rb'"[^"]*+"?')
_OPEN = ord("[")
_MOST_QUOTES = 400_000
_MOST_VALUES = 1_000_000
_MOST_BRACKETS = 1_000_000
"""More lists and objects are in no request; each is many times as large in memory as in JSON."""


async def read(request: Request, kind: type[_T], limits: Limits) -> _T:
    """Return the body of a request as one of the schema's types; where nothing is required, no
    body at all counts as an empty object.

    Raises:
        Refused: it is too large, too slow, no JSON, too deep, or a field has a wrong type.
    """
    # A page elsewhere can post text without being asked first, but no JSON. Who is no page, such as
    # `curl -d`, may call the body what it likes.
    if _is_from_page(request) and not _says_json(request):
        raise refused(415, "expected Content-Type: application/json", code="unsupported_media_type")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise refused(415, "expected a body without Content-Encoding", code="unsupported_encoding")
    body = await _bytes_of(request, limits)
    if not body and not is_required(kind):
        return msgspec.convert({}, kind)
    return decode(body, kind, depth=limits.json_depth)


def is_required(kind: type) -> bool:
    """Whether a body of this type must be sent: it is no object, or has a field without default."""
    if not issubclass(get_origin(kind) or kind, msgspec.Struct):
        return True
    return any(field.required for field in msgspec.structs.fields(kind))


def _is_from_page(request: Request) -> bool:
    return any(name in request.headers for name in ("origin", "sec-fetch-site", "referer"))


def _says_json(request: Request) -> bool:
    content_type = request.headers.get("content-type", "")
    return content_type.partition(";")[0].strip().lower() == "application/json"


async def _bytes_of(request: Request, limits: Limits) -> bytearray:
    length = request.headers.get("content-length", "")
    if length.isdigit() and (len(length) > 18 or int(length) > limits.body_bytes):
        await _discard(request, limits)
        raise _too_large(limits)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_s):
            while True:
                message = await request.receive()
                if message["type"] != "http.request":
                    raise refused(400, "the body ended early", code="incomplete_body")
                body += message.get("body", b"")
                if len(body) > limits.body_bytes:
                    body.clear()
                    await _discard(request, limits)
                    raise _too_large(limits)
                if not message.get("more_body", False):
                    return body
    except TimeoutError:
        text = f"the body took longer than {limits.body_s:g} s"
        problem = Problem(408, text, code="request_timeout", headers={"Connection": "close"})
        raise Refused(problem) from None


async def _discard(request: Request, limits: Limits) -> None:
    """Read a body that nobody wants, for a while: who still sends does not hear the answer."""
    if request.headers.get("expect", "").lower() == "100-continue":
        return  # this one waits for the answer
    with suppress(TimeoutError):
        async with asyncio.timeout(limits.discard_s):
            while (await request.receive()).get("more_body", False):
                pass


def _too_large(limits: Limits) -> Refused:
    text = f"the body is larger than {limits.body_bytes} bytes"
    # What is left of the body is not read: the connection cannot go on.
    problem = Problem(413, text, code="body_too_large", headers={"Connection": "close"})
    return Refused(problem)


def decode(body: bytes | bytearray, kind: type[_T], *, depth: int) -> _T:
    """Return a JSON body as a typed object.

    Raises:
        Refused: naming the field that has a wrong type, or what is wrong with the JSON.
    """
    if is_deeper(body, depth):
        raise refused(
            400, f"the JSON is malformed or nested deeper than {depth}", code="invalid_json"
        )
    if body.count(b",") > _MOST_VALUES and _outside(body, b",") > _MOST_VALUES:
        raise refused(400, f"the JSON has more than {_MOST_VALUES} values", code="invalid_json")
    try:
        if not body.isascii():
            body.decode()  # fields that are left out are not looked at below
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        place = _PLACE.search(str(error))
        told = _PLACE.sub("", str(error)).replace("`", "")
        where = place[1] if place else ""
        message = f"{where or 'the body'}: {told[0].lower()}{told[1:]}"
        raise refused(400, message, code="invalid_type", param=where or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        told = str(error) if isinstance(error, msgspec.DecodeError) else "it is no UTF-8"
        raise refused(400, f"the body is no JSON: {told}", code="invalid_json") from None


def is_deeper(body: bytes | bytearray, depth: int) -> bool:
    """Whether brackets nest deeper than so many levels; unbalanced or very many count as deep."""
    if body.count(b"[") + body.count(b"{") <= depth:
        return False
    level, brackets = 0, _brackets(body)
    if brackets is None or len(brackets) > _MOST_BRACKETS:
        return True
    for bracket in brackets:
        level += 1 if bracket == _OPEN else -1
        if not 0 <= level <= depth:
            return True
    return level != 0


def _brackets(body: bytes | bytearray) -> bytes | bytearray | None:
    """Return the brackets outside of strings, of one kind; None says that they are too many."""
    return _marks(body.translate(_ONE_KIND), b"[]")


def _outside(body: bytes | bytearray, mark: bytes) -> int:
    """Return how often a mark is outside of strings, or what is more than may be."""
    found = _marks(body, mark)
    return len(found) if found is not None else len(body)


def _marks(body: bytes | bytearray, wanted: bytes) -> bytes | bytearray | None:
    """Return some marks outside of strings, in order; of malformed JSON at least the first.

    None says that more strings hold such marks than in any request.
    """
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    # What is no mark goes first, so that strings side by side become one, and empty ones none.
    others = bytes(code for code in range(256) if code not in wanted + b'"')
    marks = body.translate(None, others).replace(b'""', b"")
    return _STRING.sub(b"", marks) if marks.count(b'"') <= _MOST_QUOTES else None
