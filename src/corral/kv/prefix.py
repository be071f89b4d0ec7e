"""Prefix reuse: which blocks still hold the keys and values of which tokens.

A full block is named by a digest of its tokens and of its parent's digest, so a name stands for
everything from the first token on. Blocks stay known after their last sequence, until the pool has
nothing else to hand out:

              keep                last sequence gives it back
    in use ──────────▶ known ──────────────────────────────────▶ known, idle ──▶ taken, forgotten
                         ◀────────────────────────────────────────       longest idle first
                                share
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from corral.errors import InternalError
from corral.kv.pool import BlockPool, PoolStatistics
from corral.kv.spec import BLOCK_TOKENS

_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Link:
    """The tokens of one full block, and the names of its parent and of itself."""

    parent: bytes
    """Digest of all that comes before; for the first block that of its namespace, if it has one."""
    tokens: bytes
    digest: bytes


def extend(
    links: list[Link], tokens: Sequence[int], num_blocks: int, *, namespace: str = ""
) -> None:
    """Lengthen the chain of a sequence's first blocks to `num_blocks`, all of them full.

    Chains of different namespaces have no name in common, whatever their tokens.
    """
    for number in range(len(links), num_blocks):
        first = number * BLOCK_TOKENS
        own = array("i", tokens[first : first + BLOCK_TOKENS]).tobytes()
        parent = links[-1].digest if links else _root(namespace)
        digest = blake2b(parent + own, digest_size=_DIGEST_BYTES).digest()
        links.append(Link(parent, own, digest))


def _root(namespace: str) -> bytes:
    """Return what stands before the first block of all chains of a namespace."""
    if not namespace:
        return b""
    return blake2b(namespace.encode(), digest_size=_DIGEST_BYTES, person=b"namespace").digest()


class PrefixPool(BlockPool):
    """A pool that remembers what its blocks hold. It never knows more of them than it has."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._known: dict[bytes, int] = {}
        self._links: dict[int, Link] = {}
        self._idle: dict[int, None] = {}  # in the order in which they were given back

    def find(self, links: Iterable[Link]) -> list[int]:
        """Return the blocks that hold the longest known beginning of a chain."""
        blocks: list[int] = []
        for link in links:
            block = self._known.get(link.digest)
            # Tokens are compared too: two chains of one digest must not share an answer.
            if block is None or self._links[block] != link:
                break
            blocks.append(block)
        return blocks

    def num_idle(self, blocks: Iterable[int]) -> int:
        """Return how many of some known blocks nobody uses: taking them makes fewer free."""
        return sum(block in self._idle for block in blocks)

    def keep(self, block: int, link: Link) -> None:
        """Remember what a block in use holds, unless another one is known to hold the same."""
        if link.digest not in self._known and block not in self._links:
            super().share(block)  # the pool's own reference
            self._known[link.digest] = block
            self._links[block] = link

    def forget(self, block: int) -> None:
        """Stop knowing what a block holds; one that nobody uses becomes free."""
        link = self._links.pop(block, None)
        if link is not None:
            del self._known[link.digest]
            self._idle.pop(block, None)
            super().give_back(block)

    def can_take(self, count: int) -> bool:
        """Whether `count` blocks are free or idle."""
        return super().can_take(count - len(self._idle))

    def take(self) -> int:
        """Return a block, referenced once; the one longest idle is forgotten if none is free.

        Raises:
            CapacityExceeded: if sequences use them all; ask `can_take` first.
        """
        if self._idle and not super().can_take(1):
            self.forget(next(iter(self._idle)))
        return super().take()

    def share(self, block: int) -> None:
        """Add a reference to a block that is in use or known."""
        self._idle.pop(block, None)
        super().share(block)

    def give_back(self, block: int) -> None:
        """Drop a reference; after the last one a block that is known becomes idle."""
        if block in self._idle:
            raise InternalError(f"KV block {block} was freed twice")
        super().give_back(block)
        if block in self._links and self.references(block) == 1:
            self._idle[block] = None

    def statistics(self) -> PoolStatistics:
        """Return the counts of blocks."""
        plain = super().statistics()
        return PoolStatistics(
            plain.num_blocks, plain.num_free + len(self._idle), num_known=len(self._links)
        )
