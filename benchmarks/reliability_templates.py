"""T rows: chat templates that a model file brings, each served by a tiny model of its own.

The template is rendered when the first chat is asked for. Chats may fail then, with a typed error;
completions, which need no template, are answered as before.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from reliability_rows import Row, expect, require
from reliability_server import Server

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # tiny models are written there

import tiny
from corral.gguf import write_model

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
_RENDER_S = 6.0
"""Starting a template's process, finding out what it can write, and its limit of one second."""
_ASKED: Mapping[str, object] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}

_NESTED_IF = "{% if true %}" * 200 + "x" + "{% endif %}" * 200
_SOURCES = {
    "T001": ("classes: ''.__class__.__mro__", "{{ ''.__class__.__mro__ }}"),
    "T002": ("globals: cycler.__init__", "{{ cycler.__init__.__globals__ }}"),
    "T003": ("'%s'|attr('format')", "{{ ('%s'|attr('format'))('x') }}"),
    "T004": ("map(attribute=…) to classes", "{{ ['a']|map(attribute='__class__')|list }}"),
    "T005": ("range(10⁹)", "{% for i in range(10**9) %}x{% endfor %}"),
    "T006": (
        "loops within loops",
        "{% for i in range(90000) %}{% for j in range(90000) %}x{% endfor %}{% endfor %}",
    ),
    "T007": ("'a' × 10⁹", "{{ 'a' * 10**9 }}"),
    "T008": ("'%999999999d' % 1", "{{ '%999999999d' % 1 }}"),
    "T009": ("'{:>999999999}'.format(1)", "{{ '{:>999999999}'.format(1) }}"),
    "T010": ("a macro that calls itself", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
    "T011": ("3,000 brackets", "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}"),
    "T012": ("200 conditions, one in the other", _NESTED_IF),
    "T013": ("lipsum of 10⁶", "{{ lipsum(n=10**6) }}"),
    "T014": ("9**(9**9)", "{{ 9**(9**9) }}"),
    "T015": ("a template of 10 MB", "x" * 10_000_000),
    "T016": ("a block that does not end", "{% if true %}x"),
    "T017": ("include and extends", "{% include '/etc/passwd' %}{% extends 'x' %}"),
    "T018": ("raise_exception with 10 MB", "{{ raise_exception('x' * 10**7) }}"),
    "T019": ("strftime_now of a giant width", "{{ strftime_now('%999999999d') }}"),
    "T020": (
        "a text of 10⁸ characters",
        "{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}",
    ),
}


def rows() -> list[Row]:
    """Return the T rows that need a model file of their own; `reliability_worker` has others."""
    return [
        Row(
            id_,
            what,
            "422, or a text within the limits",
            _attempt(id_),
            f"template {id_}",
            _RENDER_S,
        )
        for id_, (what, _) in _SOURCES.items()
    ]


def write(row_id: str, folder: Path) -> Path:
    """Write a tiny model with a row's template; return its path."""
    keys = tiny.keys() | tiny.vocabulary() | {"tokenizer.chat_template": _SOURCES[row_id][1]}
    path = folder / f"{row_id}.gguf"
    write_model(path, keys, tiny.tensors())
    return path


def _attempt(row_id: str) -> Callable[[Server], object]:
    def attempt(server: Server) -> None:
        for _ in range(2):
            reply = expect(server.post(CHAT, _ASKED), (200, 400, 422))
            require(len(reply.body) < 10_000, f"a reply of {len(reply.body)} bytes")
            rendered = expect(server.post("/apply-template", _ASKED), (200, 400, 422))
            for mark in (b"root:", b"<class", b"__builtins__"):
                require(mark not in reply.body + rendered.body, f"{mark!r} was written")
        expect(server.post(TEXT, {"prompt": "Hi", "max_tokens": 1}), (200,))

    return attempt
