"""What became of conversations when a worker ended and when the next one began: plain data.

saved ──▶ restored ──▶ returned: a prompt went on from it, and found its tokens there
"""

import msgspec


class SessionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker's restored sessions were good for so far."""

    restored_sessions: int = 0
    restored_tokens: int = 0
    returned_sessions: int = 0
    """Whose next prompt came."""
    returned_tokens: int = 0
    """Tokens of those that did not have to be computed."""
    errors: int = 0
    """Sessions that were restored in vain: not found at once, or not by their next prompt."""


class SessionsSaved(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker left on disk at its end."""

    sessions: int = 0
    tokens: int = 0
    """Of these sessions, what several have in common counted once."""
    written_bytes: int = 0
    """Of files that were not there yet."""
    unsaved_sessions: int = 0
    """Known, and not saved; `reason` says why."""
    seconds: float = 0.0
    reason: str = ""
    counts: SessionCounts = SessionCounts()
    """Of those that this worker had restored itself."""


class SessionsRestored(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker found on disk at its beginning, and now knows."""

    sessions: int = 0
    """Whose every token is found by the search that prompts go through."""
    tokens: int = 0
    """Of these sessions, what several have in common counted once."""
    skipped_sessions: int = 0
    """For which there was no room or no time."""
    refused_files: int = 0
    """Damaged or of another version; they were removed."""
    lost_sessions: int = 0
    """Read, and not found afterwards by that search: an error."""
    seconds: float = 0.0
    reason: str = ""
    """Why nothing can be restored, if so."""


class SessionTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a model's sessions in all its processes that ended in order."""

    saved_sessions: int = 0
    saved_tokens: int = 0
    unsaved_sessions: int = 0
    restored_sessions: int = 0
    restored_tokens: int = 0
    returned_sessions: int = 0
    returned_tokens: int = 0
    errors: int = 0

    def after(self, saved: SessionsSaved) -> "SessionTotals":
        """Return the totals after one more process."""
        counts = saved.counts
        return SessionTotals(
            saved_sessions=self.saved_sessions + saved.sessions,
            saved_tokens=self.saved_tokens + saved.tokens,
            unsaved_sessions=self.unsaved_sessions + saved.unsaved_sessions,
            restored_sessions=self.restored_sessions + counts.restored_sessions,
            restored_tokens=self.restored_tokens + counts.restored_tokens,
            returned_sessions=self.returned_sessions + counts.returned_sessions,
            returned_tokens=self.returned_tokens + counts.returned_tokens,
            errors=self.errors + counts.errors,
        )
