"""Brings events from a service's threads to the one task that waits for each.

deliver(event)   any thread, returns at once
    │            one wake-up of the loop for all that came since the last
    ▼
take()           everything that came, at once: so one write a step for each client
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from corral.contract.events import Event


class Inbox:
    """Events for one task, bounded; all but `deliver` belongs to the loop's thread."""

    def __init__(self, room: "Mailroom", *, capacity: int, on_overfull: Callable[[], None]) -> None:
        """Wait for events through a mailroom; `on_overfull` hears of more than `capacity`."""
        self._room = room
        self._capacity = capacity
        self._on_overfull = on_overfull
        self._arrived: list[Event] = []
        self._ending: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def deliver(self, event: Event) -> None:
        """Take one event, from any thread."""
        # Threads append at the end and the loop removes from the beginning: each step is whole.
        self._arrived.append(event)
        self._room.call(self)

    def end(self, reason: Exception) -> None:
        """Have the task that takes events get an exception instead; the first one counts."""
        if self._ending is None:
            self._ending = reason
            self.wake()

    def wake(self) -> None:
        """Let the waiting task look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if len(self._arrived) > self._capacity:
            self._on_overfull()

    async def take(self, within_s: float) -> list[Event]:
        """Return everything that came, or nothing after so many seconds.

        Raises:
            Exception: what `end` was given.
        """
        if not self._arrived and self._ending is None:
            await self._wait(within_s)
        if self._ending is not None:
            raise self._ending
        count = len(self._arrived)
        events = self._arrived[:count]
        del self._arrived[:count]
        return events

    async def _wait(self, within_s: float) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(within_s):
                await self._waiter
        except TimeoutError:
            pass
        finally:
            self._waiter = None


class Mailroom:
    """Wakes the tasks of one event loop, all that have mail in one call."""

    def __init__(self) -> None:
        """Wake tasks of the running loop."""
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._listed: dict[Inbox, None] = {}

    def call(self, inbox: Inbox) -> None:
        """Have an inbox woken; from any thread."""
        with self._lock:
            is_called = bool(self._listed)
            self._listed[inbox] = None
        if not is_called:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        with self._lock:
            listed, self._listed = self._listed, {}
        for inbox in listed:
            inbox.wake()
