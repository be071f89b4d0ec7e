"""What became of conversations when a worker ended and when the next one began: plain data.

saved ──▶ restored ──▶ returned: a prompt went on from it, and found its tokens there
"""

import msgspec


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
