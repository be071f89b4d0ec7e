"""A vocabulary as tokenization needs it: texts, kinds, special ids and flags, all checked.

It follows llama.cpp in what is tolerated and in the guesses that old files need (types and
end-of-generation tokens recognised by their text). How text becomes tokens it does not know.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum

from corral.errors import TokenizerError, UnsupportedModel
from corral.log import logger
from corral.text.metadata import TokenizerMetadata
from corral.text.pretokenize import PreTokenizer, pre_tokenizer
from corral.text.well_known import (
    END_OF_GENERATION,
    FILL_FILE,
    FILL_PADDING,
    FILL_REPOSITORY,
    LOOKS_LIKE_CONTROL,
    REPLY_MARKUP,
)

log = logger(__name__)


class VocabularyKind(Enum):
    """The algorithm that turns text into tokens."""

    BYTE_PAIR = "byte-pair"
    SENTENCE_PIECE = "sentence-piece"
    WORD_PIECE = "word-piece"


class TokenType(IntEnum):
    """The kinds of token of `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """Ids of tokens with a role; None where the vocabulary has none."""

    bos: int | None
    eos: int | None
    unknown: int | None
    separator: int | None
    end_of_generation: frozenset[int]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """All that is known of a vocabulary before any text is seen."""

    kind: VocabularyKind
    pre: PreTokenizer | None
    tokens: list[str]
    ids: dict[str, int]
    types: list[int]
    scores: list[float] | None
    merges: list[str] | None
    special: SpecialIds
    add_bos: bool
    add_eos: bool
    add_sep: bool
    add_space_prefix: bool
    lowercase: bool
    strip_accents: bool
    strips_right: bool
    """White space after a control token is dropped (Phi-3)."""

    @property
    def is_byte_level(self) -> bool:
        """Say whether tokens are written in GPT-2's alphabet of bytes."""
        return self.pre is not None and self.pre.byte_level


_KINDS = {
    "gpt2": VocabularyKind.BYTE_PAIR,
    "gemma4": VocabularyKind.BYTE_PAIR,
    "llama": VocabularyKind.SENTENCE_PIECE,
    "bert": VocabularyKind.WORD_PIECE,
}


def read_vocabulary(metadata: Mapping[str, object]) -> Vocabulary:
    """Read and check the vocabulary of a GGUF file's metadata.

    Raises:
        TokenizerError: the vocabulary is absent, damaged or contradicts itself.
        UnsupportedModel: it needs an algorithm or a pre-tokenizer that is not known.
    """
    reader = TokenizerMetadata(metadata)
    model = reader.text("model", "")
    kind = _kind(model)
    tokens = reader.tokens()
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    types = reader.token_types(len(tokens)) or [int(TokenType.NORMAL)] * len(tokens)
    pre = _pre_tokenizer(reader, model) if kind is VocabularyKind.BYTE_PAIR else None
    special = _special_ids(reader, kind, ids, types)
    sentence_piece, word_piece = kind is VocabularyKind.SENTENCE_PIECE, pre is None
    lowercase = reader.flag("normalizer.lowercase", True)
    return Vocabulary(
        kind=kind,
        pre=pre,
        tokens=tokens,
        ids=ids,
        types=types,
        scores=reader.scores(len(tokens)),
        merges=reader.merges(),
        special=special,
        add_bos=_adds_bos(reader, pre, special),
        add_eos=reader.flag("add_eos_token", False) and special.eos is not None,
        add_sep=_adds_sep(reader, kind, pre, special),
        add_space_prefix=reader.flag("add_space_prefix", True) and sentence_piece,
        lowercase=lowercase and word_piece,
        strip_accents=reader.flag("normalizer.strip_accents", lowercase) and word_piece,
        strips_right=_is_phi3(metadata),
    )


def _kind(model: str) -> VocabularyKind:
    if not model:
        raise TokenizerError(
            "tokenizer.ggml.model is absent: the file has no vocabulary. Use a file that was "
            "converted with its tokenizer."
        )
    try:
        return _KINDS[model]
    except KeyError:
        raise UnsupportedModel(
            f"tokenizer.ggml.model is {model[:60]!r}; known are {', '.join(_KINDS)}."
        ) from None


def _pre_tokenizer(reader: TokenizerMetadata, model: str) -> PreTokenizer:
    if model == "gemma4":
        return pre_tokenizer("gemma4")
    name = reader.text("pre", "")
    if not name:
        log.warning(
            "tokenizer.ggml.pre is absent: text is cut by the default pattern, which is probably "
            "not the one this model was trained with. Convert the model again."
        )
    return pre_tokenizer(name or "default")


def _adds_bos(reader: TokenizerMetadata, pre: PreTokenizer | None, special: SpecialIds) -> bool:
    wanted = reader.flag("add_bos_token", pre.add_bos if pre else True)
    if pre is not None and not pre.byte_level and pre.add_bos:
        wanted = True  # files of Gemma 4 say no, and the model needs it
    return wanted and special.bos is not None


def _adds_sep(
    reader: TokenizerMetadata,
    kind: VocabularyKind,
    pre: PreTokenizer | None,
    special: SpecialIds,
) -> bool:
    default = pre.add_sep if pre else kind is VocabularyKind.WORD_PIECE
    wanted = reader.flag("add_sep_token", default)
    return wanted and special.separator is not None


def _is_phi3(metadata: Mapping[str, object]) -> bool:
    name = str(metadata.get("general.name", "")).lower()
    return "phi-3" in name or "phi3" in name


def _special_ids(
    reader: TokenizerMetadata, kind: VocabularyKind, ids: dict[str, int], types: list[int]
) -> SpecialIds:
    """Find the tokens with a role and correct the types of those whose text gives them away."""
    defaults: dict[str, int] = {}
    if kind is VocabularyKind.SENTENCE_PIECE:
        defaults = {"bos": 1, "eos": 2, "unknown": 0}
    elif kind is VocabularyKind.WORD_PIECE:
        defaults = {"bos": 101, "unknown": 100, "separator": 102}

    def find(role: str, *names: str) -> int | None:
        return reader.token_id(*names, default=defaults.get(role), num_tokens=len(types))

    _correct_types(ids, types)
    eos = find("eos", "eos_token_id")
    named = (find("", name) for name in ("eot_token_id", "eom_token_id"))
    ends = {ids[text] for text in END_OF_GENERATION if text in ids}
    ends.update(end for end in (eos, *named) if end is not None)
    ends.update(_fill_ends(reader, ids, len(types)))
    return SpecialIds(
        bos=find("bos", "bos_token_id", "cls_token_id"),
        eos=eos,
        unknown=find("unknown", "unknown_token_id"),
        separator=find("separator", "seperator_token_id", "separator_token_id"),
        end_of_generation=frozenset(ends - _markup_ends(ids, types, ends)),
    )


def _correct_types(ids: dict[str, int], types: list[int]) -> None:
    """Make control tokens of those that look like one; old converters marked them as text."""
    for text in LOOKS_LIKE_CONTROL:
        index = ids.get(text)
        if index is not None and types[index] != TokenType.CONTROL:
            log.info("token %d %r looks like a control token and is treated as one", index, text)
            types[index] = TokenType.CONTROL
    for text in REPLY_MARKUP:
        if text in ids:
            types[ids[text]] = TokenType.USER_DEFINED


def _fill_ends(reader: TokenizerMetadata, ids: dict[str, int], num_tokens: int) -> list[int]:
    ends = []
    for name, texts in (
        ("fim_pad_token_id", FILL_PADDING),
        ("fim_rep_token_id", FILL_REPOSITORY),
        ("fim_sep_token_id", FILL_FILE),
    ):
        found = reader.token_id(name, default=None, num_tokens=num_tokens)
        if found is None:
            found = next((ids[text] for text in texts if text in ids), None)
        if found is not None:
            ends.append(found)
    return ends


def _markup_ends(ids: dict[str, int], types: list[int], ends: set[int]) -> set[int]:
    """Return tokens that end a message, not the reply, in formats with several messages a reply."""
    out: set[int] = set()

    def has(*texts: str) -> bool:
        return all(ids.get(text) in ends for text in texts)

    if has("<|end|>", "<|return|>", "<|call|>") or (
        has("<|end|>", "<|flush|>") and (has("<|call|>") or has("<|calls|>"))
    ):
        out.add(ids["<|end|>"])
        types[ids["<|end|>"]] = TokenType.USER_DEFINED
    if has("</s>", "<|tool_response>"):
        out.add(ids["</s>"])
        types[ids["</s>"]] = TokenType.NORMAL
    return out
