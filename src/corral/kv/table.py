"""The block table of one sequence in one group of layers: its tokens' blocks, in order."""

from collections.abc import Iterable

from corral.errors import InternalError
from corral.kv.pool import BlockPool
from corral.kv.spec import BLOCK_TOKENS, blocks_for

GONE = 0
"""Stands for a block behind the window: nothing reads it, so any legal id will do."""


class BlockTable:
    """Grows and shrinks one sequence's list of blocks; the pool owns the ids."""

    def __init__(self, pool: BlockPool, *, window: int | None = None) -> None:
        self._pool = pool
        self._window = window
        self._num_gone = 0
        self.blocks: list[int] = []

    def blocks_missing(self, num_tokens: int) -> int:
        """Return how many more blocks `num_tokens` tokens need."""
        return max(0, blocks_for(num_tokens) - len(self.blocks))

    def can_grow(self, num_tokens: int) -> bool:
        """Whether the pool has the blocks that `num_tokens` tokens need."""
        return self._pool.can_take(self.blocks_missing(num_tokens))

    def grow(self, num_tokens: int) -> None:
        """Take blocks until `num_tokens` tokens fit.

        Raises:
            CapacityExceeded: if the pool runs out; ask `can_grow` first.
        """
        for _ in range(self.blocks_missing(num_tokens)):
            self.blocks.append(self._pool.take())

    def adopt(self, blocks: Iterable[int]) -> None:
        """Begin an empty table with blocks that hold its first tokens already."""
        for block in blocks:
            self._pool.share(block)
            self.blocks.append(block)

    def own(self, block: int) -> None:
        """Go on with a block that this table was given, and that holds its next tokens already."""
        self.blocks.append(block)

    def slide(self, next_position: int) -> None:
        """Give back blocks that no row at `next_position` or later can see."""
        if self._window is None:
            return
        first_seen = max(0, next_position - self._window + 1)
        while self._num_gone < first_seen // BLOCK_TOKENS:
            self._pool.give_back(self.blocks[self._num_gone])
            self.blocks[self._num_gone] = GONE
            self._num_gone += 1

    def drop(self, first: int, count: int) -> None:
        """Give back blocks out of the middle; those behind them come forward."""
        if self._window is not None:
            raise InternalError("blocks behind a window are gone, the others cannot move")
        for block in reversed(self.blocks[first : first + count]):
            self._pool.give_back(block)
        del self.blocks[first : first + count]

    def replace_shared(self, number: int) -> int:
        """Leave a block to the others who use it, and return the new one that stands for it.

        Raises:
            CapacityExceeded: if none is free; ask `can_take` first.
        """
        new = self._pool.take()
        self._pool.give_back(self.blocks[number])
        self.blocks[number] = new
        return new

    def trim(self, num_tokens: int) -> None:
        """Give back the blocks behind the first `num_tokens` tokens."""
        keep = blocks_for(num_tokens)
        while len(self.blocks) > keep:
            block = self.blocks.pop()
            if len(self.blocks) >= self._num_gone:
                self._pool.give_back(block)
        self._num_gone = min(self._num_gone, len(self.blocks))
