"""GET /v1/models and /v1/models/{id}: what is served."""

import time

from starlette.requests import Request
from starlette.responses import Response

from corral.api.routing import ApiRoute, get, json_reply
from corral.api.serving import ServingOne, one_of
from corral.contract.worker import WorkerState

_STARTED = int(time.time())


def routes() -> list[ApiRoute]:
    """Return the routes of this file."""
    return [
        get("/v1/models", models),
        get("/models", models),
        get("/v1/models/{id:path}", model),
    ]


async def models(request: Request) -> Response:
    """List the one model, loaded or not."""
    return json_reply({"object": "list", "data": [await _entry(one_of(request))]})


async def model(request: Request) -> Response:
    """Describe the one model."""
    serving = one_of(request)
    serving.find(request.path_params["id"])
    return json_reply(await _entry(serving))


async def _entry(serving: ServingOne) -> dict[str, object]:
    state = serving.status().state
    entry: dict[str, object] = {
        "id": serving.settings.model,
        "object": "model",
        "created": _STARTED,
        "owned_by": "corral",
        "aliases": [alias for alias in serving.settings.aliases if alias != "*"],
        "status": {"value": "loaded" if state is WorkerState.READY else state.value},
    }
    if state is not WorkerState.READY:
        return entry
    runs = await serving.model.describe()
    meta = {
        "n_vocab": runs.vocabulary_size,
        "n_ctx": runs.context,
        "n_embd": runs.embedding_columns,
        "n_params": runs.num_parameters,
        "size": runs.weights_bytes,
        "architecture": runs.architecture,
    }
    return {**entry, "meta": meta}
