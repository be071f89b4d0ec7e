"""The ledger: refused before anything exists, struck when it is gone."""

import pytest

from corral.errors import LedgerMismatch, OutOfMemory
from corral.memory.ledger import Ledger, LedgerEntry, format_bytes
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
    ledger.reserve("a", "cpu", NEED, free_bytes=16 * MIB)
    for lifetime, size in NEED.items():
        ledger.commit("a", "cpu", lifetime, size)
    ledger.reserve("b", "cpu", NEED, free_bytes=8 * MIB)


def test_an_unknown_reading_admits(ledger):
    """None says that the caller takes the risk."""
    ledger.reserve("m", "cpu", NEED, free_bytes=None)
    assert len(ledger.statistics()) == 3


def test_allocated_must_be_planned(ledger):
    """One byte more or less is a broken promise, and the entry stays as it was."""
    ledger.reserve("m", "cpu", NEED, free_bytes=None)
    before = ledger.statistics()
    with pytest.raises(LedgerMismatch, match="m allocated 1 bytes of state on cpu, 2097152 were"):
        ledger.commit("m", "cpu", Lifetime.STATE, 1)
    with pytest.raises(LedgerMismatch, match="0 were planned"):
        ledger.commit("stranger", "cpu", Lifetime.STATE, 2 * MIB)
    assert ledger.statistics() == before
    ledger.commit("m", "cpu", Lifetime.STATE, 2 * MIB)
    assert ledger.statistics()[1].allocated_bytes == 2 * MIB


def test_release_strikes_one_owner(ledger):
    """Everything of its own, nothing of others, and twice is fine."""
    ledger.reserve("a", "cpu", NEED, free_bytes=None)
    ledger.reserve("b", "cpu", NEED, free_bytes=None)
    ledger.release("a")
    ledger.release("a")
    assert {entry.owner for entry in ledger.statistics()} == {"b"}


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
