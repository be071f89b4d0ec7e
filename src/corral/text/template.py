"""Chat templates: messages to the text a model was trained to continue.

A template comes with a model file and is as little trusted as the rest of it: it is rendered in a
sandbox with a time limit, and whatever goes wrong is a TemplateError. It knows no tokens.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

from corral.errors import InvalidArgument, TemplateError
from corral.text.markup import Markup, split_at_signs
from corral.text.rendering import Renderer, SandboxRenderer
from corral.text.reply import tool_form
from corral.text.template_facts import ContentForm, TemplateFacts, find_facts
from corral.text.tool_messages import adapted

__all__ = ["ChatTemplate", "ContentForm", "Message", "Segment"]

MAX_SOURCE: Final = 256 << 10
"""Characters of a template; the longest published ones have about 25 thousand."""
DEADLINE_S: Final = 1.0
_PROBES_S: Final = 0.7
"""What finding out about a template may take; one that takes longer is taken to write nothing."""

TEMPLATE_KEY: Final = "tokenizer.chat_template"

MAX_NODES: Final = 2_000_000
"""Values of all kinds in what a template is given."""
MAX_DATA: Final = 16 << 20
"""Characters in what a template is given."""

Message: TypeAlias = Mapping[str, Any]
Segment: TypeAlias = tuple[str, bool]
"""A piece of a prompt, and whether control tokens may be read in it."""

_OWN_NAMES = (
    *("messages", "tools", "add_generation_prompt", "bos_token", "eos_token"),
    *("tokenize", "chat_template", "raise_exception", "strftime_now"),
    *("namespace", "range", "dict", "cycler", "joiner", "loop", "self", "caller"),
)


class ChatTemplate:
    """A compiled chat template. Threads may share it; they render one after another."""

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        now: Callable[[], datetime] = datetime.now,
        compiler: Callable[[str], Renderer] | None = None,
    ) -> None:
        """Compile `source`, which may use the texts of the special tokens and the time `now`.

        Args:
            compiler: makes the renderer of a source; by default one in this process.

        Raises:
            TemplateError: the template is too long, has an error, or uses other templates.
        """
        if len(source) > MAX_SOURCE:
            raise TemplateError(
                f"the chat template has {len(source)} characters, more than the {MAX_SOURCE} "
                "allowed. Give another template."
            )
        self.source = source
        self._tokens: dict[str, object] = {
            "documents": None,
            "bos_token": bos_token,
            "eos_token": eos_token,
        }
        self._renderer = SandboxRenderer(source, now) if compiler is None else compiler(source)
        self._facts: TemplateFacts | None = None

    @classmethod
    def from_metadata(
        cls,
        metadata: Mapping[str, object],
        *,
        bos_token: str = "",
        eos_token: str = "",
        variant: str | None = None,
    ) -> "ChatTemplate":
        """Compile the template of a model file, or its `variant` (such as `tool_use`).

        There is no default: a model without a template was not trained on any chat format, and
        answers in a foreign one are bad without a sign of why.

        Raises:
            TemplateError: the file has no such template, or it cannot be compiled.
        """
        key = TEMPLATE_KEY if variant is None else f"{TEMPLATE_KEY}.{variant}"
        source = metadata.get(key)
        if not isinstance(source, str):
            raise TemplateError(
                f"the model file has no chat template ({key}); it is probably a base model. "
                "Complete a prompt instead (raw mode), or give a template."
            )
        return cls(source, bos_token=bos_token, eos_token=eos_token)

    def render(
        self,
        messages: Sequence[Message],
        /,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Message] | None = None,
        **extra: object,
    ) -> str:
        """Return the text for `messages`, each with a role and a content.

        A content is a text or a list of parts. Parts of text are put together, a line each, for a
        template that takes texts only, and a text becomes a part for one that takes parts only.
        Tools and calls are given as `tool_messages.py` says.

        Args:
            add_generation_prompt: end with the beginning of the reply.
            tools: descriptions of functions, in OpenAI's form.
            extra: further variables of the template, such as `enable_thinking`.

        Raises:
            TemplateError: the template refuses the messages, has an error or exceeds its limits.
            InvalidArgument: messages or variables are not what a template can be given.
        """
        _check_names(extra)
        messages = _copied(messages)
        _check_plain(messages, tools, extra)
        messages, tools = adapted(
            self._in_form(messages), tools, self.facts, tool_form(self.source).spelling
        )
        variables: dict[str, object] = {
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            **extra,
        }
        return self._renderer.render({**self._tokens, **variables}, DEADLINE_S)

    def render_segments(
        self,
        messages: Sequence[Message],
        /,
        *,
        markup: Markup,
        add_generation_prompt: bool = True,
        tools: Sequence[Message] | None = None,
        **extra: object,
    ) -> list[Segment]:
        """Render in segments that keep control tokens inside the data from being read as such.

        Wherever a text in `messages`, `tools` or `extra` spells a control token of `markup`, or
        ends with the beginning of one, a sign is put behind the first character. The template
        carries it along, and the character before each sign becomes a segment of its own in which
        no control token may begin. Data without such text are rendered as by `render`, in one
        segment. A template sees the signs, so it does not recognise control tokens in contents;
        one that cuts a piece out of a text and joins the rest could still put one together.

        Raises:
            TemplateError: the template refuses the messages, has an error or exceeds its limits.
            InvalidArgument: messages or variables are not what a template can be given.
        """
        _check_names(extra)
        data: dict[str, Any] = {"messages": _copied(messages), "tools": tools, "extra": extra}
        _check_plain(data)
        sign = markup.sign_for(data)
        if sign is not None:
            data = markup.marked(data, sign)
        text = self.render(
            data["messages"],
            add_generation_prompt=add_generation_prompt,
            tools=data["tools"],
            **data["extra"],
        )
        return [(text, True)] if sign is None else split_at_signs(text, sign)

    @property
    def facts(self) -> TemplateFacts:
        """What the template can write, found by trying when it is first asked for."""
        if self._facts is None:
            self._facts = self._find_facts()
        return self._facts

    @property
    def content_form(self) -> ContentForm:
        """The forms of content the template can write."""
        return self.facts.content

    def _find_facts(self) -> TemplateFacts:
        ends = time.monotonic() + _PROBES_S

        def attempt(variables: Mapping[str, object]) -> str | None:
            left = ends - time.monotonic()
            if left <= 0:
                return None
            try:
                return self._renderer.render({**self._tokens, **variables}, left)
            except TemplateError:
                return None

        return find_facts(self.source, attempt)

    def _in_form(self, messages: Sequence[Message]) -> list[Message]:
        """Give every content the form the template was written for."""
        form = self.content_form
        if form is ContentForm.TEXT:
            return [_with_text(message) for message in messages]
        if form is ContentForm.PARTS:
            return [_with_parts(message) for message in messages]
        return list(messages)


def _with_text(message: Message) -> Message:
    """Put the parts of a content together, a line each."""
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return message
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise InvalidArgument(
                f"a message holds a part of type {str(kind)[:40]!r}, but the model's chat template "
                "takes text only. Leave it out, or use a model that takes it."
            )
        texts.append(text)
    return {**message, "content": "\n".join(texts)}


def _with_parts(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, str):
        return message
    return {**message, "content": [{"type": "text", "text": content}]}


def _check_names(extra: Mapping[str, object]) -> None:
    for name in extra:
        if name in _OWN_NAMES or name.startswith("_") or not name.isidentifier():
            raise InvalidArgument(
                f"{name[:60]!r} cannot be a variable of a chat template; it is not a plain name, "
                "or has a meaning of its own."
            )


def _copied(messages: Sequence[Message]) -> list[Message]:
    for message in messages:
        if not isinstance(message, Mapping):
            raise InvalidArgument(
                f"a message is of type {type(message).__name__}, expected a mapping with a role "
                "and a content."
            )
    return [dict(message) for message in messages]


def _check_plain(*data: object) -> None:
    """Check that data are of JSON's types and of a size that can be rendered in time."""
    nodes = length = 0
    stack: list[object] = [*data]
    while stack:
        item = stack.pop()
        nodes += 1
        if isinstance(item, str):
            length += len(item)
        elif isinstance(item, dict):
            nodes += len(item)
            stack.extend(item)
            stack.extend(item.values())
        elif isinstance(item, list | tuple):
            nodes += len(item)
            stack.extend(item)
        elif not isinstance(item, int | float | None):
            raise InvalidArgument(
                f"messages hold a value of type {type(item).__name__}, expected texts, numbers, "
                "lists and mappings."
            )
        if nodes > MAX_NODES or length > MAX_DATA:
            raise InvalidArgument(
                f"messages hold more than {MAX_NODES} values or {MAX_DATA} characters; "
                "send fewer or shorter ones."
            )
