"""Tests of `corral.text.detokenizer`."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.errors import InvalidArgument
from corral.text.detokenizer import Detokenizer


def pieces(tokenizer, ids, **options):
    detokenizer = Detokenizer(tokenizer, **options)
    return [*map(detokenizer.push, ids), detokenizer.finish()]


@given(st.lists(st.integers(0, 269), max_size=40), st.booleans())
@settings(deadline=None)
def test_pieces_put_together_are_the_whole_text(bpe, ids, skip_special):
    """Whatever the tokens, streaming them gives the same text as decoding them at once."""
    whole = bpe.decode(ids, skip_special=skip_special)
    assert "".join(pieces(bpe, ids, skip_special=skip_special)) == whole


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")))
@settings(deadline=None)
def test_valid_text_never_shows_a_replacement_character(bpe, spm, text):
    """Half a character is held back until the rest has come."""
    for tokenizer in (bpe, spm):
        assert "\ufffd" not in "".join(pieces(tokenizer, tokenizer.encode(text)))


def test_characters_come_as_soon_as_they_are_whole(bpe):
    """The last byte of a character releases it."""
    assert pieces(bpe, bpe.encode("é€a")) == ["", "é", "", "", "€", "a", ""]


def test_finishing_shows_what_never_became_whole(bpe):
    """A character cut off at the end is one replacement character, and the next text is clean."""
    detokenizer = Detokenizer(bpe)
    assert [detokenizer.push(token) for token in bpe.encode("€")[:2]] == ["", ""]
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.push(bpe.token_id("hello")) == "hello"


def test_broken_bytes_do_not_hold_back_what_follows(bpe):
    """A byte that can begin nothing valid is replaced when the next token shows it."""
    first = bpe.encode("é")[0]
    assert pieces(bpe, [first, bpe.token_id("hello")]) == ["", "\ufffdhello", ""]


def test_unknown_tokens_are_refused(bpe):
    """A token outside the vocabulary is a typed error."""
    with pytest.raises(InvalidArgument):
        Detokenizer(bpe).push(-1)
