"""GET and POST /lora-adapters, as llama-server has them: which there are, and what each counts."""

from starlette.requests import Request
from starlette.responses import Response

from corral.api import translate
from corral.api.bodies import read
from corral.api.routing import ApiRoute, get, json_reply, post
from corral.api.schema import LoraScale
from corral.api.serving import serving_of
from corral.contract.messages import check_adapters
from corral.contract.questions import AdaptersAnswer, AdaptersQuestion

_PATH = "/lora-adapters"


def routes() -> list[ApiRoute]:
    """Return the routes of this file."""
    return [get(_PATH, list_adapters), post(_PATH, scale_adapters, list[LoraScale])]


async def list_adapters(request: Request) -> Response:
    """List the LoRA adapters of the model, and what each counts by default."""
    return await _answer(request, AdaptersQuestion())


async def scale_adapters(request: Request) -> Response:
    """Set what each adapter counts for requests without `lora`; those left out count nothing."""
    body = await read(request, list[LoraScale], serving_of(request).settings.limits)
    scales = translate.adapters(body)
    check_adapters("", scales)  # the body itself is the list, so its items have no other name
    return await _answer(request, AdaptersQuestion(scales))


async def _answer(request: Request, question: AdaptersQuestion) -> Response:
    serving = serving_of(request)
    serving.require_open()
    model = serving.find(request.query_params.get("model"))
    found = await model.ask(question, AdaptersAnswer)
    return json_reply(
        [
            {
                "id": one.id,
                "path": one.file,  # where files lie is nobody's business
                "scale": one.scale,
                "name": one.name,
                "rank": one.rank,
                "size_bytes": one.size_bytes,
            }
            for one in found.adapters
        ]
    )
