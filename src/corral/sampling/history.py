"""The last tokens of a sequence, in memory that never grows; penalties look back on them."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


class History:
    """A window over the most recent tokens of one sequence."""

    __slots__ = ("_capacity", "_length", "_next", "_ring")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._length = 0
        self._next = 0
        # Each token is written twice, a capacity apart: any window is then one slice.
        self._ring = np.zeros(2 * capacity, np.int64)

    def append(self, token: int) -> None:
        """Add the newest token; the oldest is forgotten when the window is full."""
        if not self._capacity:
            return
        self._ring[self._next] = token
        self._ring[self._next + self._capacity] = token
        self._next = (self._next + 1) % self._capacity
        self._length = min(self._length + 1, self._capacity)

    def extend(self, tokens: Iterable[int]) -> None:
        """Add tokens, the newest last."""
        for token in tokens:
            self.append(token)

    def recent(self, count: int) -> NDArray[np.int64]:
        """Return a view of the last `count` tokens, oldest first; fewer where fewer are known."""
        end = self._next + self._capacity
        return self._ring[end - min(count, self._length) : end]
