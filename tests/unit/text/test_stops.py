"""Tests of `corral.text.stops`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import InvalidArgument
from corral.text.stops import StopMatcher

letters = st.text("abc", max_size=30)


def stream(stops, pieces):
    matcher = StopMatcher(stops)
    shown = ""
    for piece in pieces:
        text, stopped = matcher.push(piece)
        shown += text
        if stopped:
            return shown, matcher.matched
    return shown + matcher.finish(), None


def whole(stops, text):
    """Return the text before the stop string that is complete first, the slow way."""
    for end in range(len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


@given(st.lists(st.text("abc", min_size=1, max_size=4), max_size=3), st.lists(letters, max_size=8))
def test_pieces_stop_where_the_whole_text_does(stops, pieces):
    """How the text is cut into pieces does not change where it stops."""
    assert stream(stops, pieces) == whole(stops, "".join(pieces))


def test_text_that_may_be_a_stop_is_held_back():
    """Text is shown only when it cannot be the beginning of a stop string."""
    matcher = StopMatcher(["</end>"])
    assert matcher.push("a </e") == ("a ", False)
    assert matcher.push("a") == ("</ea", False)
    assert matcher.push("<") == ("", False)
    assert matcher.push("</end> tail") == ("<", True)
    assert matcher.matched == "</end>"
    assert matcher.push("more") == ("", True)
    assert matcher.finish() == ""


def test_the_end_of_the_stream_releases_what_is_held():
    """What was held back belongs to the text when nothing follows."""
    matcher = StopMatcher(["\n\n"])
    assert matcher.push("a\n") == ("a", False)
    assert matcher.finish() == "\n"


def test_without_stops_everything_passes():
    """No stop strings: every text is shown at once."""
    assert StopMatcher([]).push("abc") == ("abc", False)


def test_empty_stops_are_refused():
    """An empty stop string is a typed error."""
    with pytest.raises(InvalidArgument, match="empty"):
        StopMatcher(["a", ""])
