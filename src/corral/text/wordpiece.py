"""WordPiece vocabularies of BERT models: normalised words, cut greedily from the left.

Converters write ▁ before a token that starts a word and nothing before one that continues it.
"""

from corral.errors import TokenizerError
from corral.text.bpe import Encoder, encodable, encoder_of, translated
from corral.text.vocabulary import TokenType, Vocabulary

MAX_WORD_LENGTH = 200
"""Characters; a longer word becomes the unknown token, for the time grows with the square."""

START = "▁"


def build_wordpiece(vocabulary: Vocabulary) -> Encoder:
    """Build the encoder of a WordPiece vocabulary.

    Raises:
        TokenizerError: there is no unknown token, or the library refuses the vocabulary.
    """
    unknown = vocabulary.special.unknown
    if unknown is None:
        raise TokenizerError(
            "the vocabulary has no unknown token, which a WordPiece vocabulary needs."
        )
    ids = {
        _library_text(text, vocabulary.types[index]): index
        for text, index in encodable(vocabulary.ids).items()
    }
    name = _library_text(vocabulary.tokens[unknown], vocabulary.types[unknown])
    return translated(_build, vocabulary, ids, name)


def _build(vocabulary: Vocabulary, ids: dict[str, int], unknown: str) -> Encoder:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(
        models.WordPiece(vocab=ids, unk_token=unknown, max_input_chars_per_word=MAX_WORD_LENGTH)
    )
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=vocabulary.lowercase, strip_accents=vocabulary.strip_accents
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return encoder_of(tokenizer)


def _library_text(text: str, kind: int) -> str:
    if kind != TokenType.NORMAL:
        return text
    return text[1:] if text.startswith(START) else "##" + text
