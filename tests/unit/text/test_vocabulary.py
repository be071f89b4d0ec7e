"""Tests of damaged vocabularies: typed errors, or tolerated on purpose."""

import itertools
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.errors import CorralError, TokenizerError, UnsupportedModel
from corral.text.pretokenize import PRE_TOKENIZERS, pre_tokenizer
from corral.text.tokenizer import Tokenizer

P = "tokenizer.ggml."


def refused(metadata, match, error=TokenizerError):
    with pytest.raises(error, match=match):
        Tokenizer.from_metadata(metadata)


def test_absent_parts_are_refused(bpe_metadata, spm_metadata):
    """Without model, tokens, merges or scores there is nothing to use."""
    for metadata, key in [
        (bpe_metadata, "model"),
        (bpe_metadata, "tokens"),
        (bpe_metadata, "merges"),
        (spm_metadata, "scores"),
    ]:
        without = {name: value for name, value in metadata.items() if name != P + key}
        refused(without, f"{key} is absent")


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("tokens", [], "is empty"),
        ("tokens", "abc", "expected a list"),
        ("tokens", 7, "expected a list"),
        ("tokens", ["a", 7], "holds int, str"),
        ("tokens", ["a", "b", "a"], "same text"),
        ("tokens", ["a", "a" * 50, "a" * 50], "same text"),
        ("token_type", [1, 1], "2 items for"),
        ("token_type", "normal", "expected a list"),
        ("token_type", [1.5] * 400, "holds float"),
        ("token_type", [True] * 400, "holds bool"),
        ("scores", [0.0], "1 items for"),
        ("scores", ["high"] * 400, "holds str"),
        ("scores", [float("nan")] * 400, "NaN"),
        ("merges", ["hell"], "expected two parts"),
        ("merges", ["he ll", ""], "expected two parts"),
        ("merges", [["he", "ll"]], "holds list"),
        ("merges", 3, "expected a list"),
        ("model", 3, "expected a string"),
        ("add_bos_token", "yes", "expected true or false"),
        ("add_bos_token", 2, "expected true or false"),
    ],
)
def test_damaged_values_are_refused(bpe_metadata, key, value, match):
    """A value of another type, length or content than it must have is a typed error."""
    refused({**bpe_metadata, P + key: value}, match)


def test_unknown_algorithms_are_refused(bpe_metadata):
    """An unknown model or pre-tokenizer would give wrong tokens silently, so it is refused."""
    refused({**bpe_metadata, P + "model": "t5"}, "t5", UnsupportedModel)
    refused({**bpe_metadata, P + "pre": "smollm-9"}, "smollm", UnsupportedModel)


def test_absent_pre_tokenizer_means_the_default(bpe_metadata, caplog):
    """Old files name no pre-tokenizer: the default is used and a warning logged."""
    del bpe_metadata[P + "pre"]
    with caplog.at_level("WARNING", "corral"):
        tokenizer = Tokenizer.from_metadata(bpe_metadata)
    assert tokenizer.decode(tokenizer.encode("hello, world")) == "hello, world"
    assert "pre is absent" in caplog.text


@pytest.mark.parametrize("value", [10**6, -1, 4294967295, True, "1", 1.0])
def test_special_ids_outside_the_vocabulary_are_ignored(bpe_metadata, value, caplog):
    """A BOS or EOS that does not exist is logged and treated as absent."""
    bpe_metadata |= {P + "bos_token_id": value, P + "eos_token_id": value}
    with caplog.at_level("WARNING", "corral"):
        tokenizer = Tokenizer.from_metadata({**bpe_metadata, P + "add_bos_token": True})
    assert tokenizer.bos_id is None
    assert tokenizer.eos_id is None
    assert not tokenizer.add_bos
    assert tokenizer.encode("hello") == [tokenizer.token_id("hello")]
    assert "ignored" in caplog.text


def test_merges_of_unknown_parts_are_dropped(bpe_metadata, caplog):
    """Pruned vocabularies keep merges of tokens they lost; the others still work."""
    merges = ["q zz", "he zz", *bpe_metadata[P + "merges"]]
    with caplog.at_level("WARNING", "corral"):
        tokenizer = Tokenizer.from_metadata({**bpe_metadata, P + "merges": merges})
    assert tokenizer.encode("hello") == [tokenizer.token_id("hello")]
    assert "2 merges" in caplog.text


def test_the_first_of_two_equal_merges_counts(bpe_metadata):
    """A repeated merge keeps its first rank."""
    merges = bpe_metadata[P + "merges"]
    repeated = Tokenizer.from_metadata({**bpe_metadata, P + "merges": [*merges, merges[0]]})
    assert repeated.encode("hello") == [repeated.token_id("hello")]


def test_empty_tokens_are_tolerated(bpe_metadata):
    """Holes in a vocabulary get a name of their own."""
    tokens = [*bpe_metadata[P + "tokens"], "", ""]
    types = [*bpe_metadata[P + "token_type"], 1, 1]
    tokenizer = Tokenizer.from_metadata(
        {**bpe_metadata, P + "tokens": tokens, P + "token_type": types}
    )
    assert tokenizer.token_text(len(tokens) - 1) == f"[EMPTY_{len(tokens) - 1}]"


def test_scores_may_be_integers(spm_metadata):
    """Scores are numbers of any kind; a list of small integers is one."""
    scores = [round(score) for score in spm_metadata[P + "scores"]]
    tokenizer = Tokenizer.from_metadata({**spm_metadata, P + "scores": scores})
    assert tokenizer.encode("hello") == [1, tokenizer.token_id("▁hello")]


def test_tokens_that_are_not_utf8_can_be_decoded(bpe_metadata):
    """A token of bytes that are no text is never encoded, and decodes to its bytes."""
    for odd in (b"\xff\xfe", b"\xff\xfe".decode("utf-8", "surrogateescape")):
        tokens = [*bpe_metadata[P + "tokens"], odd]
        types = [*bpe_metadata[P + "token_type"], 4]
        tokenizer = Tokenizer.from_metadata(
            {**bpe_metadata, P + "tokens": tokens, P + "token_type": types}
        )
        assert tokenizer.token_bytes(len(tokens) - 1) == b"\xff\xfe"
        assert tokenizer.encode("hello") == [tokenizer.token_id("hello")]


def test_missing_byte_tokens_give_the_unknown_token(spm_metadata):
    """Without byte tokens a character that is no token becomes the unknown one."""
    kept = [i for i, kind in enumerate(spm_metadata[P + "token_type"]) if kind != 6]
    for key in ("tokens", "token_type", "scores"):
        spm_metadata[P + key] = [spm_metadata[P + key][i] for i in kept]
    tokenizer = Tokenizer.from_metadata(spm_metadata)
    assert tokenizer.encode("hé", add_special=False)[-1] == 0


def test_a_megabyte_token_is_harmless(bpe_metadata, spm_metadata):
    """One very long token costs neither quadratic time nor memory, or is refused."""
    for metadata in (bpe_metadata, spm_metadata):
        long = {
            **metadata,
            P + "tokens": [*metadata[P + "tokens"], "a" * (1 << 20)],
            P + "token_type": [*metadata[P + "token_type"], 1],
        }
        if P + "scores" in metadata:
            long[P + "scores"] = [*metadata[P + "scores"], 0.0]
        tracemalloc.start()
        try:
            assert Tokenizer.from_metadata(long).encode("hello")
        except TokenizerError as error:
            assert "too long" in str(error)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
        tracemalloc.stop()


def test_too_many_items_are_refused(bpe_metadata):
    """Ten million merges are refused before any of them is looked at."""
    refused({**bpe_metadata, P + "merges": ["a b"] * 10_000_000}, "more than")


def test_a_token_that_begins_all_others_does_not_hide_them(bpe_metadata):
    """The longest special token wins over one that is its beginning."""
    tokens = [*bpe_metadata[P + "tokens"], "<", "<|"]
    types = [*bpe_metadata[P + "token_type"], 1, 4]
    tokens.remove("<")
    types.pop(0)
    tokenizer = Tokenizer.from_metadata(
        {**bpe_metadata, P + "tokens": tokens, P + "token_type": types}
    )
    assert tokenizer.encode("<|im_end|>", parse_special=True) == [tokenizer.token_id("<|im_end|>")]
    assert tokenizer.encode("<|x", parse_special=True)[0] == tokenizer.token_id("<|")


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_known_pre_tokenizer_works(bpe_metadata, name):
    """Each pattern compiles and loses no character."""
    text = "Hello's  WORLD 12345 été αβΓ 你好かな　한국 ,.!\n\n\t x\r\n <|im_end|> 😀"
    metadata = {**bpe_metadata, P + "pre": name}
    if not pre_tokenizer(name).byte_level:
        pieces = ["▁", *(f"<0x{byte:02X}>" for byte in range(256))]
        metadata[P + "tokens"] = [*bpe_metadata[P + "tokens"], *pieces]
        metadata[P + "token_type"] = [*bpe_metadata[P + "token_type"], 1, *([6] * 256)]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("llama3", "1234567", ["123", "456", "7"]),
        ("qwen2", "123", ["1", "2", "3"]),
        ("afmoe", "1234567", ["1", "234", "567"]),
        ("gpt-4o", "camelCase", ["camel", "Case"]),
        ("kimi-k2", "你好ab", ["你好", "ab"]),
        ("jais-2", "a      b", ["a", "    ", " ", " b"]),
    ],
)
def test_text_is_cut_as_the_name_says(name, text, words):
    """The cuts that set pre-tokenizers apart are where they must be."""
    tokenizers = pytest.importorskip("tokenizers")
    pieces = [text]
    for pattern in pre_tokenizer(name).patterns:
        split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
        pieces = [word for piece in pieces for word, _ in split.pre_tokenize_str(piece)]
    assert pieces == words


_junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 1 << 33),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.text(max_size=4), max_size=8),
    st.lists(st.integers(-2, 9), max_size=400),
    st.lists(st.floats(), max_size=8),
)
_keys = ["model", "pre", "tokens", "token_type", "scores", "merges", "bos_token_id"]
_keys += ["eos_token_id", "unknown_token_id", "add_bos_token", "add_space_prefix"]


@given(
    st.sampled_from(["gpt2", "llama", "bert", "gemma4"]),
    st.dictionaries(st.sampled_from(_keys), _junk, max_size=3),
    st.lists(st.text(max_size=3), min_size=1, max_size=12, unique=True),
    st.data(),
)
@settings(deadline=None)
def test_any_metadata_give_a_tokenizer_or_a_typed_error(model, changes, tokens, data):
    """Whatever stands in the metadata, nothing but an error of corral's comes out."""
    merges = [" ".join(pair) for pair in itertools.pairwise(tokens)]
    metadata = {
        P + "model": model,
        P + "pre": "default",
        P + "tokens": tokens,
        P + "token_type": data.draw(st.lists(st.integers(0, 7), min_size=12, max_size=12)),
        P + "scores": [0.0] * 12,
        P + "merges": merges,
        P + "unknown_token_id": 0,
    } | {P + key: value for key, value in changes.items()}
    try:
        tokenizer = Tokenizer.from_metadata(metadata)
        ids = tokenizer.encode("".join(tokens) + " ▁a\n", parse_special=True)
        assert isinstance(tokenizer.decode(ids), str)
    except CorralError:
        pass
