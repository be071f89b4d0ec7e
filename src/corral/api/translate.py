"""Makes the contract's requests of what clients sent: pure functions over plain data.

What the contract cannot say is refused here by the client's name of the field; ranges are checked
by the contract itself, and `params_of` says how clients call its fields.
"""

from collections.abc import Mapping, Sequence
from typing import NoReturn

import msgspec
from msgspec import UNSET

from corral.api.errors import refused
from corral.api.schema import (
    Bias,
    ChatBody,
    ChatMessage,
    ContentPart,
    GenerationFields,
    Json,
    LlamaBody,
    LoraScale,
    NamedTool,
    OfferedTool,
    SamplingFields,
)
from corral.contract.limits import MAX_SCHEMA_CHARACTERS, MAX_SEED, MAX_TOKEN, MAX_WINDOW
from corral.contract.messages import (
    AdapterScale,
    ChatPrompt,
    Constraint,
    ConstraintKind,
    Message,
    TextPrompt,
    TokenPrompt,
    Tool,
    ToolCall,
    ToolChoice,
)
from corral.contract.sampling import SamplingParams

_PARAMS = {
    "dry_last_n": "dry_penalty_last_n",
    "dry_breakers": "dry_sequence_breakers",
}
_PARAMS_OF: dict[type, Mapping[str, str]] = {
    ChatBody: {**_PARAMS, "logprobs": "top_logprobs"},
    LlamaBody: {**_PARAMS, "logprobs": "n_probs", "max_tokens": "n_predict"},
}
_SAME_NAME = (
    *("temperature", "top_p", "min_p", "typical_p", "xtc_probability", "xtc_threshold"),
    *("repeat_penalty", "frequency_penalty", "presence_penalty"),
    *("dry_multiplier", "dry_base", "dry_allowed_length"),
)
_ANY_SEED = (-1, 2**32 - 1)
"""What llama-server's clients send for "no matter which"."""
_BIAS_LIMIT = 100.0


def params_of(body: type | None) -> Mapping[str, str]:
    """Return how clients that send a kind of body call fields that the contract calls otherwise."""
    return _PARAMS if body is None else _PARAMS_OF.get(body, _PARAMS)


def wrong(param: str, message: str) -> NoReturn:
    """Raise the refusal of a field."""
    raise refused(400, f"{param}: {message}", code="invalid_argument", param=param)


def sampling(
    fields: SamplingFields, defaults: SamplingParams, *, logprobs: int | None
) -> SamplingParams:
    """Return how tokens are chosen: as the client says, else as the server's defaults.

    Raises:
        Refused: a bias is written in a way that no token can be read from.
        InvalidArgument: a value is out of range.
    """
    values = {name: getattr(defaults, name) for name in SamplingParams.__struct_fields__}
    for name in _SAME_NAME:
        if getattr(fields, name) is not None:
            values[name] = getattr(fields, name)
    if fields.top_k is not None:
        values["top_k"] = max(fields.top_k, 0) if fields.top_k >= -1 else fields.top_k
    if fields.top_n_sigma is not None:  # 0 and less is off in llama.cpp
        values["top_n_sigma"] = fields.top_n_sigma if fields.top_n_sigma > 0 else None
    for name, given in (
        ("repeat_last_n", fields.repeat_last_n),
        ("dry_last_n", fields.dry_penalty_last_n),
    ):
        if given is not None:
            values[name] = MAX_WINDOW if given == -1 else given
    if fields.dry_sequence_breakers is not None:
        values["dry_breakers"] = tuple(fields.dry_sequence_breakers)
    if fields.seed is not None:
        values["seed"] = None if fields.seed in _ANY_SEED else fields.seed
    if fields.logit_bias is not None:
        values["logit_bias"] = biases(fields.logit_bias)
    return SamplingParams(**{**values, "logprobs": logprobs})


def biases(given: Bias) -> tuple[tuple[int, float], ...]:
    """Return (token, bias) pairs of OpenAI's object or llama-server's list; false bans a token."""
    if isinstance(given, dict):
        pairs: list[tuple[object, object]] = [(_token_of(key), bias) for key, bias in given.items()]
    else:
        if any(len(pair) != 2 for pair in given):
            wrong("logit_bias", "each item is a pair of a token and a bias")
        pairs = [(pair[0], pair[1]) for pair in given]
    return tuple(_bias_pair(token, bias) for token, bias in pairs)


def _token_of(key: str) -> int:
    if not key.isascii() or not key.isdigit() or len(key) > 10:
        wrong("logit_bias", "each key is the number of a token")
    return int(key)


def _bias_pair(token: object, bias: object) -> tuple[int, float]:
    if isinstance(token, bool) or not isinstance(token, int):
        wrong("logit_bias", "each token is its number; /tokenize tells it")
    if isinstance(bias, bool):
        if bias:
            wrong("logit_bias", "a bias is a number, or false to ban the token")
        return token, float("-inf")
    if not isinstance(bias, int | float):
        wrong("logit_bias", "a bias is a number, or false to ban the token")
    # OpenAI's −100 "should result in a ban": so it does.
    return token, float("-inf") if bias == -_BIAS_LIMIT else float(bias)


def with_seed(params: SamplingParams, choice: int) -> SamplingParams:
    """Return the sampling of one of several choices: each has a seed of its own, if any has one."""
    if params.seed is None or choice == 0:
        return params
    return msgspec.structs.replace(params, seed=(params.seed + choice) & MAX_SEED)


def tokenized_text(param: str, text: str, most: int) -> str:
    """Return a text whose tokens are asked for.

    Raises:
        Refused: it is so long that they would take long, and others wait for theirs.
    """
    if len(text) > most:
        wrong(param, f"expected at most {most} characters")
    return text


def stops(given: str | list[str] | None) -> tuple[str, ...]:
    """Return the texts that end an answer."""
    if given is None:
        return ()
    return (given,) if isinstance(given, str) else tuple(given)


def max_tokens(*given: int | None) -> int | None:
    """Return the first limit that is given; −1 is none, as llama-server has it."""
    chosen = next((limit for limit in given if limit is not None), None)
    return None if chosen == -1 else chosen


def choices(n: int | None, most: int) -> int:
    """Return how many answers are wanted.

    Raises:
        Refused: none, or more than may be.
    """
    if n is None:
        return 1
    if not 1 <= n <= most:
        wrong("n", f"expected 1 to {most}")
    return n


def adapters(given: list[LoraScale] | None) -> tuple[AdapterScale, ...] | None:
    """Return what changes the model; adapters that are not named count nothing."""
    return None if given is None else tuple(AdapterScale(one.id, one.scale) for one in given)


def constraint(fields: GenerationFields) -> Constraint | None:
    """Return what the answer must fit, however the client says so.

    Raises:
        Refused: the format is unknown or lacks its schema, or there are two constraints.
    """
    found = [
        _format_constraint(fields),
        Constraint(ConstraintKind.GBNF, fields.grammar) if fields.grammar else None,
        _schema("json_schema", given(fields.json_schema)),
    ]
    wanted = [item for item in found if item is not None]
    if len(wanted) > 1:
        wrong("response_format", "give one of response_format, grammar and json_schema")
    return wanted[0] if wanted else None


def _format_constraint(fields: GenerationFields) -> Constraint | None:
    wanted = fields.response_format
    if wanted is None or wanted.type == "text":
        return None
    inner = given(wanted.json_schema.schema) if wanted.json_schema is not None else None
    schema = inner if inner is not None else given(wanted.schema)
    if wanted.type == "json_object" and schema is None:
        return Constraint(ConstraintKind.JSON)
    if wanted.type not in ("json_object", "json_schema"):
        wrong("response_format.type", "expected text, json_object or json_schema")
    if schema is None:
        wrong("response_format.json_schema", "expected an object with a schema")
    return _schema("response_format.json_schema.schema", schema)


def _schema(param: str, raw: msgspec.Raw | None) -> Constraint | None:
    if raw is None:
        return None
    return Constraint(ConstraintKind.SCHEMA, json_text(param, raw, kind=dict | bool))


def given(json: Json) -> msgspec.Raw | None:
    """Return JSON that is there and not null."""
    return None if json is UNSET or bytes(json) == b"null" else json


def json_text(param: str, raw: msgspec.Raw, *, kind: object = dict) -> str:
    """Return JSON that is passed on as text, once it is known to be well-formed and of a kind."""
    if len(bytes(raw)) > MAX_SCHEMA_CHARACTERS:  # taken apart it would hold many times as much
        wrong(param, f"expected at most {MAX_SCHEMA_CHARACTERS} bytes of JSON")
    try:
        msgspec.json.decode(raw, type=kind)
        return bytes(raw).decode()
    except msgspec.ValidationError:
        wrong(param, "expected an object")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        wrong(param, "expected well-formed JSON")


def chat_prompt(fields: ChatBody) -> ChatPrompt:
    """Return the chat that a template is filled with.

    Raises:
        Refused: a part is no text, a tool is no function, or JSON within is malformed.
    """
    messages = enumerate(fields.messages)
    tools = enumerate(fields.tools or ())
    return ChatPrompt(
        messages=tuple(_message(message, f"messages[{index}]") for index, message in messages),
        tools=tuple(_tool(tool, f"tools[{index}]") for index, tool in tools),
        variables=_variables(fields),
        add_generation_prompt=fields.add_generation_prompt is not False,
    )


def _variables(fields: ChatBody) -> str:
    raw, effort = given(fields.chat_template_kwargs), fields.reasoning_effort
    text = "{}" if raw is None else json_text("chat_template_kwargs", raw)
    if effort is None:
        return text
    merged = {"reasoning_effort": effort, **msgspec.json.decode(text)}
    return msgspec.json.encode(merged).decode()


def _message(message: ChatMessage, place: str) -> Message:
    return Message(
        role=message.role,
        content=_content(message.content, f"{place}.content"),
        reasoning=message.reasoning_content or "",
        tool_calls=tuple(
            ToolCall(call.id, call.function.name, call.function.arguments)
            for call in message.tool_calls or ()
        ),
        tool_call_id=message.tool_call_id or "",
        name=message.name or "",
    )


def _content(content: str | list[ContentPart] | None, place: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for index, part in enumerate(content):
        if part.type not in ("text", "input_text", "output_text", "refusal"):
            wrong(f"{place}[{index}].type", "expected text: the model sees nothing else")
    return "".join(part.text or "" for part in content)


def _tool(tool: OfferedTool, place: str) -> Tool:
    if tool.type != "function":
        wrong(f"{place}.type", "expected function")
    raw = given(tool.function.parameters)
    return Tool(
        name=tool.function.name,
        description=tool.function.description or "",
        parameters="{}" if raw is None else json_text(f"{place}.function.parameters", raw),
    )


def tool_choice(body: ChatBody) -> ToolChoice:
    """Return whether tools are to be called.

    Raises:
        Refused: the choice is unknown, or names a tool that is not offered.
    """
    is_parallel = body.parallel_tool_calls is not False
    names = [tool.function.name for tool in body.tools or ()]
    given = body.tool_choice
    if isinstance(given, NamedTool):
        if given.function.name not in names:
            wrong("tool_choice", "names a tool that is not among tools")
        return ToolChoice("required", given.function.name, is_parallel=False)
    if given not in (None, "auto", "none", "required"):
        wrong("tool_choice", "expected auto, none, required, or a function's name in an object")
    if given == "required" and not names:
        wrong("tool_choice", "required needs tools")
    return ToolChoice(given or "auto", is_parallel=is_parallel)


def prompts(
    param: str, given: str | list[str | int | list[int]], most: int
) -> list[TextPrompt | TokenPrompt]:
    """Return the prompts of a text, of tokens, or of a list of either.

    Raises:
        Refused: there are none or too many, or texts and tokens are mixed in one prompt.
    """
    if isinstance(given, str):
        return [TextPrompt(given)]
    numbers = [item for item in given if isinstance(item, int)]
    if numbers:
        if len(numbers) != len(given):
            wrong(param, "a prompt is either text or tokens")
        return [_tokens(param, numbers)]
    if not 1 <= len(given) <= most:
        wrong(param, f"expected 1 to {most} prompts")
    return [
        TextPrompt(item) if isinstance(item, str) else _tokens(f"{param}[{index}]", item)
        for index, item in enumerate(given)
        if not isinstance(item, int)
    ]


def _tokens(param: str, tokens: Sequence[int]) -> TokenPrompt:
    if not tokens or not all(0 <= token <= MAX_TOKEN for token in tokens):
        wrong(param, f"expected at least one token from 0 to {MAX_TOKEN}")
    return TokenPrompt(tuple(tokens))
