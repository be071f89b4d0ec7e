"""The ledger: refused before anything exists, struck when it is gone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import LedgerMismatch, OutOfMemory
from corral.memory.ledger import Ledger, LedgerEntry, Reservation, format_bytes
from corral.memory.lifetime import Lifetime

MIB = 1 << 20
NEED = {Lifetime.WEIGHTS: 6 * MIB, Lifetime.STATE: 2 * MIB, Lifetime.SCRATCH: 0}


@pytest.fixture
def ledger():
    return Ledger()


def test_reserved_bytes_are_planned_and_not_allocated(ledger):
    """An entry for each lifetime, in order."""
    ledger.reserve("m", "cpu", NEED, free_bytes=8 * MIB)
    assert ledger.statistics()[:2] == (
        LedgerEntry("m", "cpu", Lifetime.WEIGHTS, 6 * MIB, 0),
        LedgerEntry("m", "cpu", Lifetime.STATE, 2 * MIB, 0),
    )


def test_a_refusal_leaves_nothing(ledger):
    """One byte too many, and no entry is written; the message lists the need."""
    with pytest.raises(OutOfMemory) as refusal:
        ledger.reserve("m", "cpu", NEED, free_bytes=8 * MIB - 1)
    assert ledger.statistics() == ()
    message = str(refusal.value)
    assert "m needs 8.0 MiB on cpu (weights 6.0 MiB, state 2.0 MiB), 8.0 MiB free" in message
    assert "lower --context" in message


def test_what_others_reserved_is_not_free(ledger):
    """Bytes that are promised but not yet allocated count against the reading."""
    ledger.reserve("a", "cpu", NEED, free_bytes=12 * MIB)
    with pytest.raises(OutOfMemory, match=r"4\.0 MiB free"):
        ledger.reserve("b", "cpu", NEED, free_bytes=12 * MIB)
    ledger.reserve("b", "other", NEED, free_bytes=8 * MIB)


def test_what_was_allocated_is_in_the_reading_already(ledger):
    """Committed bytes are not subtracted twice."""
    reserved = ledger.reserve("a", "cpu", NEED, free_bytes=16 * MIB)
    for lifetime, size in NEED.items():
        ledger.commit(reserved, lifetime, size)
    ledger.reserve("b", "cpu", NEED, free_bytes=8 * MIB)


def test_what_is_handed_over_is_no_longer_owed(ledger):
    """Bytes that turn out to be the device's own are neither planned nor pending."""
    reserved = ledger.reserve("a", "cpu", NEED, free_bytes=8 * MIB)
    ledger.hand_over(reserved, Lifetime.WEIGHTS)
    assert ledger.statistics()[0] == LedgerEntry("a", "cpu", Lifetime.WEIGHTS, 0, 0)
    ledger.reserve("b", "cpu", {Lifetime.STATE: 6 * MIB}, free_bytes=8 * MIB)


def test_an_unknown_reading_admits(ledger):
    """None says that the caller takes the risk."""
    ledger.reserve("m", "cpu", NEED, free_bytes=None)
    assert len(ledger.statistics()) == 3


def test_allocated_must_be_planned(ledger):
    """One byte more or less is a broken promise, and the entry stays as it was."""
    reserved = ledger.reserve("m", "cpu", NEED, free_bytes=None)
    before = ledger.statistics()
    with pytest.raises(LedgerMismatch, match="m allocated 1 bytes of state on cpu, 2097152 were"):
        ledger.commit(reserved, Lifetime.STATE, 1)
    with pytest.raises(LedgerMismatch, match="0 were planned"):
        ledger.commit(Reservation("m", "cpu"), Lifetime.STATE, 2 * MIB)
    assert ledger.statistics() == before
    ledger.commit(reserved, Lifetime.STATE, 2 * MIB)
    assert ledger.statistics()[1].allocated_bytes == 2 * MIB


@pytest.mark.parametrize("other", ["a", "b"])
def test_release_strikes_one_reservation(ledger, other):
    """Everything of its own, nothing of others, be they of the same name, and twice is fine."""
    first = ledger.reserve("a", "cpu", NEED, free_bytes=None)
    ledger.reserve(other, "cpu", NEED, free_bytes=None)
    assert sum(entry.planned_bytes for entry in ledger.statistics()) == 2 * sum(NEED.values())
    ledger.release(first)
    ledger.release(first)
    assert [entry.owner for entry in ledger.statistics()] == [other] * len(NEED)


needs = st.dictionaries(st.sampled_from(Lifetime), st.integers(0, 1 << 40))
actions = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.sampled_from("ab"), st.sampled_from("xy"), needs),
        st.tuples(st.sampled_from(["commit", "release"]), st.integers(0, 9)),
    ),
    max_size=30,
)


@given(actions)
def test_the_account_is_what_lives(actions):
    """Whatever names owners have, planned and allocated are sums over what was not released."""
    ledger, given_out, live = Ledger(), [], {}
    for action in actions:
        if action[0] == "reserve":
            given_out.append(ledger.reserve(*action[1:], free_bytes=None))
            live[given_out[-1]] = (action[3], set())
        elif given_out:
            reservation = given_out[action[1] % len(given_out)]
            if action[0] == "release":
                ledger.release(reservation)
                live.pop(reservation, None)
            elif reservation in live:
                need, committed = live[reservation]
                for lifetime in list(need)[:1]:
                    ledger.commit(reservation, lifetime, need[lifetime])
                    committed.add(lifetime)
    entries = ledger.statistics()
    assert sum(e.planned_bytes for e in entries) == sum(sum(n.values()) for n, _ in live.values())
    assert sum(e.allocated_bytes for e in entries) == sum(
        need[lifetime] for need, committed in live.values() for lifetime in committed
    )


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5 * MIB // 2, "2.5 MiB"),
        (5 << 30, "5.0 GiB"),
        (4096 << 30, "4096.0 GiB"),
    ],
)
def test_sizes_as_a_person_writes_them(size, text):
    """The largest unit that leaves at least one, up to GiB."""
    assert format_bytes(size) == text
