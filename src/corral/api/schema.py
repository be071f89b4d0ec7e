"""What clients may send: typed bodies, as OpenAI and llama-server name their fields.

A field that nobody here knows is accepted and left out; a known one of a wrong type is refused by
name. Ranges are not in here: `corral.contract` has them. `translate.py` makes requests of these.
"""

import msgspec
from msgspec import UNSET, UnsetType

Json = msgspec.Raw | UnsetType
"""JSON that is passed on as it is."""
Bias = dict[str, float | bool] | list[list[int | float | bool | str]]


class SamplingFields(msgspec.Struct, kw_only=True):
    """How tokens are chosen; what is left out is the server's default."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    seed: int | None = None
    logit_bias: Bias | None = None


class StreamOptions(msgspec.Struct):
    """What a stream shows beside the answer."""

    include_usage: bool | None = None


class JsonSchema(msgspec.Struct, kw_only=True):
    """A named schema, as `response_format` holds it."""

    name: str = ""
    schema: Json = UNSET
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """What the answer must fit: `text`, `json_object` or `json_schema`."""

    type: str
    json_schema: JsonSchema | None = None
    schema: Json = UNSET
    """llama-server's place for a schema, beside `type`."""


class LoraScale(msgspec.Struct, kw_only=True):
    """How much the adapter with a number counts, from /lora-adapters."""

    id: int
    scale: float


class GenerationFields(SamplingFields, kw_only=True):
    """What chat and completions share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    max_tokens: int | None = None
    ignore_eos: bool | None = None
    cache_prompt: bool | None = None
    response_format: ResponseFormat | None = None
    grammar: str | None = None
    json_schema: Json = UNSET
    lora: list[LoraScale] | None = None


class ContentPart(msgspec.Struct, kw_only=True):
    """A part of a message; text only."""

    type: str
    text: str | None = None


class CalledFunction(msgspec.Struct):
    """The function of a call that was made."""

    name: str
    arguments: str = "{}"


class MadeCall(msgspec.Struct, kw_only=True):
    """A tool call in an earlier answer."""

    id: str = ""
    type: str = "function"
    function: CalledFunction


class ChatMessage(msgspec.Struct, kw_only=True):
    """One turn."""

    role: str
    content: str | list[ContentPart] | None = None
    reasoning_content: str | None = None
    tool_calls: list[MadeCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class OfferedFunction(msgspec.Struct, kw_only=True):
    """A function that may be called."""

    name: str
    description: str | None = None
    parameters: Json = UNSET
    strict: bool | None = None


class OfferedTool(msgspec.Struct, kw_only=True):
    """A tool that may be called; only functions are."""

    type: str = "function"
    function: OfferedFunction


class NamedFunction(msgspec.Struct):
    """The name of a function."""

    name: str


class NamedTool(msgspec.Struct, kw_only=True):
    """The one tool that must be called."""

    type: str = "function"
    function: NamedFunction


class ChatBody(GenerationFields, kw_only=True):
    """POST /v1/chat/completions, and /apply-template, which looks at the chat only."""

    messages: list[ChatMessage]
    tools: list[OfferedTool] | None = None
    chat_template_kwargs: Json = UNSET
    reasoning_effort: str | None = None
    add_generation_prompt: bool | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tool_choice: str | NamedTool | None = None
    parallel_tool_calls: bool | None = None


class CompletionBody(GenerationFields, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    suffix: str | None = None


class LlamaBody(GenerationFields, kw_only=True):
    """POST /completion, as llama-server has it."""

    prompt: str | list[str | int | list[int]]
    n_predict: int | None = None
    n_probs: int | None = None
    return_tokens: bool | None = None


class EmbeddingBody(msgspec.Struct, kw_only=True):
    """POST /v1/embeddings."""

    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    """POST /tokenize."""

    content: str
    model: str | None = None
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None
