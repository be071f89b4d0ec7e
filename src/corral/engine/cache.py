"""The blocks of all sequences: a pool for each group of layers, and what is known of beginnings.

It gives blocks to sequences and takes them back; who gets some, and when, is decided elsewhere.
"""

from collections.abc import Collection
from dataclasses import dataclass

from corral.engine.sequence import Sequence
from corral.errors import InternalError
from corral.kv.pool import BlockPool, PoolStatistics
from corral.kv.prefix import PrefixPool, as_bytes, extend, root, tail
from corral.kv.shift import Shift
from corral.kv.spec import BLOCK_TOKENS, GroupSpec
from corral.kv.table import BlockTable


@dataclass(frozen=True, slots=True)
class Beginning:
    """What is known of the first tokens of a sequence that waits."""

    blocks: tuple[int, ...] = ()
    """Full ones, which it may share."""
    tail: int | None = None
    """A part-filled one behind them, which it may take over."""
    num_tokens: int = 0
    """Tokens that these blocks hold."""
    num_idle: int = 0
    """Blocks among them that count as free until they are used."""


@dataclass(frozen=True, slots=True)
class Move:
    """A block whose keys are turned on their way to another, or where they are."""

    source: int
    target: int


NOTHING = Beginning()


class Cache:
    """Owns the pools and, through them, every block."""

    def __init__(self, groups: tuple[GroupSpec, ...]) -> None:
        self._groups = groups
        self._pools, self._prefixes = _pools(groups)

    @property
    def num_free(self) -> int | None:
        """Blocks that sequences can be given; None if nothing can run short.

        Windowed layers have enough for as many sequences as there may be.
        """
        pairs = zip(self._pools, self._groups, strict=True)
        free = [pool.statistics().num_free for pool, group in pairs if group.window is None]
        return min(free, default=None)

    @property
    def prefixes(self) -> PrefixPool | None:
        """The pool that remembers beginnings; None if no group of layers keeps them."""
        return self._prefixes

    @property
    def num_forgotten(self) -> int:
        """How often something that was known had to go."""
        return 0 if self._prefixes is None else self._prefixes.num_forgotten

    def statistics(self) -> tuple[PoolStatistics, ...]:
        """Return the counts of each group's blocks."""
        return tuple(pool.statistics() for pool in self._pools)

    def name_prompt(self, sequence: Sequence) -> None:
        """Name the blocks that a new sequence may find; its last token is computed in any case."""
        sequence.is_reusing = sequence.is_reusing and self._prefixes is not None
        if sequence.is_reusing:
            self._extend(sequence, (len(sequence.tokens) - 1) // BLOCK_TOKENS)

    def known(self, sequence: Sequence, taken: Collection[int] = ()) -> Beginning:
        """Return what a waiting sequence can begin with.

        Args:
            taken: tails that others will have taken over before it is admitted.
        """
        if self._prefixes is None or not sequence.is_reusing:
            return NOTHING
        blocks = self._prefixes.find(sequence.links)
        num_tokens, idle = len(blocks) * BLOCK_TOKENS, self._prefixes.num_idle(blocks)
        last = self._tail_behind(sequence, len(blocks), taken)
        if last is None:
            return Beginning(tuple(blocks), None, num_tokens, idle)
        num_tokens += self._prefixes.num_tokens(last)
        return Beginning(tuple(blocks), last, num_tokens, idle + 1)

    def _tail_behind(
        self, sequence: Sequence, num_blocks: int, taken: Collection[int]
    ) -> int | None:
        """Return the tail that goes on where a sequence's known blocks end, if there is one."""
        assert self._prefixes is not None
        links = sequence.links
        parent = links[num_blocks - 1].digest if num_blocks else root(sequence.cache_namespace)
        first = num_blocks * BLOCK_TOKENS
        rest = sequence.tokens[first : min(first + BLOCK_TOKENS, len(sequence.tokens)) - 1]
        return self._prefixes.find_tail(parent, as_bytes(rest), taken)

    def open_tables(self, sequence: Sequence, beginning: Beginning = NOTHING) -> int:
        """Give a waiting sequence its tables and what is known of it; return how many tokens."""
        sequence.tables = tuple(
            BlockTable(pool, window=group.window)
            for pool, group in zip(self._pools, self._groups, strict=True)
        )
        if beginning.blocks:
            sequence.tables[0].adopt(beginning.blocks)
        if beginning.tail is not None and self._prefixes is not None:
            self._prefixes.take_over(beginning.tail)
            sequence.tables[0].own(beginning.tail)
        return beginning.num_tokens

    def can_grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Whether so many more tokens of a sequence fit."""
        return all(table.can_grow(sequence.num_computed + num_tokens) for table in sequence.tables)

    def grow(self, sequence: Sequence, num_tokens: int) -> None:
        """Give a sequence the blocks of so many more tokens.

        Raises:
            CapacityExceeded: if a pool runs out; the scheduler sees to it that none does.
        """
        for table in sequence.tables:
            table.grow(sequence.num_computed + num_tokens)

    def advance(self, sequence: Sequence, num_tokens: int) -> None:
        """Note that so many more tokens are computed, and remember the blocks that are full now."""
        full = sequence.num_computed // BLOCK_TOKENS
        sequence.num_computed += num_tokens
        for table in sequence.tables:
            table.slide(sequence.num_computed)
        if self._prefixes is not None and sequence.is_reusing:
            num_full = sequence.num_computed // BLOCK_TOKENS
            self._extend(sequence, num_full)
            for number in range(full, num_full):
                self._prefixes.keep(sequence.tables[0].blocks[number], sequence.links[number])

    def shift(self, sequence: Sequence, shift: Shift) -> tuple[Move, ...] | None:
        """Take what a sequence drops, and return where the keys behind it are to go, turned.

        A block that nobody else uses stays; what was known of it no longer holds. From one that is
        shared they go to a new one. None if there are too few: then nothing can be turned, and all
        of the sequence is to be computed again.
        """
        prefixes, table = self._prefixes, sequence.tables[0]
        if prefixes is None:
            raise InternalError("layers with windows cannot be shifted, and were not refused")
        table.drop(shift.keep, shift.drop)
        places = range(shift.keep, len(table.blocks))
        shared = [place for place in places if prefixes.is_shared(table.blocks[place])]
        if not prefixes.can_take(len(shared)):
            return None
        moves = []
        for place in places:
            block = table.blocks[place]
            if place in shared:
                moves.append(Move(block, table.replace_shared(place)))
            else:
                prefixes.forget(block)
                moves.append(Move(block, block))
        return tuple(moves)

    def forget(self, sequence: Sequence) -> None:
        """Let nobody else begin with what a sequence computed: it may be wrong."""
        if self._prefixes is not None and sequence.tables:
            for block in sequence.tables[0].blocks:
                self._prefixes.forget(block)
            sequence.is_reusing = False

    def close_tables(self, sequence: Sequence) -> None:
        """Take every block of a sequence back, and remember the last one if it is part-filled."""
        if self._prefixes is not None and sequence.is_reusing and sequence.tables:
            self._keep_tail(sequence, self._prefixes)
        for table in sequence.tables:
            table.trim(0)
        sequence.tables = ()

    def _keep_tail(self, sequence: Sequence, prefixes: PrefixPool) -> None:
        computed = sequence.num_computed
        link = tail(sequence.links, sequence.tokens, computed, namespace=sequence.cache_namespace)
        if link is not None:
            prefixes.keep(sequence.tables[0].blocks[link.number], link)

    def _extend(self, sequence: Sequence, num_blocks: int) -> None:
        extend(sequence.links, sequence.tokens, num_blocks, namespace=sequence.cache_namespace)


def _pools(groups: tuple[GroupSpec, ...]) -> tuple[tuple[BlockPool, ...], PrefixPool | None]:
    """Return a pool for each group, and the one in which beginnings can be reused, if any.

    Windowed layers give up what lies behind their window, so beginnings of models that have some
    are not kept.
    """
    if len(groups) == 1 and groups[0].window is None:
        pool = PrefixPool(groups[0].num_blocks)
        return (pool,), pool
    return tuple(BlockPool(group.num_blocks) for group in groups), None
