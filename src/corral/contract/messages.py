"""What is asked of a service: plain frozen data that crosses process borders.

Knows no engine, no arrays and no bytes on a wire; `service.py` says who receives what. Limits are
in `limits.py` and `sampling.py` and nowhere else; `validate()` enforces them. SamplingParams, which
people write themselves, are validated when they are made; nothing else is: whoever accepts data
from outside calls `validate()`.
"""

import enum

import msgspec

from corral.contract.checks import check_integer, check_number, check_text, check_tuple, refuse
from corral.contract.limits import (
    MAX_ADAPTER_SCALE,
    MAX_ADAPTERS,
    MAX_MESSAGES,
    MAX_NAME_CHARACTERS,
    MAX_PROMPT_TOKENS,
    MAX_SCHEMA_CHARACTERS,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
    MAX_TEXT_CHARACTERS,
    MAX_TOKEN,
    MAX_TOOL_CALLS,
    MAX_TOOLS,
)
from corral.contract.sampling import SamplingParams

ROLES = ("system", "developer", "user", "assistant", "tool")
TOOL_MODES = ("auto", "none", "required")


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a tool that the assistant made."""

    id: str
    name: str
    arguments: str
    """JSON."""


class Message(msgspec.Struct, frozen=True):
    """One turn of a chat."""

    role: str
    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    """The call that a message of role "tool" answers."""
    name: str = ""


class Tool(msgspec.Struct, frozen=True):
    """A function that the model may call."""

    name: str
    description: str = ""
    parameters: str = "{}"
    """JSON schema of its arguments."""


class TokenPrompt(msgspec.Struct, frozen=True, tag="tokens"):
    """A prompt that is tokens already; nothing is added to it."""

    tokens: tuple[int, ...]


class TextPrompt(msgspec.Struct, frozen=True, tag="text"):
    """A prompt in plain text, tokenized by the worker without any template."""

    text: str


class ChatPrompt(msgspec.Struct, frozen=True, tag="chat"):
    """A chat, rendered by the template of the model."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    variables: str = "{}"
    """JSON object with further variables of the template, such as `enable_thinking`."""
    add_generation_prompt: bool = True


Prompt = TokenPrompt | TextPrompt | ChatPrompt


class ConstraintKind(enum.Enum):
    """How the text of a constraint is to be read."""

    JSON = "json"
    """Any JSON object; the text is empty."""
    SCHEMA = "schema"
    """A JSON schema."""
    REGEX = "regex"
    GBNF = "gbnf"
    """A grammar as llama.cpp writes them."""
    LARK = "lark"


class Constraint(msgspec.Struct, frozen=True):
    """What the whole answer must fit."""

    kind: ConstraintKind
    text: str = ""


class ToolChoice(msgspec.Struct, frozen=True):
    """Whether tools are to be called."""

    mode: str = "auto"
    """"auto", "none" or "required"."""
    name: str = ""
    """With "required": the only tool that may be called."""
    is_parallel: bool = True
    """Whether one answer may call several."""


class AdapterScale(msgspec.Struct, frozen=True):
    """How much an adapter counts; 0 is not at all."""

    id: int
    scale: float


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One answer wanted from a model."""

    request_id: str
    prompt: Prompt
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    """None generates until the model stops or the context is full; 0 only reads the prompt."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer and are not part of it."""
    ignore_eos: bool = False
    """Never stop at an end token; it is then not drawn either."""
    constraint: Constraint | None = None
    tool_choice: ToolChoice = ToolChoice()
    """Counts with a chat that has tools."""
    is_parsed: bool = False
    """Whether events of a chat tell content, reasoning and tool calls apart."""
    reuse: bool = True
    """Whether known keys and values may be used, and left for later prompts."""
    namespace: str = ""
    """Keys and values are known only to requests of the same namespace."""
    adapters: tuple[AdapterScale, ...] | None = None
    """What changes the model for this answer; None is what was set for all."""

    @property
    def adapter_pairs(self) -> tuple[tuple[int, float], ...] | None:
        """The number and the scale of each adapter."""
        return None if self.adapters is None else tuple((a.id, a.scale) for a in self.adapters)

    def validate(self, *, vocabulary_size: int | None = None) -> None:
        """Check every field, and token ids too where the vocabulary is known.

        Raises:
            InvalidArgument: naming the field, what it holds and what it may hold.
        """
        check_text("request_id", self.request_id, shortest=1, longest=128)
        if self.max_tokens is not None:
            check_integer("max_tokens", self.max_tokens, low=0, high=MAX_TOKEN)
        for index, text in enumerate(
            check_tuple("stop", self.stop, longest=MAX_STOPS, of="texts"),
        ):
            check_text(f"stop[{index}]", text, shortest=1, longest=MAX_STOP_CHARACTERS)
        for field in ("ignore_eos", "is_parsed", "reuse"):
            if not isinstance(getattr(self, field), bool):
                refuse(field, getattr(self, field), "true or false")
        check_text("namespace", self.namespace, longest=MAX_NAME_CHARACTERS)
        check_adapters("lora", self.adapters)  # as every client calls it
        _check_constraint(self.constraint)
        _check_tool_choice(self.tool_choice)
        if not isinstance(self.sampling, SamplingParams):
            refuse("sampling", self.sampling, "sampling parameters")
        _check_prompt(self.prompt, vocabulary_size)
        self.sampling.validate(vocabulary_size=vocabulary_size)


def check_adapters(field: str, adapters: object) -> None:
    """Check scales of adapters, or nothing: each adapter once.

    Raises:
        InvalidArgument: naming the field, what it holds and what it may hold.
    """
    if adapters is None:
        return
    found = set()
    for index, one in enumerate(check_tuple(field, adapters, longest=MAX_ADAPTERS, of="adapters")):
        place = f"{field}[{index}]"
        if not isinstance(one, AdapterScale):
            refuse(place, one, "an adapter with id and scale")
        check_integer(f"{place} id", one.id, low=0, high=MAX_TOKEN)
        check_number(f"{place} scale", one.scale, low=-MAX_ADAPTER_SCALE, high=MAX_ADAPTER_SCALE)
        if one.id in found:
            refuse(f"{place} id", one.id, "each adapter once")
        found.add(one.id)


def _check_prompt(prompt: object, vocabulary_size: int | None) -> None:
    match prompt:
        case TokenPrompt():
            _check_tokens(prompt.tokens, vocabulary_size)
        case TextPrompt():
            check_text("prompt", prompt.text, longest=MAX_TEXT_CHARACTERS)
        case ChatPrompt():
            _check_messages(prompt.messages)
            _check_tools(prompt.tools)
            check_text("variables", prompt.variables, shortest=2, longest=MAX_SCHEMA_CHARACTERS)
        case _:
            refuse("prompt", prompt, "tokens, text or a chat")


def _check_tokens(tokens: object, vocabulary_size: int | None) -> None:
    given = check_tuple("prompt", tokens, shortest=1, longest=MAX_PROMPT_TOKENS, of="tokens")
    highest = MAX_TOKEN if vocabulary_size is None else vocabulary_size - 1
    for index, token in enumerate(given):
        if type(token) is not int or not 0 <= token <= highest:
            refuse(f"prompt token {index}", token, f"an integer from 0 to {highest}")


def _check_messages(messages: object) -> None:
    given = check_tuple("messages", messages, shortest=1, longest=MAX_MESSAGES, of="messages")
    for index, message in enumerate(given):
        field = f"messages[{index}]"
        if not isinstance(message, Message):
            refuse(field, message, "a message with role and content")
        if message.role not in ROLES:
            refuse(f"{field} role", message.role, f"one of {', '.join(ROLES)}")
        check_text(f"{field} content", message.content, longest=MAX_TEXT_CHARACTERS)
        check_text(f"{field} reasoning", message.reasoning, longest=MAX_TEXT_CHARACTERS)
        check_text(f"{field} tool_call_id", message.tool_call_id, longest=MAX_NAME_CHARACTERS)
        check_text(f"{field} name", message.name, longest=MAX_NAME_CHARACTERS)
        _check_calls(f"{field} tool_calls", message.tool_calls)


def _check_calls(field: str, calls: object) -> None:
    for number, call in enumerate(check_tuple(field, calls, longest=MAX_TOOL_CALLS, of="calls")):
        place = f"{field}[{number}]"
        if not isinstance(call, ToolCall):
            refuse(place, call, "a call with id, name and arguments")
        check_text(f"{place} id", call.id, longest=MAX_NAME_CHARACTERS)
        check_text(f"{place} name", call.name, shortest=1, longest=MAX_NAME_CHARACTERS)
        check_text(f"{place} arguments", call.arguments, longest=MAX_TEXT_CHARACTERS)


def _check_tools(tools: object) -> None:
    names = set()
    for number, tool in enumerate(check_tuple("tools", tools, longest=MAX_TOOLS, of="tools")):
        place = f"tools[{number}]"
        if not isinstance(tool, Tool):
            refuse(place, tool, "a tool with name, description and parameters")
        check_text(f"{place} name", tool.name, shortest=1, longest=MAX_NAME_CHARACTERS)
        check_text(f"{place} description", tool.description, longest=MAX_TEXT_CHARACTERS)
        check_text(
            f"{place} parameters", tool.parameters, shortest=2, longest=MAX_SCHEMA_CHARACTERS
        )
        if tool.name in names:
            refuse(f"{place} name", tool.name, "each name once")
        names.add(tool.name)


def _check_constraint(constraint: object) -> None:
    if constraint is None:
        return
    if not isinstance(constraint, Constraint):
        refuse("constraint", constraint, "a constraint with kind and text, or nothing")
    if not isinstance(constraint.kind, ConstraintKind):
        kinds = ", ".join(kind.value for kind in ConstraintKind)
        refuse("constraint kind", constraint.kind, f"one of {kinds}")
    shortest = 0 if constraint.kind is ConstraintKind.JSON else 1
    check_text("constraint text", constraint.text, shortest=shortest, longest=MAX_SCHEMA_CHARACTERS)


def _check_tool_choice(choice: object) -> None:
    if not isinstance(choice, ToolChoice):
        refuse("tool_choice", choice, "a tool choice")
    if choice.mode not in TOOL_MODES:
        refuse("tool_choice mode", choice.mode, f"one of {', '.join(TOOL_MODES)}")
    check_text("tool_choice name", choice.name, longest=MAX_NAME_CHARACTERS)
    if not isinstance(choice.is_parallel, bool):
        refuse("tool_choice is_parallel", choice.is_parallel, "true or false")
