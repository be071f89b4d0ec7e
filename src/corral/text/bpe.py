"""Byte-pair encoding of plain text by the `tokenizers` library.

It knows no special tokens: text reaches it already cut at them.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ParamSpec, TypeAlias, TypeVar

from corral.errors import TokenizerError
from corral.log import logger
from corral.text.pretokenize import PreTokenizer
from corral.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    import tokenizers

log = logger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")

Encoder: TypeAlias = Callable[[str], list[int]]
"""Turns text without special tokens into ids."""

Merge: TypeAlias = tuple[str, str]


def build_bpe(vocabulary: Vocabulary, pre: PreTokenizer) -> Encoder:
    """Build the encoder of a byte-pair vocabulary.

    Raises:
        TokenizerError: the merges are absent or malformed, or the library refuses the vocabulary.
    """
    if vocabulary.merges is None:
        raise TokenizerError(
            "tokenizer.ggml.merges is absent: a byte-pair vocabulary cannot be used without it."
        )
    merges = split_merges(vocabulary.merges)
    tokenizer = byte_pair_tokenizer(
        vocabulary.ids, merges, whole_words=pre.whole_words, byte_fallback=not pre.byte_level
    )
    return translated(_with_pre_tokenizer, tokenizer, pre)


def split_merges(written: list[str]) -> list[Merge]:
    """Split merges at the first space that is not their first character; drop repetitions.

    Raises:
        TokenizerError: a merge has no such space.
    """
    merges = []
    for merge in dict.fromkeys(written):
        left, space, right = merge.partition(" ")
        if not left:
            left, space, right = merge[1:].partition(" ")
            left = " " + left
        if not space:
            raise TokenizerError(
                f"merge {written.index(merge)} is {merge[:40]!r}, expected two parts and a space "
                "between them."
            )
        merges.append((left, right))
    return merges


def byte_pair_tokenizer(
    ids: Mapping[str, int],
    merges: list[Merge],
    *,
    whole_words: bool = False,
    byte_fallback: bool = False,
    unknown: str | None = None,
) -> "tokenizers.Tokenizer":
    """Return the library's tokenizer, without any cutting of text.

    Merges of parts that are no tokens, as pruned vocabularies have them, are dropped.

    Raises:
        TokenizerError: the library refuses the vocabulary.
    """
    from tokenizers import Tokenizer, models

    known = encodable(ids)
    # The library panics on a merge that makes something longer than every token.
    usable = [
        (left, right)
        for left, right in merges
        if left in known and right in known and left + right in known
    ]
    if len(usable) < len(merges):
        log.warning("%d merges name parts that are no tokens: dropped", len(merges) - len(usable))
    model = translated(
        models.BPE,
        vocab=known,
        merges=usable,
        unk_token=unknown,
        fuse_unk=unknown is not None,
        byte_fallback=byte_fallback,
        ignore_merges=whole_words,
        # Its cache of words lies in thread-local memory that stays when the tokenizer goes: up to
        # 3 MB for each model that a thread ever used. Without it, text takes a third more time.
        cache_capacity=0,
    )
    return Tokenizer(model)


def encodable(ids: Mapping[str, int]) -> dict[str, int]:
    """Return the tokens that are valid text; the others can be produced only by a model."""
    try:
        "".join(ids).encode()
    except UnicodeEncodeError:
        return {text: index for text, index in ids.items() if _is_valid(text)}
    return dict(ids)


def encoder_of(tokenizer: "tokenizers.Tokenizer") -> Encoder:
    """Return a function from text to ids."""
    encode = tokenizer.encode

    def ids_of(text: str) -> list[int]:
        ids: list[int] = encode(text, add_special_tokens=False).ids
        return ids

    return ids_of


def _with_pre_tokenizer(tokenizer: "tokenizers.Tokenizer", pre: PreTokenizer) -> Encoder:
    from tokenizers import Regex, pre_tokenizers

    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns
    ]
    if pre.byte_level:
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    encode = encoder_of(tokenizer)
    if pre.byte_level:
        return encode
    return lambda text: encode(text.replace(" ", "▁"))


def _is_valid(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def translated(build: Callable[_P, _T], *arguments: _P.args, **options: _P.kwargs) -> _T:
    """Call into the library and turn whatever it raises into a TokenizerError."""
    try:
        return build(*arguments, **options)
    except BaseException as error:
        # A panic of the library is no Exception, and its class cannot be imported.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise TokenizerError(f"the vocabulary cannot be used: {str(error)[:200]}") from error
        raise
