"""Tokens of one answer to text that may be shown: whole characters, and nothing of a stop text."""

from collections.abc import Sequence

from corral.text.detokenizer import Detokenizer
from corral.text.stops import StopMatcher
from corral.text.tokenizer import Tokenizer


class TextStream:
    """The text of one answer as it grows."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        """Begin an answer that any of `stops` ends.

        Raises:
            InvalidArgument: one of them is empty.
        """
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopMatcher(stops)

    @property
    def stop(self) -> str | None:
        """The stop text that ended the answer, once there is one."""
        return self._stops.matched

    def push(self, token: int) -> str:
        """Add a token and return the text that is certain now, maybe none."""
        return self._stops.push(self._detokenizer.push(token))[0]

    def finish(self) -> str:
        """Return the text that was held back in case more would follow."""
        piece, has_stopped = self._stops.push(self._detokenizer.finish())
        return piece if has_stopped else piece + self._stops.finish()
