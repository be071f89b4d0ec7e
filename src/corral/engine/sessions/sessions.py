"""The conversations of one loaded model: restored before it serves, saved when it ends."""

import time
from collections.abc import Callable
from pathlib import Path

from corral.contract.sessions import SessionsRestored, SessionsSaved
from corral.engine.opened import OpenedModel
from corral.engine.sessions.blocks import Blocks
from corral.engine.sessions.file import Form
from corral.engine.sessions.key import session_key
from corral.engine.sessions.restoring import restore
from corral.engine.sessions.saving import save
from corral.engine.sessions.store import SessionStore
from corral.log import logger

NO_BEGINNINGS = "the model has layers that see a window only, and no beginning of it is kept"
_log = logger(__name__)


def _never() -> bool:
    return False


class Sessions:
    """Where a model's conversations are between two of its processes."""

    def __init__(self, opened: OpenedModel, directory: Path, *, quota_bytes: int) -> None:
        """Open the directory for a model that was opened with its fingerprint.

        Raises:
            ResourceError: it cannot be made, or others could write to it.
        """
        self._engine = opened.engine
        self._blocks = Blocks(opened.loaded.parts, opened.loaded.design.kv)
        form = Form(session_key(opened), self._blocks.layers)
        self._store = SessionStore(directory, form, quota_bytes=quota_bytes)

    def restore(self, seconds: float) -> SessionsRestored:
        """Know again what was saved, as far as there is room and time; nothing may run yet.

        What is wrong with files is logged and counted, and keeps nobody from serving.
        """
        prefixes = self._engine.prefixes
        if prefixes is None:
            return SessionsRestored(reason=NO_BEGINNINGS)
        found = restore(prefixes, self._blocks, self._store, _after(seconds))
        self._engine.returns.expect(
            found.chains, found.report, num_forgotten=prefixes.num_forgotten
        )
        _log.info("restored: %s", found.report)
        return found.report

    def save(self, seconds: float, is_cut: Callable[[], bool] = _never) -> SessionsSaved:
        """Write what is known to disk, as far as there is time; nothing may run any more.

        Args:
            is_cut: whether to stop before the next file.
        """
        prefixes, is_late = self._engine.prefixes, _after(seconds)
        if prefixes is None:
            return SessionsSaved(reason=NO_BEGINNINGS)
        self._engine.settle()
        counts = self._engine.returns.counts
        report = save(
            prefixes, self._blocks, self._store, lambda: is_late() or is_cut(), counts=counts
        )
        told = _log.warning if report.unsaved_sessions else _log.info
        told("saved: %s", report)
        return report


def _after(seconds: float) -> Callable[[], bool]:
    """Return what tells whether so many seconds are over."""
    deadline = time.monotonic() + seconds
    return lambda: time.monotonic() >= deadline
