"""Tokens of one answer to text that may be shown: whole characters, and nothing of a stop text."""

from collections.abc import Sequence
from dataclasses import dataclass

from corral.text.detokenizer import Detokenizer
from corral.text.stops import StopMatcher
from corral.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is certain, and whether it is the spelling of one control token."""

    text: str
    is_control: bool = False


class TextStream:
    """The text of one answer as it grows."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        """Begin an answer that any of `stops` ends.

        Raises:
            InvalidArgument: one of them is empty.
        """
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopMatcher(stops)

    @property
    def stop(self) -> str | None:
        """The stop text that ended the answer, once there is one."""
        return self._stops.matched

    def push(self, token: int) -> str:
        """Add a token and return the text that is certain now, maybe none."""
        return self._stops.push(self._detokenizer.push(token))[0]

    def push_pieces(self, token: int) -> list[Piece]:
        """Add a token and return the text that is certain now, control tokens apart.

        Nothing is held back across a control token, whose spelling may itself be a stop text.
        """
        if not self._tokenizer.is_special(token):
            text = self.push(token)
            return [Piece(text)] if text else []
        before = self.finish()
        pieces = [Piece(before)] if before else []
        if self.stop is not None:
            return pieces
        spelled = self._stops.push(self._tokenizer.token_text(token))[0]
        if self.stop is None:
            pieces.append(Piece(spelled + self._stops.finish(), is_control=True))
        return pieces

    def finish(self) -> str:
        """Return the text that was held back in case more would follow."""
        piece, has_stopped = self._stops.push(self._detokenizer.finish())
        return piece if has_stopped else piece + self._stops.finish()
