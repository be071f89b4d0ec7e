"""One reply as it grows: pieces of text to what they mean, as a request's events tell it."""

import secrets
import string

from corral.contract.events import ContentDelta, Delta, ReasoningDelta, ToolCallDelta
from corral.engine.reply_plan import ReplyPlan
from corral.engine.text_stream import Piece
from corral.text.reply import CallArguments, CallBegins, Content, ReplyDelta, ReplyParser

_ID_LENGTH = 9
"""Templates of Mistral take ids of just nine letters and digits, all others take any."""
_ID_LETTERS = string.ascii_letters + string.digits


class Reply:
    """Reads one reply."""

    def __init__(self, plan: ReplyPlan) -> None:
        """Begin a reply that is read as `plan` says."""
        self._parser = ReplyParser(plan.form, plan.schemas)

    @property
    def has_tool_calls(self) -> bool:
        """Whether a tool call has begun."""
        return self._parser.num_calls > 0

    def push(self, pieces: list[Piece]) -> tuple[Delta, ...]:
        """Return what more text means."""
        return tuple(
            _delta(found)
            for piece in pieces
            for found in self._parser.push(piece.text, is_control=piece.is_control)
        )

    def finish(self, text: str) -> tuple[Delta, ...]:
        """Return what the last text means, and what was held back before it."""
        found = [*self._parser.push(text), *self._parser.finish()]
        return tuple(map(_delta, found))


def _delta(found: ReplyDelta) -> Delta:
    match found:
        case CallBegins(index, name):
            return ToolCallDelta(index, _fresh_id(), name)
        case CallArguments(index, text):
            return ToolCallDelta(index, arguments=text)
        case Content(text):
            return ContentDelta(text)
    return ReasoningDelta(found.text)


def _fresh_id() -> str:
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
