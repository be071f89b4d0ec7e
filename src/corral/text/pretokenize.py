"""How each `tokenizer.ggml.pre` name cuts text into words before byte-pair merges.

The patterns are the ones the models were trained with, in the dialect of Oniguruma, and are applied
one after another: each cuts the pieces the one before has left. Nothing here knows a vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from corral.errors import UnsupportedModel


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Say how text is cut, and the defaults that go with the name of a pre-tokenizer."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    """A word that is a token is taken whole, whatever the merges would make of it."""
    byte_level: bool = True
    """Tokens are written in GPT-2's alphabet of bytes; otherwise in plain text with ▁ for space."""
    add_bos: bool = False
    add_sep: bool = False


_GPT2 = r"'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_APOSTROPHE = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_ONE_DIGIT = r"\p{N}"
_THREE_DIGITS = r"\p{N}{1,3}"
_DIGITS_FROM_THE_RIGHT = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_LINES = r"[^\n]+|\n+"


def _class(ranges: str) -> str:
    """Write a character class from code points in hexadecimal, which no editor can normalize."""
    parts = (part.split("-") for part in ranges.split())
    return "[" + "".join("-".join(rf"\x{{{end}}}" for end in part) for part in parts) + "]"


_HAN = _class("4E00-9FA5 0800-4E00 AC00-D7FF") + "+"
_HAN_KANA = _class("4E00-9FA5 3040-309F 30A0-30FF") + "+"
_HANGUL = _class("AC00-D7A3 3131-318E") + "+"
_BOPOMOFO = _class("3105-312F") + "+"
_CJK_PUNCTUATION = (
    _class("FF01 2026 201C 201D 2018 2019 2014 FF1A FF1B FF0C 3001-303F FE30-FE4F") + "+"
)
_WIDE_PUNCTUATION = r"\s?" + _class("21-2F 3A-7E FF01-FF0F FF1A-FF5E 2018-201F 3000-3002") + "+"
_ASIAN_SCRIPTS = (
    _class(
        "4E00-9FFF 3400-4DBF F900-FAFF 3040-309F 30A0-30FF FF65-FF9F 2F00-2FDF 0E40-0E7F "
        "0E80-0EFF 1780-17FF 1000-109F AA60-AA7F A9E0-A9FF AC00-D7AF 1100-11FF"
    )
    + "+"
)
# Letters with two cases: Latin, Greek, Cyrillic, Armenian, Georgian, Cherokee, Coptic, …
_CASED_LETTERS = (
    r"\s?"
    + _class(
        "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376-377 37B-37D 37F "
        "386 388-38A 38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD "
        "1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 "
        "1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 "
        "1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 "
        "2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183-2184 "
        "2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2-2CF3 A640-A66D A680-A69B A722-A76F A771-A787 "
        "A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 "
        "104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
    )
    + "+"
)
_SENTENCE_PARTS = r" ?[^(\s|.,!?)\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C}]+"


def _modern(digits: str, *, word: str = _WORD, symbols: str = _SYMBOLS) -> str:
    return "|".join((_APOSTROPHE, word, digits, symbols, _SPACE))


def _cased(upper: str, lower: str, digits: str, *, suffix: str = f"(?:{_APOSTROPHE})?") -> str:
    """Cut between a run of small letters and the capital that follows."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    first = f"{lead}{upper}*{lower}+{suffix}"
    second = f"{lead}{upper}+{lower}*{suffix}"
    return "|".join((first, second, digits, r" ?[^\s\p{L}\p{N}]+[\r\n/]*", _SPACE))


# Approximate classes of capitals and small letters, as the reference implementation has them.
_UPPER, _LOWER = r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]"
_UPPER_MARKS, _LOWER_MARKS = r"[[\p{L}\p{M}]&&[^a-z]]", r"[[\p{L}\p{M}]&&[^A-Z]]"
# The exact classes.
_UPPER_EXACT = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER_EXACT = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_UPPER_NO_HAN = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER_NO_HAN = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"

_ASCII_SYMBOL_WORD = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
_MARKED_WORD = r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_DEEPSEEK3 = "|".join((_ASCII_SYMBOL_WORD, _MARKED_WORD, r" ?[\p{P}\p{S}]+[\r\n]*", _SPACE))
_SPARK = "|".join(
    (_ASCII_SYMBOL_WORD, _MARKED_WORD, r" ?[\p{P}\p{S}]+", r"[\r\n]", r"\s+(?!\S)", r"\s+")
)
_SHRINKING_SPACE = (
    "|".join((r"\s*[\r\n]+", *(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))))
    + r"|\s{1,2}(?!\S)|\s"
)
_GPT2_DIGITS = PreTokenizer((_ONE_DIGIT, _GPT2))
_QWEN2 = PreTokenizer((_modern(_ONE_DIGIT),))
_DEEPSEEK_V3 = PreTokenizer((_THREE_DIGITS, _HAN_KANA, _DEEPSEEK3))
_LLAMA3_PATTERN = _modern(_THREE_DIGITS)
_AYA = PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", _cased(_UPPER_EXACT, _LOWER_EXACT, _THREE_DIGITS)))

# One row a behaviour: the names that select it, and what they select.
_TABLE: tuple[tuple[str, PreTokenizer], ...] = (
    (
        "default",
        PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    ),
    (
        "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert mpt"
        " olmo jais trillion granite-docling exaone4",
        PreTokenizer((_GPT2,)),
    ),
    ("jina-v1-en jina-v2-code roberta-bpe", PreTokenizer((_GPT2,), add_sep=True)),
    (
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
        _GPT2_DIGITS,
    ),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        PreTokenizer((_LLAMA3_PATTERN,), whole_words=True, add_bos=True),
    ),
    ("dbrx smaug-bpe glm4 chatglm-bpe", PreTokenizer((_LLAMA3_PATTERN,))),
    (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan solar-open megrez grok-2",
        _QWEN2,
    ),
    (
        "qwen35",
        PreTokenizer(
            (
                _modern(
                    _ONE_DIGIT,
                    word=r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
                    symbols=r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
                ),
            )
        ),
    ),
    (
        "deepseek-llm",
        PreTokenizer(
            (
                r"[\r\n]",
                _CASED_LETTERS,
                _WIDE_PUNCTUATION,
                r"\s+$",
                _HAN,
                r"\p{N}+",
            )
        ),
    ),
    (
        "deepseek-coder",
        PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, _ONE_DIGIT)),
    ),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", _DEEPSEEK_V3),
    ("spark2_5", PreTokenizer((_THREE_DIGITS, _HAN_KANA, _SPARK, _ONE_DIGIT))),
    (
        "youtu",
        PreTokenizer(
            (
                "|".join((_HANGUL, _CJK_PUNCTUATION, _BOPOMOFO, _HAN_KANA)),
                _cased(_UPPER_EXACT, _LOWER_EXACT, _ONE_DIGIT),
            ),
            whole_words=True,
        ),
    ),
    ("falcon", PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"))),
    ("poro-chat bloom gpt3-finnish", PreTokenizer((_SENTENCE_PARTS,))),
    ("viking", PreTokenizer((_SENTENCE_PARTS, _ONE_DIGIT))),
    (
        "tekken",
        PreTokenizer(
            (_cased(_UPPER, _LOWER, _ONE_DIGIT, suffix=""),), whole_words=True, add_bos=True
        ),
    ),
    (
        "gpt-4o llama4 kanana2 talkie minimax-m2",
        PreTokenizer((_cased(_UPPER, _LOWER, _THREE_DIGITS),)),
    ),
    (
        "granite-embed-multi-97m",
        PreTokenizer((_cased(_UPPER_MARKS, _LOWER_MARKS, _THREE_DIGITS),), whole_words=True),
    ),
    ("tiny_aya cohere2moe", _AYA),
    (
        "kimi-k2",
        PreTokenizer((r"\p{Han}+|" + _cased(_UPPER_NO_HAN, _LOWER_NO_HAN, _THREE_DIGITS),)),
    ),
    (
        "chameleon",
        PreTokenizer(
            (
                r"<sentinel:[0-9]+>",
                r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                r"([\t\n]|    |  )",
                _ONE_DIGIT,
                r"[\p{P}!-/:-@\[-`{-~]",
                _GPT2,
            ),
            add_bos=True,
        ),
    ),
    ("superbpe", PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))"))),
    (
        "bailingmoe bailingmoe2 llada-moe",
        PreTokenizer((_modern(_ONE_DIGIT).replace(r"\s*[\r\n]+", r"\s*[\r\n]"),)),
    ),
    (
        "seed-coder",
        PreTokenizer((_modern(_ONE_DIGIT, symbols=r" ?[^\s\p{L}\p{N}\r\n]+"),)),
    ),
    ("ufakzeka", PreTokenizer(("|".join((_WORD, _ONE_DIGIT, _SYMBOLS, _SPACE)),))),
    (
        "jais-2",
        PreTokenizer(("|".join((_APOSTROPHE, _WORD, _THREE_DIGITS, _SYMBOLS, _SHRINKING_SPACE)),)),
    ),
    ("afmoe", PreTokenizer((_DIGITS_FROM_THE_RIGHT, _ASIAN_SCRIPTS, _DEEPSEEK3))),
    ("laguna", PreTokenizer((_LINES, _modern(_ONE_DIGIT)))),
    (
        "exaone-moe",
        PreTokenizer(
            (
                _modern(
                    _ONE_DIGIT,
                    word=r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
                    symbols=r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
                ).replace(r"\s*[\r\n]+", r"\s*[\r\n]"),
            )
        ),
    ),
    ("minicpm5", PreTokenizer((_THREE_DIGITS, _modern(r"\p{N}+")), whole_words=True)),
    # A run of newlines that is a token must come out whole; whole_words does that.
    (
        "gemma4 granite-embed-multi-311m",
        PreTokenizer((_LINES,), byte_level=False, add_bos=True, whole_words=True),
    ),
    ("sarvam-moe", PreTokenizer((_LINES,), byte_level=False)),
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    name: preset for names, preset in _TABLE for name in names.split()
}
"""Every name of `tokenizer.ggml.pre` that is understood."""


def pre_tokenizer(name: str) -> PreTokenizer:
    """Return how the pre-tokenizer called `name` cuts text.

    Raises:
        UnsupportedModel: the name is not known. Another pattern would still produce tokens, but not
            those the model was trained on, and nothing would say so.
    """
    try:
        return PRE_TOKENIZERS[name]
    except KeyError:
        known = ", ".join(_resembling(name)) or f"{len(PRE_TOKENIZERS)} others are"
        raise UnsupportedModel(
            f"tokenizer.ggml.pre is {name[:60]!r}, a pre-tokenizer that is not known "
            f"(near: {known}). Update corral, or convert the model again."
        ) from None


def _resembling(name: str) -> Iterator[str]:
    stem = name[:3].lower()
    return (known for known in sorted(PRE_TOKENIZERS) if stem and known.startswith(stem))
