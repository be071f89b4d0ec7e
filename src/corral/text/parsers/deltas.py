"""What a parsed reply consists of, as plain data."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Content:
    """Text of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """A tool call begins."""

    index: int
    """Which call of the reply, from 0."""
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The JSON text of a call's arguments goes on."""

    index: int
    text: str


ReplyDelta: TypeAlias = Content | Reasoning | CallBegins | CallArguments


class Sink:
    """Collects deltas; adjacent ones of a kind become one.

    White space between reasoning, calls and content belongs to the format, so it is held back
    until it is known what follows: before a call or reasoning it is dropped, and so it is behind.
    """

    def __init__(self, *, keeps_space: bool = False) -> None:
        """Start with nothing; `keeps_space` passes white space on as it comes."""
        self._deltas: list[ReplyDelta] = []
        self._keeps_space = keeps_space
        self._is_fresh = False
        self._held = ""
        self.num_calls = 0
        self.is_answering = False
        """Whether there was content since the last border."""

    def content(self, text: str) -> None:
        """Add text of the answer."""
        if text := self._trimmed(text):
            self.is_answering = True
            self._add(Content(text))

    def reasoning(self, text: str) -> None:
        """Add text of the thoughts."""
        if text := self._trimmed(text):
            self._add(Reasoning(text))

    def border(self) -> None:
        """Say that content or reasoning ends here, with the white space around."""
        self._held, self._is_fresh, self.is_answering = "", True, False

    def begin(self, name: str) -> None:
        """Begin a call."""
        self.border()
        self._deltas.append(CallBegins(self.num_calls, name))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        """Add to the arguments of the call that was begun last."""
        if text:
            self._add(CallArguments(self.num_calls - 1, text))

    def finish(self) -> None:
        """Give the white space that nothing followed."""
        held, self._held = self._held, ""
        if held and not self._is_fresh:
            self._add(Content(held))

    def taken(self) -> list[ReplyDelta]:
        """Return what was collected since the last call."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def _trimmed(self, text: str) -> str:
        if self._keeps_space:
            return text
        if self._is_fresh:
            text = text.lstrip()
            self._is_fresh = not text
        text = self._held + text
        shown = text.rstrip()
        self._held = text[len(shown) :]
        return shown

    def _add(self, delta: Content | Reasoning | CallArguments) -> None:
        last = self._deltas[-1] if self._deltas else None
        if isinstance(delta, CallArguments):
            if isinstance(last, CallArguments):
                delta = CallArguments(delta.index, last.text + delta.text)
                self._deltas.pop()
        elif type(last) is type(delta) and isinstance(last, Content | Reasoning):
            delta = type(delta)(last.text + delta.text)
            self._deltas.pop()
        self._deltas.append(delta)
