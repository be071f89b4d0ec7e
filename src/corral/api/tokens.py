"""POST /tokenize, /detokenize and /apply-template: what the model's text is made of."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from corral.api import translate
from corral.api.bodies import read
from corral.api.model import Model
from corral.api.presence import while_there
from corral.api.routing import ApiRoute, json_reply, post
from corral.api.schema import ChatBody, DetokenizeBody, TokenizeBody
from corral.api.serving import serving_of
from corral.contract.questions import (
    DetokenizeQuestion,
    RenderQuestion,
    TextAnswer,
    TokenizeQuestion,
    TokensAnswer,
)


def routes() -> list[ApiRoute]:
    """Return the routes of this file."""
    return [
        post("/tokenize", tokenize, TokenizeBody),
        post("/detokenize", detokenize, DetokenizeBody),
        post("/apply-template", apply_template, ChatBody),
    ]


async def tokenize(request: Request) -> Response:
    """Return the tokens of a text, with the text of each where that is wanted."""
    serving = serving_of(request)
    serving.require_open()
    body = await read(request, TokenizeBody, serving.settings.limits)
    model = serving.find(body.model)
    most = serving.settings.limits.tokenized_characters
    content = translate.tokenized_text("content", body.content, most)
    question = TokenizeQuestion(content, body.add_special, body.parse_special)
    answer = await while_there(request.receive, model.ask(question, TokensAnswer))
    if not body.with_pieces:
        return json_reply({"tokens": answer.tokens})
    pairs = zip(answer.tokens, answer.pieces, strict=True)
    return json_reply({"tokens": [{"id": token, "piece": _piece(piece)} for token, piece in pairs]})


def _piece(piece: bytes) -> str | list[int]:
    """Return text, or bytes that are only part of a character, as llama-server does."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return [*piece]


async def detokenize(request: Request) -> Response:
    """Return the text of tokens."""
    serving = serving_of(request)
    serving.require_open()
    body = await read(request, DetokenizeBody, serving.settings.limits)
    model = serving.find(body.model)
    text = await while_there(request.receive, _text(model, body.tokens))
    return json_reply({"content": text})


async def _text(model: Model, tokens: Sequence[int]) -> str:
    size = (await model.describe()).vocabulary_size
    for index, token in enumerate(tokens):
        if not 0 <= token < size:
            translate.wrong(f"tokens[{index}]", f"expected a token from 0 to {size - 1}")
    return (await model.ask(DetokenizeQuestion(tuple(tokens)), TextAnswer)).text


async def apply_template(request: Request) -> Response:
    """Return a chat as the model's template writes it."""
    serving = serving_of(request)
    serving.require_open()
    body = await read(request, ChatBody, serving.settings.limits)
    model = serving.find(body.model)
    question = RenderQuestion(translate.chat_prompt(body))
    answer = await while_there(request.receive, model.ask(question, TextAnswer))
    return json_reply({"prompt": answer.text})
