"""Bodies made of the server's own OpenAPI description, whole and with something wrong in them."""

import json
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corral.api.settings import ApiSettings
from served import CONTEXT, ScriptedService
from unit.api.conftest import Asked
from unit.api.test_refusals import _json

SETTINGS = ApiSettings(model="m", aliases=("*",))
DESCRIBED = Asked(ScriptedService(), SETTINGS).get("/openapi.json").json()
COMPONENTS = DESCRIBED["components"]["schemas"]
POSTS = {
    path: operations["post"]["requestBody"]["content"]["application/json"]["schema"]
    for path, operations in DESCRIBED["paths"].items()
    if "post" in operations
}
GETS = sorted(path for path, operations in DESCRIBED["paths"].items() if "get" in operations)
ENDLESS = "/corral/events"
_TEXTS = st.sampled_from(["", "yes", "echo a b", "lose", "call f {}", "think a / b", "user"])


def values(schema):
    """Return a strategy for what a JSON schema, as msgspec writes them, lets pass."""
    match schema:
        case {"$ref": reference}:
            return st.deferred(lambda: values(COMPONENTS[reference.rpartition("/")[2]]))
        case {"anyOf": kinds}:
            return st.one_of(*map(values, kinds))
        case {"type": "array", **more}:
            return st.lists(values(more.get("items", {})), max_size=3)
        case {"type": "object", "properties": fields, **more}:
            required = {name: values(fields[name]) for name in more.get("required", ())}
            others = {name: values(kind) for name, kind in fields.items() if name not in required}
            return st.fixed_dictionaries(required, optional=others).map(few(required))
        case {"type": "object", **more}:
            return st.dictionaries(
                st.text(max_size=4), values(more.get("additionalProperties", {}))
            )
        case {"type": "string"}:
            return _TEXTS | st.text(max_size=3)
        case {"type": "integer"}:
            return st.integers(0, 4) | st.integers(-(2**65), 2**65)
        case {"type": "number"}:
            return st.floats(0, 2) | st.floats(allow_nan=False, allow_infinity=False)
        case {"type": "boolean"}:
            return st.booleans()
        case {"type": "null"}:
            return st.none()
    assert not set(schema) - {"description", "default", "title"}, f"not made: {schema}"
    return _json


def few(required):
    """Return a function that leaves at most four optional fields: more are refused for one."""

    def chosen(body):
        optional = [name for name in body if name not in required]
        return {name: body[name] for name in (*required, *optional[:4])}

    return chosen


def check(response):
    """Check that a reply is JSON or a stream, and an error one that clients understand."""
    assert response.status_code < 500 or response.status_code == 503, response.text
    if "text/event-stream" in response.headers.get("content-type", ""):
        assert response.text.startswith("data: ")
    elif response.status_code >= 400:
        error = response.json()["error"]
        assert isinstance(error["message"], str) and error["type"]
        assert len(error["message"]) < 1000


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_described_bodies_are_answered_or_refused(data):
    """Nothing that the description allows, or nearly, is the server's fault."""
    path = data.draw(st.sampled_from(sorted(POSTS)))
    body = data.draw(values(POSTS[path]))
    if data.draw(st.booleans()) and isinstance(body, dict):
        body |= {data.draw(st.sampled_from(sorted(body) or ["x"])): data.draw(_json)}
    asked = Asked(ScriptedService(), SETTINGS)
    check(asked("POST", path, content=json.dumps(body).encode()))


@settings(max_examples=30, deadline=None)
@given(
    path=st.sampled_from([path for path in GETS if path != ENDLESS]),
    name=st.text(max_size=20),
    query=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
)
def test_described_paths_are_answered_or_refused(path, name, query):
    """Whatever stands in the path or behind it."""
    where = path.replace("{id}", quote(name.encode("utf-8", "replace"), safe=""))
    asked = Asked(ScriptedService(), SETTINGS)
    assert asked.get(where, params=query).status_code < 500


def test_bodies_are_made_of_what_is_described():
    """Each route has bodies that are taken, so that the test above tries more than refusals."""
    asked = Asked(ScriptedService(), SETTINGS)
    good = {
        "messages": [{"role": "user", "content": "hi"}],
        **dict.fromkeys(("prompt", "input", "content"), "hi"),
        "tokens": [1],
    }
    for path, schema in POSTS.items():
        if schema.get("type") == "array":
            assert asked("POST", path, json=[]).status_code == 200, path
            continue
        name = schema["$ref"].rpartition("/")[2]
        body = {key: value for key, value in good.items() if key in COMPONENTS[name]["properties"]}
        assert asked.post(path, **body).status_code == 200, path
    assert CONTEXT < 100, "prompts too long are tried, too"


@pytest.mark.parametrize("schema", [{"type": "elephant"}, {"const": 5}])
def test_what_cannot_be_made_is_noticed(schema):
    """A kind of schema that this file does not know is no silent gap."""
    with pytest.raises(AssertionError):
        values(schema)
