"""Errors in a worker's log, told to whoever keeps it: its own standard error is read by nobody."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from corral.contract.wire import Complained
from corral.log import logger
from corral.worker.outbox import Outbox

_MOST_CHARACTERS = 2000


@contextmanager
def complaining(outbox: Outbox) -> Iterator[None]:
    """Send what is logged as an error anywhere in corral meanwhile."""
    handler, root = _Complaints(outbox), logger("corral")
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


class _Complaints(logging.Handler):
    """Sends what is logged as an error."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__(logging.ERROR)
        self._outbox = outbox

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record, without its traceback."""
        self._outbox.send(Complained(record.getMessage()[:_MOST_CHARACTERS]))
