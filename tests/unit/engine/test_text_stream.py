"""Tests of `corral.engine.text_stream`: pieces of text, control tokens apart, stops within."""

import pytest

import tiny
from corral.engine.text_stream import Piece, TextStream
from corral.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_metadata(tiny.vocabulary())


def pieces(tokenizer, text, *stops):
    """Return the pieces of a text with control tokens, what is left at the end, and the stop."""
    stream, found = TextStream(tokenizer, stops), []
    for token in tokenizer.encode(text, add_special=False, parse_special=True):
        found += stream.push_pieces(token)
        if stream.stop is not None:
            break
    return found, stream.finish(), stream.stop


def test_control_tokens_are_pieces_of_their_own(tokenizer):
    """Nothing is held back across one, half a character or the beginning of a stop text."""
    found, rest, stop = pieces(tokenizer, "ab<|im_start|>c", "b<")
    assert found == [Piece("a"), Piece("b"), Piece("<|im_start|>", is_control=True), Piece("c")]
    assert (rest, stop) == ("", None)
    stream = TextStream(tokenizer, ())
    stream.push_pieces(tokenizer.encode("é", add_special=False)[0])
    control = tokenizer.token_id("<|im_start|>")
    assert stream.push_pieces(control) == [Piece("\ufffd"), Piece("<|im_start|>", is_control=True)]


def test_stop_texts_end_the_pieces(tokenizer):
    """Within text, and as the spelling of a control token or a part of it."""
    assert pieces(tokenizer, "abcd", "bc") == ([Piece("a")], "", "bc")
    assert pieces(tokenizer, "a<|im_start|>c", "<|im_start|>") == ([Piece("a")], "", "<|im_start|>")
    assert pieces(tokenizer, "ab<|im_start|>c", "im_") == ([Piece("a"), Piece("b")], "", "im_")
    assert pieces(tokenizer, "ab", "bc") == ([Piece("a")], "b", None)
