"""GET /openapi.json and /docs: every route and what it takes, made from the routes themselves.

The page needs nothing from elsewhere and runs no script.
"""

import html
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import get_args, get_origin

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from corral.api.bodies import is_required
from corral.api.routing import ApiRoute, get, json_reply

_REFERENCE = "#/components/schemas/{name}"
_STYLE = "docs.css"


def routes() -> list[ApiRoute]:
    """Return the routes of this file."""
    return [get("/openapi.json", schema), get("/docs", docs), get(f"/{_STYLE}", style)]


async def schema(request: Request) -> Response:
    """Describe every route as OpenAPI."""
    return json_reply(openapi(_api_routes(request)))


async def docs(request: Request) -> Response:
    """Show every route and what it takes."""
    return Response(page(openapi(_api_routes(request))), media_type="text/html")


async def style(request: Request) -> Response:
    """Return the style of the page at /docs."""
    text = files("corral.api").joinpath(_STYLE).read_text("utf-8")
    return Response(text, media_type="text/css")


def _api_routes(request: Request) -> list[ApiRoute]:
    return [route for route in request.app.routes if isinstance(route, ApiRoute)]


def openapi(routes: Sequence[ApiRoute]) -> dict[str, object]:
    """Return routes as an OpenAPI description."""
    bodies = [route.body for route in routes if route.body is not None]
    _, components = msgspec.json.schema_components(bodies, ref_template=_REFERENCE)
    paths: dict[str, dict[str, object]] = {}
    for route in routes:
        path = re.sub(r":\w+}", "}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, path)
    return {
        "openapi": "3.1.0",
        "info": {"title": "corral", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: ApiRoute, path: str) -> dict[str, object]:
    told: dict[str, object] = {
        "summary": route.summary,
        "responses": {"200": {"description": "done"}, "default": {"description": "an error"}},
    }
    names = re.findall(r"{(\w+)}", path)
    if names:
        told["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    if route.body is not None:
        told["requestBody"] = {
            "required": is_required(route.body),
            "content": {"application/json": {"schema": _schema(route.body)}},
        }
    return told


def _schema(body: type) -> dict[str, object]:
    """Return the schema of a body: one of the components, or a list of one."""
    if get_origin(body) is list:
        return {"type": "array", "items": _schema(get_args(body)[0])}
    return {"$ref": _REFERENCE.format(name=body.__name__)}


def page(described: dict[str, object]) -> str:
    """Return an OpenAPI description of `openapi` as a page."""
    paths, components = described["paths"], described["components"]
    assert isinstance(paths, dict) and isinstance(components, dict), "openapi() made them"
    rows = [
        f"<tr><td>{method.upper()}<td><code>{html.escape(path)}</code>"
        f"<td>{html.escape(operation['summary'])}<td>{_body_link(operation)}"
        for path, operations in paths.items()
        for method, operation in operations.items()
    ]
    bodies = [_body(name, body) for name, body in components["schemas"].items()]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>corral: routes</title>'
        '<meta name="viewport" content="width=device-width">'
        f'<link rel="stylesheet" href="{_STYLE}"><h1>Routes</h1>'
        '<p><a href="openapi.json">As OpenAPI</a>. Unknown fields are accepted and ignored.'
        f"<table>{''.join(rows)}</table><h1>Bodies</h1>{''.join(bodies)}</html>"
    )


def _body_link(operation: dict[str, dict[str, dict[str, dict[str, dict[str, str]]]]]) -> str:
    if "requestBody" not in operation:
        return ""
    schema: dict[str, object] = operation["requestBody"]["content"]["application/json"]["schema"]  # type: ignore[assignment]
    return " ".join(_types(schema))


def _link(reference: str) -> str:
    name = html.escape(reference.rpartition("/")[2])
    return f'<a href="#{name}">{name}</a>'


def _body(name: str, body: dict[str, object]) -> str:
    fields, required = body.get("properties", {}), body.get("required", [])
    assert isinstance(fields, dict) and isinstance(required, list), "msgspec describes structs so"
    rows = [
        f"<tr><td><code>{html.escape(field)}</code><td>{' | '.join(_types(kind))}"
        f"<td>{'required' if field in required else ''}"
        for field, kind in fields.items()
    ]
    about = html.escape(str(body.get("description", "")))
    shown = html.escape(name)
    return f'<h2 id="{shown}">{shown}</h2><p>{about}<table>{"".join(rows)}</table>'


def _types(kind: dict[str, object]) -> Iterator[str]:
    """Yield what a field may be, in words."""
    match kind:
        case {"$ref": str(reference)}:
            yield _link(reference)
        case {"anyOf": list(kinds)}:
            for each in kinds:
                yield from _types(each)
        case {"type": "array", "items": dict(item)}:
            yield f"list of {' or '.join(_types(item))}"
        case _:
            yield html.escape(str(kind.get("type", "any JSON")))
