"""Prefix reuse: which blocks still hold the keys and values of which tokens.

A block is named by a digest of its tokens and of its parent's digest, so a name stands for
everything from the first token on. Blocks stay known after their last sequence, until the pool has
nothing else to hand out:

              keep                last sequence gives it back
    in use ──────────▶ known ──────────────────────────────────▶ known, idle ──▶ taken, forgotten
                         ◀────────────────────────────────────────       longest idle first
                                share

Full blocks are shared by all that begin alike. A tail, the part-filled block at the end of what a
sequence computed, is known too; whoever goes on from there takes it over and writes behind its
tokens, so one sequence at most may have it.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from corral.errors import InternalError
from corral.kv.pool import BlockPool, PoolStatistics
from corral.kv.spec import BLOCK_TOKENS

_DIGEST_BYTES = 32
TOKEN_BYTES = 4
"""Bytes of one token in a link."""


@dataclass(frozen=True, slots=True)
class Link:
    """The tokens of one block, and the names of its parent and of itself."""

    number: int
    """How many full blocks come before."""
    parent: bytes
    """Digest of all that comes before; for the first block that of its namespace, if it has one."""
    tokens: bytes
    digest: bytes

    @classmethod
    def after(cls, number: int, parent: bytes, tokens: bytes) -> "Link":
        """Return the link of a block whose parent and tokens are given."""
        digest = blake2b(parent + tokens, digest_size=_DIGEST_BYTES).digest()
        return cls(number, parent, tokens, digest)

    @property
    def num_tokens(self) -> int:
        """Tokens of the block."""
        return len(self.tokens) // TOKEN_BYTES

    @property
    def is_tail(self) -> bool:
        """Whether the block is not full."""
        return self.num_tokens < BLOCK_TOKENS


def extend(
    links: list[Link], tokens: Sequence[int], num_blocks: int, *, namespace: str = ""
) -> None:
    """Lengthen the chain of a sequence's first blocks to `num_blocks`, all of them full.

    Chains of different namespaces have no name in common, whatever their tokens.
    """
    for number in range(len(links), num_blocks):
        own = as_bytes(tokens[number * BLOCK_TOKENS : (number + 1) * BLOCK_TOKENS])
        parent = links[-1].digest if links else root(namespace)
        links.append(Link.after(number, parent, own))


def tail(
    links: Sequence[Link], tokens: Sequence[int], num_tokens: int, *, namespace: str = ""
) -> Link | None:
    """Return the link of the part-filled block that ends `num_tokens` tokens; None if all are full.

    `links` is the chain of at least the full blocks before it.
    """
    number, rest = divmod(num_tokens, BLOCK_TOKENS)
    if not rest:
        return None
    parent = links[number - 1].digest if number else root(namespace)
    return Link.after(number, parent, as_bytes(tokens[number * BLOCK_TOKENS : num_tokens]))


def root(namespace: str) -> bytes:
    """Return what stands before the first block of all chains of a namespace."""
    if not namespace:
        return b""
    return blake2b(namespace.encode(), digest_size=_DIGEST_BYTES, person=b"namespace").digest()


def as_bytes(tokens: Sequence[int]) -> bytes:
    """Return tokens as links have them."""
    return array("i", tokens).tobytes()


class PrefixPool(BlockPool):
    """A pool that remembers what its blocks hold. It never knows more of them than it has."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._known: dict[bytes, int] = {}
        self._links: dict[int, Link] = {}
        self._idle: dict[int, None] = {}  # in the order in which they were given back
        self._tails: dict[bytes, list[int]] = {}  # by parent
        self.num_forgotten = 0
        """How often a known block was forgotten, for others or because it may be wrong."""

    @property
    def links(self) -> Mapping[int, Link]:
        """What each known block holds, those longest idle first and those in use last."""
        return {block: self._links[block] for block in self._idle} | self._links

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

    def knows(self, link: Link) -> bool:
        """Whether some block is known to hold what a link says."""
        return link.digest in self._known

    def block_of(self, link: Link) -> int:
        """Return the block that is known to hold what a link says; KeyError if there is none."""
        return self._known[link.digest]

    def num_tokens(self, block: int) -> int:
        """Return how many tokens of a known block are computed."""
        return self._links[block].num_tokens

    def find_tail(self, parent: bytes, rest: bytes, taken: Iterable[int] = ()) -> int | None:
        """Return the idle tail below `parent` with the most tokens that all begin `rest`.

        Args:
            rest: tokens behind the parent's, as bytes.
            taken: tails that others are about to take over.
        """
        fitting = (
            block
            for block in self._tails.get(parent, ())
            if block in self._idle
            and block not in taken
            and rest.startswith(self._links[block].tokens)
        )
        return max(fitting, key=lambda block: len(self._links[block].tokens), default=None)

    def num_idle(self, blocks: Iterable[int]) -> int:
        """Return how many of some known blocks nobody uses: taking them makes fewer free."""
        return sum(block in self._idle for block in blocks)

    def is_shared(self, block: int) -> bool:
        """Whether several sequences use a block."""
        return self.references(block) - (block in self._links) > 1

    def keep(self, block: int, link: Link) -> None:
        """Remember what a block in use holds, unless another one is known to hold the same."""
        if link.digest not in self._known and block not in self._links:
            super().share(block)  # the pool's own reference
            self._known[link.digest] = block
            self._links[block] = link
            if link.is_tail:
                self._tails.setdefault(link.parent, []).append(block)

    def take_over(self, block: int) -> int:
        """Give an idle tail to a sequence that will write to it; return how many tokens it has."""
        if block not in self._idle or not self._links[block].is_tail:
            raise InternalError(f"KV block {block} is no idle tail and cannot be taken over")
        super().share(block)
        count = self._links[block].num_tokens
        self._strike(block)
        return count

    def forget(self, block: int) -> None:
        """Stop knowing what a block holds; one that nobody uses becomes free."""
        if block in self._links:
            self._strike(block)
            self.num_forgotten += 1

    def forget_all(self) -> None:
        """Stop knowing anything; what nobody uses becomes free."""
        for block in tuple(self._links):
            self.forget(block)

    def _strike(self, block: int) -> None:
        """Drop the pool's own reference to a known block."""
        link = self._links.pop(block)
        del self._known[link.digest]
        self._idle.pop(block, None)
        if link.is_tail:
            tails = self._tails[link.parent]
            tails.remove(block)
            if not tails:
                del self._tails[link.parent]
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
