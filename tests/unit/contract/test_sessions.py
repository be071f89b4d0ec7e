"""What became of sessions is added up over processes."""

from corral.contract.sessions import SessionCounts, SessionsSaved, SessionTotals


def test_totals_are_sums_of_all_that_ended():
    """What each saved, and what each made of what it had restored."""
    counts = SessionCounts(
        restored_sessions=1, restored_tokens=2, returned_sessions=3, returned_tokens=4, errors=5
    )
    saved = SessionsSaved(sessions=6, tokens=7, unsaved_sessions=8, counts=counts)
    totals = SessionTotals().after(saved).after(SessionsSaved(sessions=10)).after(saved)
    assert totals == SessionTotals(
        saved_sessions=22,
        saved_tokens=14,
        unsaved_sessions=16,
        restored_sessions=2,
        restored_tokens=4,
        returned_sessions=6,
        returned_tokens=8,
        errors=10,
    )
