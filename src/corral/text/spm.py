"""SentencePiece byte-pair vocabularies, which have a score for each token and no merges.

Merging any two neighbours whose union is a token, best score first, is the same as byte-pair
encoding with merges sorted by the score of what they make; so the merges are worked out here.
"""

from corral.errors import TokenizerError
from corral.text.bpe import Encoder, Merge, byte_pair_tokenizer, encoder_of
from corral.text.vocabulary import TokenType, Vocabulary

MAX_WORK = 1 << 28
"""Limit of the time to work out the merges; Gemma's 262144 tokens need 1.2e8, about a second."""
_SPLIT_COST = 60
"""A split costs as much as hashing this many characters."""

SPACE = "▁"

_MERGED = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)


def build_spm(vocabulary: Vocabulary) -> Encoder:
    """Build the encoder of a SentencePiece vocabulary.

    Characters that are no token become the tokens of their bytes, or the unknown token where those
    are missing.

    Raises:
        TokenizerError: there are no scores, or so many long tokens that the merges would take
            minutes to work out.
    """
    if vocabulary.scores is None:
        raise TokenizerError(
            "tokenizer.ggml.scores is absent: a SentencePiece vocabulary cannot be used without it."
        )
    unknown = vocabulary.special.unknown
    tokenizer = byte_pair_tokenizer(
        vocabulary.ids,
        merges_from_scores(vocabulary.ids, vocabulary.types, vocabulary.scores),
        byte_fallback=True,
        unknown=None if unknown is None else vocabulary.tokens[unknown],
    )
    encode = encoder_of(tokenizer)
    return lambda text: encode(text.replace(" ", SPACE))


def merges_from_scores(ids: dict[str, int], types: list[int], scores: list[float]) -> list[Merge]:
    """Return every split of every token into two tokens, highest score first.

    Splits of one token are sorted by the ids of their parts.

    Raises:
        TokenizerError: there are too many places to split at.
    """
    texts = [text for text, kind in zip(ids, types, strict=True) if kind in _MERGED]
    work = sum(len(text) * (len(text) + _SPLIT_COST) for text in texts)
    if work > MAX_WORK:
        longest = max(map(len, texts))
        raise TokenizerError(
            f"working out the merges of {len(texts)} tokens of up to {longest} characters would "
            "take too long: this is no usual vocabulary."
        )
    texts.sort(key=lambda text: -scores[ids[text]])
    merges: list[Merge] = []
    for text in texts:
        pairs = [
            (left, right)
            for at in range(1, len(text))
            if (right := text[at:]) in ids and (left := text[:at]) in ids
        ]
        if len(pairs) > 1:
            pairs.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        merges += pairs
    return merges
