"""Blocks that hold a known beginning are found, kept while there is room, and never mixed up."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from corral.errors import CapacityExceeded, InternalError
from corral.kv.prefix import PrefixPool, as_bytes, extend, root, tail
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
    """Full blocks stay known after their table is gone; the others only if they are kept."""
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
    forged = replace(link, tokens=other.tokens)
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


def ended(pool, tokens, namespace=""):
    """Compute some tokens, keep all of their blocks, and end; return the chain and the tail."""
    links = []
    extend(links, tokens, len(tokens) // 32, namespace=namespace)
    last = tail(links, tokens, len(tokens), namespace=namespace)
    table = BlockTable(pool)
    table.grow(len(tokens))
    held = [*links, *([] if last is None else [last])]
    for block, link in zip(table.blocks, held, strict=True):
        pool.keep(block, link)
    block = table.blocks[-1]
    table.trim(0)
    return links, block


class TestTails:
    """The part-filled block at the end of a conversation."""

    def test_whoever_goes_on_takes_it_over(self):
        """It is written behind its tokens by one sequence, and known no more."""
        pool = PrefixPool(4)
        links, block = ended(pool, list(range(40)))
        rest = as_bytes(range(32, 60))
        assert pool.find_tail(links[-1].digest, rest) == block
        assert pool.take_over(block) == 8
        assert pool.find_tail(links[-1].digest, rest) is None
        assert pool.references(block) == 1
        assert pool.statistics().num_free == 3
        pool.give_back(block)
        assert pool.statistics().num_free == 4

    @pytest.mark.parametrize("rest", [[], [32], [*range(32, 39)], [*range(32, 39), 7, 8, 9]])
    def test_all_of_its_tokens_must_follow(self, rest):
        """One that holds more than the prompt, or something else, stays as it is."""
        pool = PrefixPool(4)
        links, _block = ended(pool, list(range(40)))
        assert pool.find_tail(links[-1].digest, as_bytes(rest)) is None

    def test_the_longest_is_found(self):
        """Of two that begin alike the one with more tokens, unless somebody else gets it."""
        pool = PrefixPool(4)
        _, short = ended(pool, [1] * 5)
        _, long = ended(pool, [1] * 9)
        assert pool.find_tail(root(""), as_bytes([1] * 20)) == long
        assert pool.find_tail(root(""), as_bytes([1] * 20), {long}) == short
        assert pool.find_tail(root(""), as_bytes([1] * 20), {long, short}) is None

    def test_namespaces_have_none_in_common(self):
        """What one key left is nobody else's beginning."""
        pool = PrefixPool(4)
        _, block = ended(pool, [1] * 5, "mine")
        rest = as_bytes([1] * 9)
        assert pool.find_tail(root(""), rest) is None
        assert pool.find_tail(root("yours"), rest) is None
        assert pool.find_tail(root("mine"), rest) == block

    def test_one_in_use_is_nobodys(self):
        """Two sequences never write to one block."""
        pool = PrefixPool(2)
        _, block = ended(pool, [1] * 5)
        pool.share(block)
        assert pool.find_tail(root(""), as_bytes([1] * 9)) is None
        with pytest.raises(InternalError, match="no idle tail"):
            pool.take_over(block)

    def test_a_full_block_is_not_taken_over(self):
        """It is shared, and never written again."""
        pool = PrefixPool(2)
        _, block = ended(pool, [1] * 32)
        with pytest.raises(InternalError, match="no idle tail"):
            pool.take_over(block)

    def test_it_is_forgotten_like_others(self):
        """When nothing is free it goes before the blocks in front of it."""
        pool = PrefixPool(2)
        links, _block = ended(pool, list(range(40)))
        pool.take()
        assert pool.find_tail(links[-1].digest, as_bytes(range(32, 60))) is None
        assert len(pool.find(links)) == 1
        assert pool.num_forgotten == 1


def test_links_are_told_in_the_order_in_which_they_would_go():
    """Those longest idle first, those in use last."""
    pool = PrefixPool(8)
    for token in (1, 2, 3):
        ended(pool, [token] * 32)
    table = BlockTable(pool)
    table.adopt(pool.find(chain([1] * 32)))
    first = [link.tokens[0] for link in pool.links.values()]
    assert first == [2, 3, 1]


NUM_BLOCKS = 6


class Pool(RuleBasedStateMachine):
    """Tables come and go over few beginnings and few blocks; a model says what each block holds."""

    def __init__(self):
        super().__init__()
        self.pool = PrefixPool(NUM_BLOCKS)
        self.holds = {}
        self.tables = []

    @rule(
        numbers=st.lists(st.sampled_from([1, 2]), min_size=0, max_size=3),
        more=st.integers(0, 31),
    )
    def begin(self, numbers, more):
        """Start a sequence of some blocks, each of one token, and compute what is unknown."""
        tokens = [number for number in numbers for _ in range(32)] + [3] * more
        links = chain(tokens)
        last = tail(links, tokens, len(tokens))
        known = self.pool.find(links)
        for block, link in zip(known, links, strict=False):
            assert self.holds[block] == link
        parent = links[len(known) - 1].digest if known else root("")
        rest = as_bytes(tokens[32 * len(known) : 32 * len(known) + 31])
        old = self.pool.find_tail(parent, rest)
        assert old is None or rest.startswith(self.holds[old].tokens)
        used = {block for table, _ in self.tables for block in table.blocks}
        unused = NUM_BLOCKS - len(used | {*known})
        links += [] if last is None else [last]
        table = BlockTable(self.pool)
        table.adopt(known)
        if unused < len(links) - len(known):
            assert not table.can_grow(len(tokens))
            table.trim(0)
            return
        if old is not None:
            self.pool.take_over(old)
            table.own(old)
        table.grow(len(tokens))
        for block, link in list(zip(table.blocks, links, strict=True))[len(known) :]:
            self.holds[block] = link
            if not link.is_tail:
                self.pool.keep(block, link)
        self.tables.append((table, last))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def end(self, data):
        """End a sequence; its tail stays known."""
        table, last = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        if last is not None:
            self.pool.keep(table.blocks[-1], last)
        table.trim(0)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def lose(self, data):
        """End a sequence and forget its blocks."""
        table, _ = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        for block in table.blocks:
            self.pool.forget(block)
        table.trim(0)

    @invariant()
    def adds_up(self):
        """Blocks are used or free, and no more are known than there are."""
        used = {block for table, _ in self.tables for block in table.blocks}
        for block, link in self.pool.links.items():
            assert self.holds[block] == link
        statistics = self.pool.statistics()
        assert statistics.num_free == NUM_BLOCKS - len(used)
        assert statistics.num_known <= NUM_BLOCKS
        assert self.pool.can_take(statistics.num_free)
        assert not self.pool.can_take(statistics.num_free + 1)


Pool.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPool = Pool.TestCase
