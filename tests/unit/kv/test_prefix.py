"""Blocks that hold a known beginning are found, kept while there is room, and never mixed up."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from corral.errors import CapacityExceeded, InternalError
from corral.kv.prefix import PrefixPool, extend
from corral.kv.table import BlockTable


def chain(tokens):
    """Return the links of all full blocks of some tokens."""
    links = []
    extend(links, tokens, len(tokens) // 32)
    return links


def kept(pool, tokens):
    """Compute some tokens in blocks of the pool, keep them, and return their table."""
    table = BlockTable(pool)
    table.grow(len(tokens))
    for block, link in zip(table.blocks, chain(tokens), strict=False):
        pool.keep(block, link)
    return table


def test_a_finished_beginning_is_found():
    """Full blocks stay known after their table is gone; the last, part-filled one does not."""
    pool = PrefixPool(4)
    tokens = list(range(80))
    table = kept(pool, tokens)
    blocks = table.blocks[:2]
    table.trim(0)
    assert pool.find(chain(tokens)) == blocks
    assert pool.statistics().num_free == 4
    assert pool.statistics().num_known == 2


def test_only_the_common_beginning_is_found():
    """A chain is found up to the first block that differs."""
    pool = PrefixPool(4)
    table = kept(pool, [1] * 32 + [2] * 32 + [3] * 32)
    assert pool.find(chain([1] * 32 + [2] * 32 + [4] * 32)) == table.blocks[:2]
    assert pool.find(chain([1] * 31 + [9] + [2] * 32)) == []


def test_equal_blocks_after_unequal_beginnings_differ():
    """A block is named by everything before it."""
    pool = PrefixPool(4)
    kept(pool, [1] * 32 + [2] * 32)
    assert pool.find(chain([2] * 32)) == []
    assert pool.find(chain([3] * 32 + [2] * 32)) == []


def test_tokens_are_compared_and_not_only_digests():
    """A link whose digest is known but whose tokens are others is not found."""
    pool = PrefixPool(2)
    kept(pool, [1] * 32)
    (link,) = chain([1] * 32)
    (other,) = chain([2] * 32)
    forged = type(link)(link.parent, other.tokens, link.digest)
    assert pool.find([forged]) == []


def test_the_longest_idle_goes_first_and_the_deepest_before_its_parent():
    """When nothing is free, beginnings that many share outlive the ends of conversations."""
    pool = PrefixPool(4)
    old, new = kept(pool, [1] * 64), kept(pool, [2] * 64)
    old.trim(0)
    new.trim(0)
    taken = [pool.take()]
    assert len(pool.find(chain([1] * 64))) == 1
    taken.append(pool.take())
    assert pool.find(chain([1] * 64)) == []
    assert len(pool.find(chain([2] * 64))) == 2
    taken += [pool.take(), pool.take()]
    assert pool.statistics().num_known == 0
    with pytest.raises(CapacityExceeded):
        pool.take()
    assert sorted(taken) == [0, 1, 2, 3]


def test_shared_blocks_are_not_taken():
    """A known block that a sequence uses again is safe."""
    pool = PrefixPool(2)
    kept(pool, [1] * 32).trim(0)
    table = BlockTable(pool)
    table.adopt(pool.find(chain([1] * 32)))
    assert pool.take() not in table.blocks
    assert not pool.can_take(1)
    with pytest.raises(CapacityExceeded):
        pool.take()


def test_the_same_beginning_is_kept_once():
    """Two sequences that computed the same leave one of their blocks."""
    pool = PrefixPool(4)
    one, two = kept(pool, [1] * 32), kept(pool, [1] * 32)
    blocks = list(one.blocks)
    one.trim(0)
    two.trim(0)
    assert pool.find(chain([1] * 32)) == blocks
    assert pool.statistics().num_known == 1


def test_forgotten_blocks_are_free():
    """What is forgotten is not found, and its block can be taken."""
    pool = PrefixPool(1)
    table = kept(pool, [1] * 32)
    block = table.blocks[0]
    pool.forget(block)
    assert pool.find(chain([1] * 32)) == []
    table.trim(0)
    assert pool.take() == block


@pytest.mark.parametrize("is_known", [True, False])
def test_giving_back_twice_is_an_error(is_known):
    """A block that nobody uses cannot be given back, known or not."""
    pool = PrefixPool(2)
    block = pool.take()
    if is_known:
        pool.keep(block, chain([1] * 32)[0])
    pool.give_back(block)
    with pytest.raises(InternalError, match="freed twice"):
        pool.give_back(block)


NUM_BLOCKS = 6


class Pool(RuleBasedStateMachine):
    """Tables come and go over few beginnings and few blocks; a model says what each block holds."""

    def __init__(self):
        super().__init__()
        self.pool = PrefixPool(NUM_BLOCKS)
        self.holds = {}
        self.tables = []

    @rule(tokens=st.lists(st.sampled_from([1, 2]), min_size=1, max_size=3))
    def begin(self, tokens):
        """Start a sequence of so many blocks, each of one token, and compute what is unknown."""
        links = chain([token for token in tokens for _ in range(32)])
        known = self.pool.find(links)
        for block, link in zip(known, links, strict=False):
            assert self.holds[block] == link
        unused = NUM_BLOCKS - len({b for table in self.tables for b in table.blocks} | {*known})
        table = BlockTable(self.pool)
        table.adopt(known)
        if unused < len(links) - len(known):
            assert not table.can_grow(32 * len(links))
            table.trim(0)
            return
        table.grow(32 * len(links))
        for block, link in list(zip(table.blocks, links, strict=True))[len(known) :]:
            self.holds[block] = link
            self.pool.keep(block, link)
        self.tables.append(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def end(self, data):
        """End a sequence."""
        self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))).trim(0)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def lose(self, data):
        """End a sequence and forget its blocks."""
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        for block in table.blocks:
            self.pool.forget(block)
        table.trim(0)

    @invariant()
    def adds_up(self):
        """Blocks are used or free, and no more are known than there are."""
        used = {block for table in self.tables for block in table.blocks}
        statistics = self.pool.statistics()
        assert statistics.num_free == NUM_BLOCKS - len(used)
        assert statistics.num_known <= NUM_BLOCKS
        assert self.pool.can_take(statistics.num_free)
        assert not self.pool.can_take(statistics.num_free + 1)


Pool.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPool = Pool.TestCase
