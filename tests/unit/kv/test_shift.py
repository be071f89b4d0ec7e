"""What is dropped of a full sequence: whole blocks behind the kept ones, half of the rest."""

from hypothesis import given
from hypothesis import strategies as st

from corral.kv.shift import LEAST_CONTEXT, LEAST_SHIFTED, Shift, most_kept, shift_of
from corral.kv.spec import BLOCK_TOKENS, blocks_for


@given(st.integers(1, 5000), st.integers(0, 5000))
def test_kept_dropped_and_moved(num_tokens, keep_tokens):
    """Kept tokens stay, at least half of the others too, and the last one is never dropped."""
    shift = shift_of(num_tokens, keep_tokens)
    rest = num_tokens - blocks_for(keep_tokens) * BLOCK_TOKENS
    assert (shift is None) == (rest < LEAST_SHIFTED)
    if shift is not None:
        assert shift.dropped.start >= keep_tokens
        assert shift.distance == shift.dropped.stop - shift.dropped.start > 0
        assert rest / 2 - BLOCK_TOKENS < shift.distance <= rest / 2
        assert shift.dropped.stop < num_tokens


@given(st.integers(LEAST_CONTEXT, 5000), st.integers(0, 5000))
def test_most_kept_is_the_limit(context, keep_tokens):
    """A full context has something to drop exactly if no more is kept than that."""
    assert (shift_of(context, keep_tokens) is None) == (keep_tokens > most_kept(context))


def test_examples():
    """4096 tokens without and with a kept beginning."""
    assert shift_of(4096, 0) == Shift(0, 64)
    assert shift_of(4096, 4) == Shift(1, 63)
    assert shift_of(4096, 4096 - 64) == Shift(126, 1)
    assert shift_of(4096, 4096 - 63) is None


@given(st.integers(64, 5000), st.integers(0, 4))
def test_a_key_turns_three_times_at_most(context, keep_blocks):
    """A token is dropped before its key was rounded more often than that."""
    keep = keep_blocks * BLOCK_TOKENS
    first = shift_of(context, keep)
    if first is None:
        return
    times, place = 0, context - 1  # the last token that was computed before the first shift
    while (shift := shift_of(context, keep)) is not None and place >= shift.dropped.stop:
        place -= shift.distance
        times += 1
    assert times <= 3
