"""Ctrl-C waits while something is made or ended that only a whole call leaves in order.

Python raises KeyboardInterrupt between any two steps of the main thread, also between a driver's
"done" and the line that notes it. Within `deferred` it is noted, and raised when the outermost one
ends: so what was begun is either there, and somebody owns it, or gone.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_SIGNALS: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)
_Handler = Callable[[int, FrameType | None], Any]


class Deferral:
    """`with deferred:` keeps the handlers of signals waiting; nests; free in other threads.

    Keep it short, and wait for nobody else's work within: a user waits for the end of it.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._handlers: dict[int, _Handler] = {}
        self._noted: list[int] = []

    def __enter__(self) -> None:
        """Have signals wait from now on."""
        if threading.current_thread() is not threading.main_thread():
            return  # Python runs handlers in the main thread only
        if self._depth == 0:
            self._noted.clear()
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler) and handler != self._note:  # others are not Python's
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the handlers back, and call those whose signal came meanwhile."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._depth -= 1
        if self._depth:
            return
        handlers = dict(self._handlers)
        for number in reversed(_SIGNALS):  # Ctrl-C last: it may come at once
            if number in handlers:
                signal.signal(number, self._handlers.pop(number))
        while self._noted:
            number = self._noted.pop(0)
            handlers[number](number, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted.append(number)


deferred = Deferral()
"""The one of this process: signals are the process's, too."""
