"""S rows: grammars and schemas that explode, nest, recur or mean nothing."""

import json
from collections.abc import Mapping

from reliability_bodies import CHAT, HI, TEXT
from reliability_rows import Row, expect, require
from reliability_server import Server

REFUSED, TAKEN = (400,), (200, 400)
_PEG = {"start": 0, "rules": [{"type": "ref", "rule": 0}]}


def rows() -> list[Row]:
    """Return all S rows."""
    return [*_grammar_rows(), *_schema_rows()]


def gbnf(*texts: str, statuses: tuple[int, ...] = REFUSED) -> object:
    """Return an attempt that asks for answers by grammars, and expects one of the statuses."""

    def attempt(server: Server) -> None:
        for text in texts:
            expect(server.post(TEXT, _asked(grammar=text)), statuses)

    return attempt


def schema(*schemas: object, statuses: tuple[int, ...] = REFUSED) -> object:
    """Return an attempt that asks for answers and calls by schemas."""

    def attempt(server: Server) -> None:
        for item in schemas:
            expect(server.post(TEXT, _asked(json_schema=item)), statuses)
            if isinstance(item, dict):
                expect(server.post(CHAT, _called(item)), statuses)

    return attempt


def _asked(**fields: object) -> Mapping[str, object]:
    return {"prompt": "Once", "max_tokens": 4, "temperature": 0, **fields}


def _called(parameters: Mapping[str, object]) -> Mapping[str, object]:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    return {"messages": HI, "max_tokens": 4, "tools": [tool], "tool_choice": "required"}


def _grammar_rows() -> list[Row]:
    chain = "\n".join(
        ["root ::= r0", *(f"r{i} ::= r{i + 1}" for i in range(5000)), 'r5000 ::= "a"']
    )
    nested = 'root ::= (("a"{2000}){2000}){2000}'
    return [
        Row("S001", "60,000 opened brackets", "400", gbnf("root ::= " + "(" * 60_000)),
        Row("S002", "chain of 5,000 rules", "400", gbnf(chain)),
        Row(
            "S003",
            "left recursion, by itself and through others",
            "200 or 400",
            gbnf(
                'root ::= root "a"',
                'root ::= root "a" | "a"',
                'root ::= a\na ::= b "x"\nb ::= a',
                statuses=TAKEN,
            ),
        ),
        Row("S004", "rule that is not defined", "400", gbnf("root ::= nothing", "x ::= y")),
        Row(
            "S005",
            "a million repetitions",
            "200 or 400",
            gbnf('root ::= "a"{0,1000000}', "root ::= [a-z]{1000000}", statuses=TAKEN),
        ),
        Row("S006", "repetitions within repetitions", "200 or 400", gbnf(nested, statuses=TAKEN)),
    ]


def _schema_rows() -> list[Row]:
    def text(**more: object) -> Mapping[str, object]:
        return {
            "type": "object",
            "properties": {"a": {"type": "string", **more}},
            "required": ["a"],
        }

    items = {"type": "array", "minItems": 10**9, "items": {"type": "integer"}}
    any_of = {"anyOf": [{"type": "object", "properties": {f"k{i}": {}}} for i in range(10_000)]}
    chain = {"$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(5000)}}
    chain |= {"$ref": "#/$defs/d0"}
    doubling = {
        "$defs": {
            **{f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)},
            "d40": {"type": "integer"},
        },
        "$ref": "#/$defs/d0",
    }
    remote = {"$ref": "http://127.0.0.1:9/schema.json"}
    return [
        Row("S007", "schema 5,000 levels deep", "400", _deep_schema),
        Row("S008", "pattern of 10,000 brackets", "400", schema(text(pattern="(" * 10_000))),
        Row(
            "S009",
            "patterns that explode: (a+)+$ and others",
            "200 or 400",
            schema(
                text(pattern="^(a+)+$"),
                text(pattern="^(([a-z])+.)+[A-Z]([a-z])+$"),
                text(pattern="^(a?){500}a{500}$"),
                text(pattern="^(.*a){25}.{0,999}$"),
                text(pattern="^((((a{1,100}){1,100}){1,100}){1,100})$"),
                statuses=TAKEN,
            ),
        ),
        Row("S010", "minItems 10⁹", "200 or 400", schema(items, statuses=TAKEN)),
        Row("S011", "maxLength 2⁶³", "200 or 400", schema(text(maxLength=2**63), statuses=TAKEN)),
        Row("S012", "$ref to another host", "400, nothing is fetched", schema(remote)),
        Row(
            "S013",
            "enum of 10⁶ texts; of 20,000",
            "400; 200 or 400",
            _enumerations,
        ),
        Row("S014", "anyOf of 10⁴", "200 or 400", schema(any_of, statuses=TAKEN)),
        Row("S015", "500 schemas, each another one", "200; memory as before", _many_schemas),
        Row(
            "S016",
            "references in a circle, 5,000 in a chain, 2⁴⁰ by doubling",
            "200 or 400",
            schema({"$ref": "#"}, chain, doubling, {"peg": _PEG}, statuses=TAKEN),
        ),
        Row(
            "S017",
            "type that is none",
            "400",
            schema({"type": "elephant"}, {"type": 5}, {"type": ["object", None]}),
        ),
    ]


def _deep_schema(server: Server) -> None:
    for levels in (30, 5000):
        deep: object = {"type": "integer"}
        for _ in range(min(levels, 60)):
            deep = {"type": "array", "items": deep}
        body = json.dumps(_asked(json_schema=deep)).encode()
        if levels > 60:
            inner, outer = b'{"type":"array","items":' * levels, b"}" * levels
            body = b'{"prompt": "a", "json_schema": ' + inner + b"{}" + outer + b"}"
            expect(server.post(TEXT, body), REFUSED)
        else:
            expect(server.post(TEXT, body), (200,))


def _enumerations(server: Server) -> None:
    million = {"enum": [f"v{i}" for i in range(1_000_000)]}
    expect(server.post(TEXT, _asked(json_schema=million)), REFUSED)
    many = {"enum": [f"v{i}" for i in range(20_000)]}
    expect(server.post(TEXT, _asked(json_schema=many)), TAKEN)


def _many_schemas(server: Server) -> None:
    for number in range(500):
        item = {"type": "object", "properties": {f"p{number}": {"enum": [number]}}}
        reply = expect(server.post(TEXT, _asked(json_schema=item, max_tokens=1)), (200,))
        require(reply.elapsed_s < 2, "one of them took longer")
