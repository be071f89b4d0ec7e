"""The block table of one sequence: its tokens' blocks, in order."""

from corral.kv.pool import BlockPool
from corral.kv.spec import BLOCK_TOKENS, blocks_for


class BlockTable:
    """Grows and shrinks one sequence's list of blocks; the pool owns the ids."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.blocks: list[int] = []

    @property
    def capacity_tokens(self) -> int:
        """Tokens that fit the blocks held now."""
        return len(self.blocks) * BLOCK_TOKENS

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

    def trim(self, num_tokens: int) -> None:
        """Give back the blocks behind the first `num_tokens` tokens."""
        keep = blocks_for(num_tokens)
        while len(self.blocks) > keep:
            self._pool.give_back(self.blocks.pop())
