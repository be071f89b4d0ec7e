"""Tests of `corral.text.tokenizer`."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.errors import ContextExceeded, InvalidArgument
from corral.text.tokenizer import Tokenizer

# Several minutes of nothing but text: any character that can be encoded.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@pytest.mark.parametrize(
    "name", ["bert-bge", "deepseek-llm", "gpt-2", "llama-bpe", "llama-spm", "qwen2"]
)
def test_ids_are_those_of_llama_cpp(name, golden_texts, tmp_path):
    """Six published vocabularies give llama.cpp's ids for each of its 46 texts."""
    metadata, pairs = golden_texts(name, tmp_path)
    tokenizer = Tokenizer.from_metadata(metadata)
    wrong = {text: ids for text, ids in pairs if tokenizer.encode(text, add_special=False) != ids}
    assert wrong == {}
    assert len(pairs) == 46


def test_demo_model_ids_are_those_of_llama_cpp(demo_metadata, demo_texts):
    """The demo model's ids are llama.cpp's, with and without special tokens."""
    tokenizer = Tokenizer.from_metadata(demo_metadata)
    for item in demo_texts:
        text = item["text"]
        assert tokenizer.encode(text, parse_special=True) == item["ids"]
        assert tokenizer.encode(text, parse_special=False) == item["ids_no_special"]
        assert tokenizer.decode(item["ids"]) == text


@given(texts)
@settings(deadline=None)
def test_byte_level_text_survives_the_round_trip(bpe, text):
    """Decoding what a byte-level vocabulary encodes gives the text back."""
    assert bpe.decode(bpe.encode(text)) == text


@given(texts)
@settings(deadline=None)
def test_sentence_piece_text_survives_the_round_trip(spm, text):
    """A SentencePiece vocabulary gives the text back, behind the space it writes first."""
    expected = " " + text.replace("▁", " ") if text else ""
    assert spm.decode(spm.encode(text, add_special=False)) == expected


@given(texts, st.booleans())
@settings(deadline=None)
def test_segments_without_markup_encode_as_the_whole(bpe, text, parse_special):
    """Where a text is cut into segments does not change its tokens."""
    middle = len(text) // 2
    segments = [(text[:middle], parse_special), (text[middle:], not parse_special)]
    assert bpe.encode_segments(segments) == bpe.encode(text)


@given(texts, st.integers(1, 8))
@settings(deadline=None)
def test_a_text_is_refused_only_where_it_has_more_tokens(bpe, text, most):
    """What could fit is read, and has the tokens it has without a bound."""
    expected = bpe.encode(text * 9, add_special=False)
    try:
        assert bpe.encode(text * 9, add_special=False, most_tokens=most) == expected
    except ContextExceeded as error:
        assert len(expected) > most
        assert error.context == most


def test_what_cannot_fit_is_not_read(bpe):
    """A text of any length is refused without looking at it."""

    def read(text):
        raise AssertionError("it was read")

    tokenizer = Tokenizer(bpe._vocabulary, read)
    with pytest.raises(ContextExceeded, match="1000000 characters"):
        tokenizer.encode("1" * 1_000_000, most_tokens=256)


def test_control_tokens_are_parsed_only_on_demand(bpe):
    """The spelling of a control token is ordinary text unless parsing is asked for."""
    text = "<|im_start|>hello"
    start, hello = bpe.token_id("<|im_start|>"), bpe.token_id("hello")
    assert bpe.encode(text, parse_special=True) == [start, hello]
    assert start not in bpe.encode(text)
    assert bpe.decode(bpe.encode(text)) == text


def test_user_defined_tokens_are_always_parsed(bpe):
    """A user-defined token is found whatever is said about special tokens."""
    assert bpe.encode("<think>") == bpe.encode("<think>", parse_special=True)
    assert bpe.encode("<think>") == [bpe.token_id("<think>")]


def test_control_tokens_in_unparsed_segments_stay_text(bpe):
    """Markup of a template is found, the same spelling inside content is not."""
    end = bpe.token_id("<|im_end|>")
    ids = bpe.encode_segments([("<|im_start|>", True), ("<|im_end|>", False), ("<|im_end|>", True)])
    assert ids.count(end) == 1
    assert ids[-1] == end
    assert bpe.decode(ids) == "<|im_start|><|im_end|><|im_end|>"


def test_no_control_token_is_made_of_content_and_template(bpe):
    """A token spelled half by content and half by the template is ordinary text."""
    ids = bpe.encode_segments([("<|im_", False), ("end|>", True)])
    assert bpe.token_id("<|im_end|>") not in ids


def test_bos_and_eos_are_added_as_the_file_says(spm_metadata):
    """The file's flags decide what encoding puts around a text."""
    tokenizer = Tokenizer.from_metadata({**spm_metadata, "tokenizer.ggml.add_eos_token": True})
    ids = tokenizer.encode("hello")
    assert (ids[0], ids[-1]) == (1, 2)
    assert tokenizer.encode("hello", add_special=False) == ids[1:-1]
    without = Tokenizer.from_metadata({**spm_metadata, "tokenizer.ggml.add_bos_token": False})
    assert without.encode("hello") == ids[1:-1]


def test_sentence_piece_writes_a_space_first_and_after_control_tokens(spm):
    """The space before a word is put at the start and behind a control token, nowhere else."""
    hello = spm.token_id("▁hello")
    assert spm.encode("hello</s>hello", parse_special=True) == [1, hello, 2, hello]
    assert spm.encode("") == [1]


def test_space_prefix_can_be_switched_off(spm_metadata):
    """A file may say that no space is written first."""
    tokenizer = Tokenizer.from_metadata({**spm_metadata, "tokenizer.ggml.add_space_prefix": False})
    assert tokenizer.encode("hello") == [1, tokenizer.token_id("hello")]


def test_missing_characters_become_bytes(spm):
    """A character that is no token is written with the tokens of its bytes."""
    ids = spm.encode("é", add_special=False)
    assert [spm.token_text(token) for token in ids] == ["▁", "<0xC3>", "<0xA9>"]
    assert [spm.token_bytes(token) for token in ids] == [b" ", b"\xc3", b"\xa9"]


def test_white_space_behind_phi3_control_tokens_is_dropped(spm_metadata):
    """Phi-3 control tokens swallow the white space behind them, as llama.cpp does it."""
    tokenizer = Tokenizer.from_metadata({**spm_metadata, "general.name": "Phi-3 mini"})
    assert tokenizer.encode("</s> \nhello", parse_special=True) == [
        1,
        2,
        tokenizer.token_id("▁hello"),
    ]


def test_whole_lines_that_are_tokens_stay_whole():
    """Gemma 4 takes a run of newlines that is a token as that token, without any merge."""
    tokens = ["\n", "\n\n", "a", "▁", "<bos>", "<eos>"]
    tokenizer = Tokenizer.from_metadata(
        {
            "tokenizer.ggml.model": "gemma4",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.bos_token_id": 4,
            "tokenizer.ggml.token_type": [1, 1, 1, 1, 3, 3],
            "tokenizer.ggml.add_bos_token": False,
        }
    )
    assert tokenizer.encode("a a\n\na") == [4, 2, 3, 2, 1, 2]


def test_skipping_special_tokens_leaves_the_text(bpe):
    """Decoding can leave control tokens out, but keeps user-defined ones."""
    ids = bpe.encode("<|im_start|><think>hello<|im_end|>", parse_special=True)
    assert bpe.decode(ids, skip_special=True) == "<think>hello"
    assert [bpe.is_special(token) for token in ids] == [True, False, False, True]


def test_bytes_that_are_not_text_become_replacement_characters(bpe):
    """Half a character decodes to U+FFFD."""
    ids = bpe.encode("é")
    assert bpe.decode(ids[:1]) == "\ufffd"
    assert bpe.token_bytes(ids[0]) == b"\xc3"


def test_end_of_generation_holds_the_named_and_the_well_known(bpe_metadata):
    """Tokens named by the file and those known by their text end a generation."""
    metadata = {**bpe_metadata, "tokenizer.ggml.eot_token_id": 7}
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.end_of_generation == {
        7,
        tokenizer.token_id("<|im_end|>"),
        tokenizer.token_id("<|endoftext|>"),
    }


def test_messages_of_a_reply_do_not_end_it(bpe_metadata):
    """Where a reply has several messages (Harmony), the end of one is not the end of all."""
    tokens = [*bpe_metadata["tokenizer.ggml.tokens"], "<|end|>", "<|return|>", "<|call|>"]
    types = [*bpe_metadata["tokenizer.ggml.token_type"], 3, 3, 3]
    tokenizer = Tokenizer.from_metadata(
        {
            **bpe_metadata,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": types,
        }
    )
    assert tokenizer.token_id("<|end|>") not in tokenizer.end_of_generation
    assert tokenizer.token_id("<|return|>") in tokenizer.end_of_generation
    assert not tokenizer.is_special(tokenizer.token_id("<|end|>"))


def test_end_markers_of_old_files_become_control_tokens(bpe_metadata):
    """A well-known end marker is a control token even where the file calls it text."""
    types = [1] * len(bpe_metadata["tokenizer.ggml.tokens"])
    tokenizer = Tokenizer.from_metadata({**bpe_metadata, "tokenizer.ggml.token_type": types})
    assert tokenizer.is_special(tokenizer.token_id("<|im_end|>"))


@pytest.mark.parametrize("token", [-1, 10**9])
def test_ids_that_do_not_exist_are_refused(bpe, token):
    """An id outside the vocabulary is a typed error."""
    with pytest.raises(InvalidArgument, match="does not exist"):
        bpe.decode([token])
    with pytest.raises(InvalidArgument, match="does not exist"):
        bpe.token_bytes(token)


def test_half_a_surrogate_pair_is_refused(bpe, spm):
    """Text that is no Unicode is a typed error."""
    for tokenizer in (bpe, spm):
        with pytest.raises(InvalidArgument, match="surrogate"):
            tokenizer.encode("a\ud800b")


def test_long_runs_are_encoded_quickly(bpe, spm):
    """A long text without any boundary, or of nothing but spaces, takes no quadratic time."""
    for text in ("a" * 200_000, " " * 200_000, "<" * 100_000):
        assert bpe.decode(bpe.encode(text)) == text
        assert len(spm.encode(text)) > 1


def test_importing_text_loads_no_foreign_library():
    """Neither `tokenizers` nor `jinja2` is loaded before it is needed."""
    code = (
        "import corral.text.tokenizer, sys;"
        "bad = {'tokenizers', 'jinja2', 'huggingface_hub', 'numpy'} & set(sys.modules);"
        "assert not bad, bad"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
