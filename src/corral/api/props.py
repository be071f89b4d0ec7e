"""GET /props and /slots: the server as llama-server's clients ask for it."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from corral.api.errors import Problem
from corral.api.routing import ApiRoute, get, json_reply
from corral.api.serving import serving_of
from corral.contract.questions import Description, SlotState


def routes() -> list[ApiRoute]:
    """Return the routes of this file."""
    return [get("/props", props), get("/slots", slots)]


async def props(request: Request) -> Response:
    """Describe the model and how it is served."""
    serving = serving_of(request)
    serving.require_open()
    model = serving.find(request.query_params.get("model"))
    runs = await model.describe()
    params = msgspec.structs.asdict(await model.sampling())
    return json_reply(
        {
            "default_generation_settings": {"n_ctx": runs.context, "params": params},
            "total_slots": runs.parallel,
            "model_alias": model.name,
            "model_path": runs.model,  # a name: where files lie is nobody's business
            "chat_template": runs.chat_template or "",
            "bos_token": runs.bos,
            "eos_token": runs.eos,
            "modalities": {"vision": False, "audio": False},
            "build_info": "corral",
            "is_sleeping": False,
        }
    )


async def slots(request: Request) -> Response:
    """List who is being answered; with fail_on_no_slot=1, 503 where nobody more could be."""
    serving = serving_of(request)
    serving.require_open()
    model = serving.find(request.query_params.get("model"))
    runs, held = await model.describe(), await model.statistics()
    wants_idle = request.query_params.get("fail_on_no_slot") not in (None, "", "0")
    if wants_idle and len(held.slots) >= runs.parallel:
        return Problem(503, "no slot is idle", code=503).response()
    count = max(runs.parallel, len(held.slots))
    busy = [*held.slots, *[None] * (count - len(held.slots))]
    return json_reply([_slot(number, slot, runs) for number, slot in enumerate(busy)])


def _slot(number: int, slot: SlotState | None, runs: Description) -> dict[str, object]:
    told: dict[str, object] = {
        "id": number,
        "n_ctx": runs.context,
        "is_processing": slot is not None,
    }
    if slot is not None:
        told |= {
            "id_task": slot.request_id,
            "n_prompt_tokens": slot.prompt_tokens,
            "n_prompt_tokens_cache": slot.cached_tokens,
            "n_prompt_tokens_processed": min(slot.computed_tokens, slot.prompt_tokens),
            "n_decoded": slot.generated_tokens,
            "n_past": slot.computed_tokens - slot.dropped_tokens,
            "truncated": slot.dropped_tokens > 0,
        }
    return told
