"""The wording and the borders of the checks every message uses."""

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.contract.checks import check_integer, check_number, check_text, check_tuple, shown
from corral.errors import InvalidArgument


@pytest.mark.parametrize("value", [0, 1, 5])
def test_integers_in_range(value):
    """Both borders belong to the range."""
    check_integer("count", value, low=0, high=5)


@pytest.mark.parametrize("value", [-1, 6, 2**63, True, 1.0, 1.5, "1", None, [1], math.nan])
def test_other_integers(value):
    """Values out of range and values that only look like integers are refused."""
    with pytest.raises(InvalidArgument, match=r"^count is .*; expected an integer from 0 to 5$"):
        check_integer("count", value, low=0, high=5)


@pytest.mark.parametrize("value", [0, 0.5, 1, 1.0])
def test_numbers_in_range(value):
    """Integers are numbers too."""
    check_number("share", value, low=0, high=1)


@pytest.mark.parametrize(
    "value", [-0.1, 1.1, math.nan, math.inf, -math.inf, True, "0.5", None, 10**400, Decimal("0.5")]
)
def test_other_numbers(value):
    """Values out of range, not finite or of another kind are refused."""
    with pytest.raises(InvalidArgument, match=r"^share is .*; expected a number from 0 to 1$"):
        check_number("share", value, low=0, high=1)


def test_excluded_border():
    """An open range says so."""
    check_number("share", 1e-9, low=0, high=1, is_low_excluded=True)
    with pytest.raises(InvalidArgument, match=r"^share is 0; expected a number above 0 and up to"):
        check_number("share", 0, low=0, high=1, is_low_excluded=True)


@pytest.mark.parametrize("value", ["", "abcd", b"ab", 3, None])
def test_text(value):
    """Text has a length between two borders."""
    check_text("name", "abc", shortest=1, longest=3)
    with pytest.raises(InvalidArgument, match="expected text of 1 to 3 characters"):
        check_text("name", value, shortest=1, longest=3)


@pytest.mark.parametrize("value", [(), (1, 2, 3), {1}, "ab", None, 7])
def test_tuples(value):
    """Lists and tuples pass within their length; a string is neither."""
    assert check_tuple("items", [1, 2], shortest=1, longest=2, of="numbers") == (1, 2)
    with pytest.raises(InvalidArgument, match="expected 1 to 2 numbers"):
        check_tuple("items", value, shortest=1, longest=2, of="numbers")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_shown_is_short(value):
    """Whatever a value is, a message about it stays short."""
    assert 0 < len(shown(value)) < 700  # 60 characters, of ten each when escaped


def test_huge_values_are_described():
    """Values too large to print are described by their size."""
    assert shown(10**6000) == "an integer of 19932 bits"
    assert shown("x" * 10**6) == f"{'x' * 60!r} and 999940 more"
    assert shown(object()) == "of type object"
