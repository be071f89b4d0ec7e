"""Tokens to text one at a time, for streaming. It knows nothing of stop strings or replies."""

import codecs

from corral.text.tokenizer import Tokenizer


class Detokenizer:
    """The text of a growing list of tokens, handed out as soon as whole characters are known.

    The pieces put together are `Tokenizer.decode` of all tokens, and every piece is valid text.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = False) -> None:
        """Start with no tokens; `skip_special` leaves control tokens out of the text."""
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Add a token and return the text that is now certain, often all of it, maybe none.

        Raises:
            InvalidArgument: there is no such token.
        """
        if self._skip_special and self._tokenizer.is_special(token_id):
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """Return what is left, U+FFFD for a character that never became whole, and start anew."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
