"""What a model's reply means: content, reasoning and tool calls, while it is still arriving.

Which format a reply has is read from the chat template, for a model answers in the marks that its
template uses. What the calls are for is not known here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from corral.text.parsers.deepseek import CALLS as DEEPSEEK_CALLS
from corral.text.parsers.deepseek import DEEPSEEK, DEEPSEEK_PLAIN, FENCE
from corral.text.parsers.deltas import (
    CallArguments,
    CallBegins,
    Content,
    Reasoning,
    ReplyDelta,
    Sink,
)
from corral.text.parsers.forms import Handler, Reading, Schemas, ToolForm
from corral.text.parsers.gemma import CALL as GEMMA_CALL
from corral.text.parsers.gemma import FUNCTION_CALL, FUNCTION_GEMMA, GEMMA
from corral.text.parsers.harmony import CHANNEL, HARMONY, MESSAGE
from corral.text.parsers.llama import LLAMA, PYTHON
from corral.text.parsers.mistral import ARGUMENTS, MISTRAL, MISTRAL_NAMED
from corral.text.parsers.mistral import CALLS as MISTRAL_CALLS
from corral.text.parsers.source import Parsing, Source
from corral.text.parsers.tagged import (
    FUNCTION,
    FUNCTIONARY,
    GRANITE,
    HERMES,
    NEMOTRON,
    NEMOTRON_OPEN,
    OPEN,
    PARAMETER,
    PHI,
    QWEN_CODER,
)

__all__ = [
    "PLAIN",
    "CallArguments",
    "CallBegins",
    "Content",
    "Reasoning",
    "ReasoningTags",
    "ReplyDelta",
    "ReplyFormat",
    "ReplyParser",
    "reply_format",
    "tool_form",
]


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """The marks around what a model thinks."""

    open: str
    close: str


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """How a reply is written."""

    reasoning: ReasoningTags | None = None
    starts_in_reasoning: bool = False
    """Whether the prompt has opened the reasoning already."""
    tools: ToolForm | None = None
    """None where no call is expected: what looks like one is content."""


PLAIN: Final = ReplyFormat()
"""All of the reply is content."""

_TAGS: Final = (
    ReasoningTags("<think>", "</think>"),
    ReasoningTags("[THINK]", "[/THINK]"),  # Magistral
    ReasoningTags("<seed:think>", "</seed:think>"),
    ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),  # Command
    ReasoningTags("<|channel>thought\n", "<channel|>"),  # Gemma 4
)
_LLAMA_RESULTS: Final = "<|start_header_id|>ipython<|end_header_id|>"


def reply_format(source: str, prompt_tail: str = "", *, has_tools: bool = False) -> ReplyFormat:
    """Return the format of replies to a prompt.

    Args:
        source: of the chat template.
        prompt_tail: the end of the rendered prompt, where a template may open the reasoning.
        has_tools: whether tools may be called.
    """
    if _is_harmony(source):
        return ReplyFormat(tools=HARMONY)
    tags = next((tags for tags in _TAGS if tags.open in source or tags.close in source), None)
    return ReplyFormat(
        reasoning=tags,
        starts_in_reasoning=tags is not None and prompt_tail.rstrip().endswith(tags.open.rstrip()),
        tools=tool_form(source) if has_tools else None,
    )


def _is_harmony(source: str) -> bool:
    return CHANNEL in source and MESSAGE in source


def tool_form(source: str) -> ToolForm:
    """Return the form of the calls that a template writes; Hermes' if it writes none known."""
    if _is_harmony(source):
        return HARMONY
    if MISTRAL_CALLS in source:
        return MISTRAL_NAMED if ARGUMENTS in source else MISTRAL
    if DEEPSEEK_CALLS in source:
        return DEEPSEEK if FENCE in source else DEEPSEEK_PLAIN
    if GEMMA_CALL in source:
        return GEMMA
    if FUNCTION_CALL in source:
        return FUNCTION_GEMMA
    if FUNCTION in source:
        return QWEN_CODER if PARAMETER in source else FUNCTIONARY
    if NEMOTRON_OPEN in source:
        return NEMOTRON
    if OPEN in source:
        return HERMES
    if "<|tool|>" in source:
        return PHI
    if "<|tool_call|>" in source:
        return GRANITE
    if PYTHON in source or _LLAMA_RESULTS in source:
        return LLAMA
    return HERMES


class ReplyParser:
    """Reads one reply as it arrives.

    However the text is cut into pieces, the deltas put together are the same. A call that is broken
    before its name is known is content; one that breaks later, or is not finished, keeps the
    arguments as far as they came.
    """

    def __init__(self, form: ReplyFormat, schemas: Schemas | None = None) -> None:
        """Start before the first character.

        Args:
            schemas: of the arguments of each tool, by its name: a form that writes values without
                quotes leaves it to them which ones are text.
        """
        self._source = Source()
        self._sink = Sink(keeps_space=form.reasoning is None and form.tools is None)
        self._markup = _markup(form)
        self._parsing = _reply(Reading(self._source, self._sink, schemas or {}), form)
        self._go_on()

    @property
    def num_calls(self) -> int:
        """How many tool calls have begun."""
        return self._sink.num_calls

    def push(self, text: str, *, is_control: bool = False) -> list[ReplyDelta]:
        """Add text and return what is now certain.

        Args:
            is_control: the text is that of a control token, as the vocabulary spells it
                (`Tokenizer.token_text`). One that is a mark of the format, or part of one, is read
                as such, any other is not shown.
        """
        if is_control and not any(text in mark for mark in self._markup):
            return []
        self._source.feed(text)
        self._go_on()
        return self._sink.taken()

    def finish(self) -> list[ReplyDelta]:
        """Return what was held back because more might have followed."""
        self._source.is_ended = True
        self._go_on()
        self._sink.finish()
        return self._sink.taken()

    def _go_on(self) -> None:
        next(self._parsing, None)


def _markup(form: ReplyFormat) -> frozenset[str]:
    marks: list[str] = []
    if form.reasoning is not None:
        marks += [form.reasoning.open, form.reasoning.close]
    if form.tools is not None:
        marks += [*form.tools.handlers, *form.tools.markup]
    return frozenset(marks)


def _reply(reading: Reading, form: ReplyFormat) -> Parsing[None]:
    """Read a whole reply: content up to a mark, then what the mark announces, and so on."""
    source, sink, tags = reading.source, reading.sink, form.reasoning
    handlers: Mapping[str, Handler] = form.tools.handlers if form.tools is not None else {}
    marks = (*handlers, tags.open) if tags is not None else tuple(handlers)
    if tags is not None:
        if form.starts_in_reasoning:
            yield from source.skip_space()
        is_thinking = (yield from source.starts_with(tags.open)) is not None
        if is_thinking or form.starts_in_reasoning:
            yield from _reasoning(reading, tags)
    if form.tools is not None and form.tools.at_start is not None:
        yield from form.tools.at_start(reading, "")
    while (mark := (yield from source.until(marks, sink.content))) is not None:
        if tags is not None and mark == tags.open:
            if sink.is_answering:  # the answer speaks of the tag
                sink.content(mark)
            else:
                yield from _reasoning(reading, tags)
        elif not (yield from handlers[mark](reading, mark)):
            sink.content(mark)


def _reasoning(reading: Reading, tags: ReasoningTags) -> Parsing[None]:
    reading.sink.border()
    yield from reading.source.until((tags.close,), reading.sink.reasoning)
    reading.sink.border()
