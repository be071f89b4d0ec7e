"""POST /v1/embeddings: texts or tokens in, vectors of length 1 out."""

import array
import asyncio
import base64
import math
import sys
from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from corral.api import translate
from corral.api.bodies import read
from corral.api.model import Model
from corral.api.presence import while_there
from corral.api.routing import ApiRoute, json_reply, post
from corral.api.schema import EmbeddingBody
from corral.api.serving import namespace_of, serving_of
from corral.contract.questions import EmbeddingAnswer, EmbedQuestion


class Entry(msgspec.Struct, kw_only=True):
    """One vector."""

    object: str = "embedding"
    index: int
    embedding: list[float] | str


def routes() -> list[ApiRoute]:
    """Return the routes of this file."""
    return [post(path, embeddings, EmbeddingBody) for path in ("/v1/embeddings", "/embeddings")]


async def embeddings(request: Request) -> Response:
    """Turn texts into vectors."""
    serving = serving_of(request)
    serving.require_open()
    body = await read(request, EmbeddingBody, serving.settings.limits)
    model = serving.find(body.model)
    if body.encoding_format not in (None, "float", "base64"):
        translate.wrong("encoding_format", "expected float or base64")
    prompts = translate.prompts("input", body.input, serving.settings.limits.prompts)
    questions = [EmbedQuestion(prompt, namespace_of(request)) for prompt in prompts]
    answers = await while_there(request.receive, _answers(model, questions, body.dimensions))
    vectors = [shortened(floats(answer.values), body.dimensions) for answer in answers]
    is_base64 = body.encoding_format == "base64"
    count = sum(answer.prompt_tokens for answer in answers)
    return json_reply(
        {
            "object": "list",
            "data": [
                Entry(index=index, embedding=_base64(vector) if is_base64 else vector.tolist())
                for index, vector in enumerate(vectors)
            ],
            "model": model.name,
            "usage": {"prompt_tokens": count, "total_tokens": count},
        }
    )


async def _answers(
    model: Model, questions: Sequence[EmbedQuestion], dimensions: int | None
) -> list[EmbeddingAnswer]:
    """Ask all at once; where one fails, the others are given up."""
    columns = (await model.describe()).embedding_columns
    if dimensions is not None and not 1 <= dimensions <= columns:
        translate.wrong("dimensions", f"expected 1 to {columns}")
    asked = [asyncio.ensure_future(model.ask(one, EmbeddingAnswer)) for one in questions]
    try:
        return await asyncio.gather(*asked)
    finally:
        for one in asked:
            one.cancel()


def floats(data: bytes) -> "array.array[float]":
    """Return little-endian F32 bytes as numbers."""
    values = array.array("f", data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def shortened(values: "array.array[float]", columns: int | None) -> "array.array[float]":
    """Return the first columns of a vector, again of length 1."""
    if columns is None or columns == len(values):
        return values
    kept = values[:columns]
    length = math.hypot(*kept)
    return array.array("f", (value / length for value in kept)) if length else kept


def _base64(values: "array.array[float]") -> str:
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return base64.b64encode(values.tobytes()).decode("ascii")
