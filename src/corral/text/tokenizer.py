"""Text to tokens and back, from the metadata of a GGUF file alone.

Ids are the same as llama.cpp's. It does not know where the metadata come from, and no model.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property

from corral.errors import ContextExceeded, InvalidArgument
from corral.text.bpe import Encoder, build_bpe
from corral.text.markup import Markup
from corral.text.special import Span, SpecialTokens
from corral.text.spm import build_spm
from corral.text.token_bytes import bytes_of_token
from corral.text.vocabulary import TokenType, Vocabulary, VocabularyKind, read_vocabulary
from corral.text.well_known import REPLY_MARKUP
from corral.text.wordpiece import build_wordpiece

_LITERAL = frozenset(map(int, (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)))
_KEEPS_SPACE = ("<unk>", "<s>", "<|endoftext|>")


class Tokenizer:
    """A vocabulary with everything needed to encode and decode. It may be shared by threads."""

    def __init__(self, vocabulary: Vocabulary, encode_plain: Encoder) -> None:
        """Use `encode_plain` for the text between special tokens."""
        self._vocabulary = vocabulary
        self._encode_plain = encode_plain
        literal = {
            text: index
            for (text, index), kind in zip(vocabulary.ids.items(), vocabulary.types, strict=True)
            if kind in _LITERAL
        }
        self._special_ids = frozenset(
            index for index in literal.values() if vocabulary.types[index] != TokenType.USER_DEFINED
        )
        controls = [
            text
            for text, index in literal.items()
            if index in self._special_ids or text in REPLY_MARKUP
        ]
        self.markup = Markup(controls)
        """Tokens that data must not be able to spell. Markup of replies is among them: it is shown
        like text, yet in data it would forge a message."""
        stripping = (text for text in literal if text not in _KEEPS_SPACE)
        self._special_tokens = SpecialTokens(
            literal,
            control=frozenset(map(literal.__getitem__, controls)),
            strip_after=frozenset(map(literal.__getitem__, stripping))
            if vocabulary.strips_right
            else frozenset(),
        )

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object]) -> "Tokenizer":
        """Build the tokenizer that the `tokenizer.ggml.*` keys describe.

        Tolerated, with a warning in the log: ids of special tokens outside the vocabulary, merges
        of parts that are no tokens, an absent `tokenizer.ggml.pre`, tokens that are not UTF-8.

        Raises:
            TokenizerError: the vocabulary is absent, damaged or contradicts itself.
            UnsupportedModel: it needs an algorithm or a pre-tokenizer that is not known.
        """
        vocabulary = read_vocabulary(metadata)
        return cls(vocabulary, _build_encoder(vocabulary))

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens; ids are 0 to this minus one."""
        return len(self._vocabulary.tokens)

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text."""
        return self._vocabulary.special.bos

    @property
    def eos_id(self) -> int | None:
        """The token that ends a text."""
        return self._vocabulary.special.eos

    @property
    def add_bos(self) -> bool:
        """Whether `encode` puts `bos_id` in front when asked for special tokens."""
        return self._vocabulary.add_bos

    @property
    def end_of_generation(self) -> frozenset[int]:
        """Tokens after which a model has nothing more to say."""
        return self._vocabulary.special.end_of_generation

    def is_special(self, token_id: int) -> bool:
        """Say whether a token is control markup and no text to show."""
        return token_id in self._special_ids

    def token_text(self, token_id: int) -> str:
        """Return a token as the vocabulary spells it.

        Raises:
            InvalidArgument: there is no such token.
        """
        return self._vocabulary.tokens[self._checked(token_id)]

    def token_id(self, text: str) -> int | None:
        """Return the id of the token the vocabulary spells `text`, if there is one."""
        return self._vocabulary.ids.get(text)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of text a token stands for; markup is spelled out.

        Raises:
            InvalidArgument: there is no such token.
        """
        return bytes_of_token(self._vocabulary, self._checked(token_id))

    def encode(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        most_tokens: int | None = None,
    ) -> list[int]:
        """Return the tokens of `text`.

        Args:
            add_special: put in front and behind what the model wants there (BOS, EOS, separator).
            parse_special: read the spelling of a control token as that token. Off, it is ordinary
                text; user-defined tokens are found either way.
            most_tokens: refuse a text that certainly has more, without the work of reading it.

        Raises:
            InvalidArgument: the text holds half of a surrogate pair, which is no character.
            ContextExceeded: it is longer than so many tokens can be.
        """
        segments = [(text, parse_special)]
        return self.encode_segments(segments, add_special=add_special, most_tokens=most_tokens)

    def encode_segments(
        self,
        segments: Iterable[tuple[str, bool]],
        *,
        add_special: bool = True,
        most_tokens: int | None = None,
    ) -> list[int]:
        """Return the tokens of a text given in segments of (text, parse_special).

        The result is that of encoding the whole text, except that no control token is found that
        touches a segment which is not to be parsed. For `most_tokens` see `encode`.

        Raises:
            InvalidArgument: the text holds half of a surrogate pair, which is no character.
            ContextExceeded: it is longer than `most_tokens` can be.
        """
        text, protected = _join(segments)
        self._require_short(text, most_tokens)
        vocabulary, special = self._vocabulary, self._vocabulary.special
        ids = (
            [special.bos] if add_special and vocabulary.add_bos and special.bos is not None else []
        )
        after_special = True
        for part in self._special_tokens.split(text, protected):
            if isinstance(part, int):
                ids.append(part)
                after_special = True
                continue
            lead = " " if after_special and vocabulary.add_space_prefix else ""
            ids += self._plain(lead + part)
            after_special = False
        if add_special and vocabulary.add_sep and special.separator is not None:
            ids.append(special.separator)
        if add_special and vocabulary.add_eos and special.eos is not None:
            ids.append(special.eos)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Return the text of tokens; bytes that are not UTF-8 become U+FFFD.

        The text is a continuation: a leading space, as SentencePiece models write before the first
        word, is kept.

        Raises:
            InvalidArgument: there is no such token.
        """
        hidden: frozenset[int] = self._special_ids if skip_special else frozenset()
        data = b"".join(self.token_bytes(index) for index in ids if index not in hidden)
        return data.decode("utf-8", "replace")

    @cached_property
    def _longest(self) -> int | None:
        """Bytes that the longest token stands for; None where white space costs no tokens."""
        if self._vocabulary.kind is VocabularyKind.WORD_PIECE:
            return None
        return max(len(self.token_bytes(token)) for token in range(self.vocabulary_size))

    def _require_short(self, text: str, most_tokens: int | None) -> None:
        if most_tokens is None or len(text) <= most_tokens or self._longest is None:
            return
        if len(text) > most_tokens * self._longest:
            raise ContextExceeded(
                f"the prompt has {len(text)} characters, more than the {most_tokens} tokens of the "
                "context can hold: shorten the prompt or raise --context",
                context=most_tokens,
            )

    def _plain(self, text: str) -> list[int]:
        try:
            return self._encode_plain(text)
        except (TypeError, UnicodeEncodeError):  # how the library refuses lone surrogates
            raise InvalidArgument(
                "the text holds half of a surrogate pair, which is no character; "
                "send valid Unicode."
            ) from None

    def _checked(self, token_id: int) -> int:
        if 0 <= token_id < len(self._vocabulary.tokens):
            return token_id
        raise InvalidArgument(
            f"token id {token_id} does not exist; the vocabulary has ids 0 to "
            f"{len(self._vocabulary.tokens) - 1}."
        )


def _build_encoder(vocabulary: Vocabulary) -> Encoder:
    if vocabulary.pre is not None:
        return build_bpe(vocabulary, vocabulary.pre)
    if vocabulary.kind is VocabularyKind.SENTENCE_PIECE:
        return build_spm(vocabulary)
    return build_wordpiece(vocabulary)


def _join(segments: Iterable[tuple[str, bool]]) -> tuple[str, list[Span]]:
    """Return the whole text and the spans in which no control token may be found."""
    texts, protected, length = [], [], 0
    for text, parse_special in segments:
        if text and not parse_special:
            protected.append((length, length + len(text)))
        texts.append(text)
        length += len(text)
    return "".join(texts), protected
