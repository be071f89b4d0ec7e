"""The block pool: which blocks are free and how many sequences use each of the others."""

from dataclasses import dataclass

from corral.errors import CapacityExceeded, InternalError


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """Blocks of a pool, counted."""

    num_blocks: int
    num_free: int
    """Blocks that no sequence uses."""
    num_known: int = 0
    """Blocks, free or not, whose tokens are remembered."""


class BlockPool:
    """Owns the ids 0 … num_blocks − 1 and a reference count for each."""

    def __init__(self, num_blocks: int) -> None:
        self._free = list(range(num_blocks - 1, -1, -1))
        self._references = [0] * num_blocks

    def references(self, block: int) -> int:
        """Return how often a block is referenced; 0 is free."""
        return self._references[block]

    def can_take(self, count: int) -> bool:
        """Whether `count` blocks are free."""
        return len(self._free) >= count

    def take(self) -> int:
        """Return a free block, referenced once.

        Raises:
            CapacityExceeded: if none is free; ask `can_take` first.
        """
        if not self._free:
            raise CapacityExceeded(f"all {len(self._references)} KV blocks are in use")
        block = self._free.pop()
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a reference to a block in use."""
        if self._references[block] == 0:
            raise InternalError(f"KV block {block} is free and cannot be shared")
        self._references[block] += 1

    def give_back(self, block: int) -> None:
        """Drop a reference; the last one frees the block."""
        if self._references[block] == 0:
            raise InternalError(f"KV block {block} was freed twice")
        self._references[block] -= 1
        if self._references[block] == 0:
            self._free.append(block)

    def statistics(self) -> PoolStatistics:
        """Return the counts of blocks."""
        return PoolStatistics(len(self._references), len(self._free))
