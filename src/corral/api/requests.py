"""Puts together the requests of one body: every prompt, every choice, ids and seeds."""

import uuid
from collections.abc import Sequence

from starlette.requests import Request

from corral.api import translate
from corral.api.model import Model
from corral.api.schema import GenerationFields
from corral.api.serving import namespace_of
from corral.api.settings import Limits
from corral.contract.messages import GenerationRequest, Prompt, ToolChoice


def new_id(prefix: str) -> str:
    """Return an id that nobody has."""
    return f"{prefix}{uuid.uuid4().hex}"


def number_of_choices(n: int | None, prompts: int, limits: Limits) -> int:
    """Return how many answers each prompt gets.

    Raises:
        Refused: none, or more than may be, by themselves or with all prompts.
    """
    choices = translate.choices(n, limits.choices)
    if choices * prompts > limits.sequences:
        translate.wrong("n", f"{prompts} prompts × {choices} are more than {limits.sequences}")
    return choices


async def requests_for(
    request: Request,
    body: GenerationFields,
    model: Model,
    *,
    prompts: Sequence[Prompt],
    choices: int,
    max_tokens: int | None,
    logprobs: int | None,
    tool_choice: ToolChoice | None = None,
    is_parsed: bool = False,
) -> list[GenerationRequest]:
    """Return a request for each choice of each prompt, in this order.

    Raises:
        Refused: a field says what cannot be.
        InvalidArgument: a value is out of range.
    """
    params = translate.sampling(body, await model.sampling(), logprobs=logprobs)
    name = new_id("")
    return [
        GenerationRequest(
            request_id=f"{name}-{number}-{choice}",
            prompt=prompt,
            sampling=translate.with_seed(params, choice),
            max_tokens=max_tokens,
            stop=translate.stops(body.stop),
            ignore_eos=bool(body.ignore_eos),
            constraint=translate.constraint(body),
            tool_choice=tool_choice or ToolChoice(),
            is_parsed=is_parsed,
            reuse=body.cache_prompt is not False,
            namespace=namespace_of(request),
            adapters=translate.adapters(body.lora),
        )
        for number, prompt in enumerate(prompts)
        for choice in range(choices)
    ]
