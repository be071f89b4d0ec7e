"""The life of device contexts in this process: who made them, who needs them, when they may end.

               first owner: retain                  first launch
    ABSENT ─────────────────────────▶ ACTIVE ─────────────────────────▶ KEPT, until the process ends
      ▲                                 │  │                             │
      └── last owner gone: release ─────┘  └──── ended by others ────────┘
                                                 owners are stale, the next one retains anew

Everything that lives in a context (memory, pinned host memory, streams, events, graphs, modules) is
an `Owned` and comes and goes under one lock a process, and so does every reading that touches the
driver. A counter in its place would be a race: between seeing zero owners and releasing, another
thread may create one. Nothing computes, copies or waits for a device under the lock.

A context that ever ran work is kept: releasing it then does not give everything back on every
driver, and the end of the process does. Nothing here ever resets a device.

A call of the driver that fails leaves neither a user of the context nor memory nor a context
pushed; an interrupt waits until what was begun is whole or gone (`interrupts.py`).
"""

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass

from corral.devices.cuda.driver import DeviceFacts, Driver
from corral.errors import Closed, CorralError, StaleContext
from corral.interrupts import deferred

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ContextStatistics:
    """What is known of one device's context."""

    is_active: bool
    """Whether this object holds it; others in the process may, too."""
    is_kept: bool
    """Whether it stays until the process ends."""
    generation: int
    """How many contexts this device has had here; 0 is none yet."""
    owned: Mapping[str, int]
    """How many of each kind live in it."""


class DeviceContext:
    """The primary context of one device. Threads may share it."""

    def __init__(
        self, facts: DeviceFacts, driver: Driver, lock: AbstractContextManager[object]
    ) -> None:
        self.facts = facts
        self._driver = driver
        self._lock = lock
        self._owned: set[Owned] = set()
        self._handle: int | None = None
        self._id = 0
        self._generation = 0
        self._inside_count = 0
        self._is_kept = False
        self._has_owned = False

    def own(self, kind: str, make: Callable[[], int], destroy: Callable[[int], None]) -> "Owned":
        """Make something in the context, which begins if it is the first.

        Raises:
            StaleContext: if others ended the context; owners from before are lost, the next call
                begins a new one.
            CorralError: what `make` raises; nothing is left of it.
        """
        owned: Owned | None = None
        try:
            with self._inside():
                owned = self._made(kind, make, destroy)
        except BaseException:
            if owned is not None:  # made, and yet nobody gets it
                owned.close()
            raise
        return owned

    def _made(self, kind: str, make: Callable[[], int], destroy: Callable[[int], None]) -> "Owned":
        generation = self._generation
        owned = Owned(self, kind, make(), destroy, generation)
        if self._handle is None or self._generation != generation:
            raise StaleContext(f"the context of {self.facts.uuid} ended while {kind} was made")
        self._owned.add(owned)
        self._has_owned = True
        return owned

    def hold(self) -> "Owned":
        """Have the context without anything in it yet, from now until the result is closed.

        Raises:
            StaleContext, CorralError: as `own`.
        """
        return self.own("hold", lambda: 0, lambda handle: None)

    @contextmanager
    def current(self, owned: "Owned | None" = None) -> Iterator[int]:
        """Make the context this thread's current one, to copy or compute, without the lock.

        Gives its handle. The caller holds an `Owned` of it open meanwhile; the one whose address
        is to be used is given, so that an address of an earlier context is not used in this one.

        Raises:
            StaleContext: if there is no context, or others ended it.
        """
        is_pushed = False
        try:
            with self._pinned():
                if self._handle is None:
                    raise StaleContext(f"nothing lives on {self.facts.uuid} here any more")
                self._verify()
                if owned is not None:
                    owned.require_alive()
                handle = self._handle
                self._driver.push(handle)
                is_pushed = True
            yield handle
        finally:
            with deferred:
                if is_pushed:
                    self._driver.pop()

    def keep(self) -> None:
        """Say that work is about to be launched: from now on the context stays.

        Raises:
            StaleContext: as `current`.
        """
        with self._lock, self.current():
            self._is_kept = True

    def read(self) -> tuple[int, int] | None:
        """Return (free, total) bytes as the driver tells them, or None where asking leaves traces.

        It leaves none if the context is alive already, whoever made it, and if this process has
        never owned anything on the device: then it begins and ends within this call.
        """
        with self._lock:
            if self._has_owned and not self._is_there():
                return None
            with self._inside():
                return self._driver.memory()

    def is_active(self) -> bool:
        """Say whether the device has a context in this process, whoever made it."""
        with self._pinned():
            if self._handle is not None:
                with suppress(StaleContext):  # whoever lived in it learns of it when used
                    self._verify()
            return self._is_there()

    def _is_there(self) -> bool:
        return self._handle is not None or self._driver.primary_is_active(self.facts.ordinal)

    def statistics(self) -> ContextStatistics:
        """Return what lives in the context."""
        with self._lock:
            kinds = Counter(owned.kind for owned in self._owned)
            return ContextStatistics(
                self._handle is not None, self._is_kept, self._generation, dict(kinds)
            )

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Hold the lock with the context current: begun if need be, ended if nothing needs it."""
        with self._pinned():
            is_pushed = False
            try:
                self._begin()
                assert self._handle is not None
                self._driver.push(self._handle)
                is_pushed = True
                yield
            finally:
                if is_pushed:
                    self._driver.pop()

    @contextmanager
    def _pinned(self) -> Iterator[None]:
        """Hold the lock, and let no close within end the context."""
        with self._lock:
            self._inside_count += 1
            try:
                yield
            finally:
                self._inside_count -= 1
                self._end_if_unused()

    def _begin(self) -> None:
        if self._handle is not None:
            self._verify()
            return
        handle = self._driver.primary_retain(self.facts.ordinal)
        self._handle, self._generation = handle, self._generation + 1
        self._id = self._driver.context_id(handle)

    def _verify(self) -> None:
        """Refuse a context that others ended; a new one may well have the same handle."""
        assert self._handle is not None
        is_active = self._driver.primary_is_active(self.facts.ordinal)
        try:
            is_ours = is_active and self._driver.context_id(self._handle) == self._id
        except StaleContext:
            is_ours = False
        if not is_ours:
            lost = dict(self.statistics().owned)
            self._forget(is_active)
            raise StaleContext(
                f"the context of {self.facts.uuid} was ended by other code of this process, and "
                f"{lost or 'nothing'} of corral with it: load again, and find who resets the device"
            )

    def _forget(self, is_active: bool) -> None:
        """Drop everything of a context that others ended.

        A reset leaves the count of users as it was, so ours is still to be taken off, or the next
        context would never end. If others have begun that one already, it may be by releasing once
        too often before: then ours is gone, and taking off another would end theirs.
        """
        self._handle, self._is_kept = None, False
        self._owned.clear()
        if not is_active:
            try:
                self._driver.primary_release(self.facts.ordinal)
            except CorralError as error:  # released too often: there is no user to take off
                _log.info("no user of %s was left to take off: %s", self.facts.uuid, error)

    def _end_if_unused(self) -> None:
        if self._handle is None or self._owned or self._inside_count or self._is_kept:
            return
        try:
            self._driver.primary_release(self.facts.ordinal)
        except StaleContext:
            self._handle = None
            raise
        self._handle = None  # if the driver refuses otherwise, the next end tries again

    def _is_alive(self, owned: "Owned") -> bool:
        return owned in self._owned

    def _destroy(self, owned: "Owned", destroy: Callable[[], None]) -> None:
        """End something, unless its context ended before."""
        if self._is_kept:
            with self.current():
                self._driver.synchronize()  # before the lock is taken: nobody waits under it
        with self._lock:
            if self._is_alive(owned):
                with self._inside():
                    try:
                        destroy()
                    finally:  # if the driver would not, the end of the context takes it along
                        self._owned.discard(owned)


class Owned:
    """Something in a device context; closing ends it, once."""

    __slots__ = ("_context", "_destroy", "_handle", "_pid", "generation", "is_closed", "kind")

    def __init__(
        self,
        context: DeviceContext,
        kind: str,
        handle: int,
        destroy: Callable[[int], None],
        generation: int,
    ) -> None:
        """Made by `DeviceContext.own` only."""
        self._context = context
        self._handle = handle
        self._destroy = destroy
        self._pid = os.getpid()
        self.kind = kind
        self.generation = generation
        self.is_closed = False

    @property
    def handle(self) -> int:
        """What the driver calls it.

        Raises:
            Closed: after close().
            StaleContext: if its context ended before it.
        """
        self.require_alive()
        return self._handle

    def require_alive(self) -> None:
        """Refuse to go on with what is gone; raises as `handle` does."""
        if self.is_closed:
            raise Closed(f"{self.kind} on {self._context.facts.uuid} was closed")
        if not self._context._is_alive(self):
            raise StaleContext(
                f"{self.kind} on {self._context.facts.uuid} belongs to context "
                f"{self.generation}, which has ended: load again"
            )

    def close(self) -> None:
        """End it; a second call does nothing, unless the driver did not let the first begin.

        Faults of the device are logged, not raised.

        In a forked child it does nothing: what it stands for is the parent's.
        """
        with deferred:
            if self.is_closed or os.getpid() != self._pid:
                return
            try:
                self._context._destroy(self, lambda: self._destroy(self._handle))
            except CorralError as error:
                _log.warning("%s could not be ended: %s", self.kind, error)
            self.is_closed = not self._context._is_alive(self)
